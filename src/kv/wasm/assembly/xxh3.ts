/**
 * XXH3, 64 bits, with a seed: the hash that Dynamo's indexers and engines use for token blocks.
 * All lengths; the default secret; little-endian loads as the machine has them.
 */

const PRIME32_1: u64 = 0x9e3779b1;
const PRIME32_2: u64 = 0x85ebca77;
const PRIME32_3: u64 = 0xc2b2ae3d;
const PRIME64_1: u64 = 0x9e3779b185ebca87;
const PRIME64_2: u64 = 0xc2b2ae3d27d4eb4f;
const PRIME64_3: u64 = 0x165667b19e3779f9;
const PRIME64_4: u64 = 0x85ebca77c2b2ae63;
const PRIME64_5: u64 = 0x27d4eb2f165667c5;
const RRMXMX_PRIME: u64 = 0x9fb21c651e98df25;
const AVALANCHE_PRIME: u64 = 0x165667919e3779f9;

const SECRET_BYTES: usize = 192;
const STRIPE_BYTES: usize = 64;
const STRIPES_PER_BLOCK: usize = 16;
const BLOCK_BYTES: usize = STRIPE_BYTES * STRIPES_PER_BLOCK;

// prettier-ignore
const SECRET: usize = memory.data<u8>([
  0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
  0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
  0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
  0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
  0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
  0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
  0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
  0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
  0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
  0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
  0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
  0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
]);

/** The secret mixed with a seed, for inputs over 240 bytes; kept for the seed it was made for. */
const SEEDED_SECRET: usize = memory.data(192, 16);
const ACCUMULATORS: usize = memory.data(64, 16);
let secretSeed: u64 = 0;
let secretReady: bool = false;

// @ts-ignore: decorator
@inline
function fold(a: u64, b: u64): u64 {
  const aLow = a & 0xffffffff, aHigh = a >> 32, bLow = b & 0xffffffff, bHigh = b >> 32;
  const lowLow = aLow * bLow, highLow = aHigh * bLow, lowHigh = aLow * bHigh;
  const cross = (lowLow >> 32) + (highLow & 0xffffffff) + lowHigh;
  const upper = (highLow >> 32) + (cross >> 32) + aHigh * bHigh;
  return upper ^ ((cross << 32) | (lowLow & 0xffffffff));
}

// @ts-ignore: decorator
@inline
function avalanche(h: u64): u64 {
  h ^= h >> 37;
  h *= AVALANCHE_PRIME;
  return h ^ (h >> 32);
}

// @ts-ignore: decorator
@inline
function avalanche64(h: u64): u64 {
  h ^= h >> 33;
  h *= PRIME64_2;
  h ^= h >> 29;
  h *= PRIME64_3;
  return h ^ (h >> 32);
}

// @ts-ignore: decorator
@inline
function mix16(input: usize, secret: usize, seed: u64): u64 {
  return fold(
    load<u64>(input) ^ (load<u64>(secret) + seed),
    load<u64>(input, 8) ^ (load<u64>(secret, 8) - seed),
  );
}

function upTo16(input: usize, length: usize, seed: u64): u64 {
  if (length > 8) {
    const flipLow = (load<u64>(SECRET, 24) ^ load<u64>(SECRET, 32)) + seed;
    const flipHigh = (load<u64>(SECRET, 40) ^ load<u64>(SECRET, 48)) - seed;
    const low = load<u64>(input) ^ flipLow;
    const high = load<u64>(input + length - 8) ^ flipHigh;
    return avalanche(<u64>length + bswap<u64>(low) + high + fold(low, high));
  }
  if (length >= 4) {
    seed ^= (<u64>bswap<u32>(<u32>seed)) << 32;
    const flip = (load<u64>(SECRET, 8) ^ load<u64>(SECRET, 16)) - seed;
    const last = <u64>load<u32>(input + length - 4);
    let h = (last + ((<u64>load<u32>(input)) << 32)) ^ flip;
    h ^= rotl<u64>(h, 49) ^ rotl<u64>(h, 24);
    h *= RRMXMX_PRIME;
    h ^= (h >> 35) + <u64>length;
    h *= RRMXMX_PRIME;
    return h ^ (h >> 28);
  }
  if (length > 0) {
    const first = <u32>load<u8>(input);
    const middle = <u32>load<u8>(input + (length >> 1));
    const last = <u32>load<u8>(input + length - 1);
    const combined = (first << 16) | (middle << 24) | last | (<u32>length << 8);
    const flip = <u64>(load<u32>(SECRET) ^ load<u32>(SECRET, 4)) + seed;
    return avalanche64(<u64>combined ^ flip);
  }
  return avalanche64(seed ^ (load<u64>(SECRET, 56) ^ load<u64>(SECRET, 64)));
}

function upTo128(input: usize, length: usize, seed: u64): u64 {
  let sum = <u64>length * PRIME64_1;
  const end = input + length;
  if (length > 32) {
    if (length > 64) {
      if (length > 96) {
        sum += mix16(input + 48, SECRET + 96, seed);
        sum += mix16(end - 64, SECRET + 112, seed);
      }
      sum += mix16(input + 32, SECRET + 64, seed);
      sum += mix16(end - 48, SECRET + 80, seed);
    }
    sum += mix16(input + 16, SECRET + 32, seed);
    sum += mix16(end - 32, SECRET + 48, seed);
  }
  sum += mix16(input, SECRET, seed);
  sum += mix16(end - 16, SECRET + 16, seed);
  return avalanche(sum);
}

function upTo240(input: usize, length: usize, seed: u64): u64 {
  let sum = <u64>length * PRIME64_1;
  const rounds = length >> 4;
  for (let i: usize = 0; i < 8; i++) sum += mix16(input + (i << 4), SECRET + (i << 4), seed);
  sum = avalanche(sum);
  for (let i: usize = 8; i < rounds; i++) {
    sum += mix16(input + (i << 4), SECRET + ((i - 8) << 4) + 3, seed);
  }
  sum += mix16(input + length - 16, SECRET + 136 - 17, seed);
  return avalanche(sum);
}

// @ts-ignore: decorator
@inline
function accumulate(input: usize, secret: usize): void {
  for (let i: usize = 0; i < 64; i += 8) {
    const data = load<u64>(input + i);
    const key = data ^ load<u64>(secret + i);
    const neighbour = ACCUMULATORS + (i ^ 8);
    store<u64>(neighbour, load<u64>(neighbour) + data);
    const own = ACCUMULATORS + i;
    store<u64>(own, load<u64>(own) + (key & 0xffffffff) * (key >> 32));
  }
}

function scramble(secret: usize): void {
  for (let i: usize = 0; i < 64; i += 8) {
    let sum = load<u64>(ACCUMULATORS + i);
    sum ^= sum >> 47;
    sum ^= load<u64>(secret + i);
    store<u64>(ACCUMULATORS + i, sum * PRIME32_1);
  }
}

function long(input: usize, length: usize, seed: u64): u64 {
  if (!secretReady || secretSeed != seed) {
    for (let i: usize = 0; i < SECRET_BYTES; i += 16) {
      store<u64>(SEEDED_SECRET + i, load<u64>(SECRET + i) + seed);
      store<u64>(SEEDED_SECRET + i + 8, load<u64>(SECRET + i + 8) - seed);
    }
    secretSeed = seed;
    secretReady = true;
  }
  const secret = SEEDED_SECRET;
  store<u64>(ACCUMULATORS, PRIME32_3);
  store<u64>(ACCUMULATORS, PRIME64_1, 8);
  store<u64>(ACCUMULATORS, PRIME64_2, 16);
  store<u64>(ACCUMULATORS, PRIME64_3, 24);
  store<u64>(ACCUMULATORS, PRIME64_4, 32);
  store<u64>(ACCUMULATORS, PRIME32_2, 40);
  store<u64>(ACCUMULATORS, PRIME64_5, 48);
  store<u64>(ACCUMULATORS, PRIME32_1, 56);
  const blocks = (length - 1) / BLOCK_BYTES;
  for (let block: usize = 0; block < blocks; block++) {
    const at = input + block * BLOCK_BYTES;
    for (let stripe: usize = 0; stripe < STRIPES_PER_BLOCK; stripe++) {
      accumulate(at + stripe * STRIPE_BYTES, secret + stripe * 8);
    }
    scramble(secret + SECRET_BYTES - STRIPE_BYTES);
  }
  const at = input + blocks * BLOCK_BYTES;
  const stripes = (length - 1 - blocks * BLOCK_BYTES) / STRIPE_BYTES;
  for (let stripe: usize = 0; stripe < stripes; stripe++) {
    accumulate(at + stripe * STRIPE_BYTES, secret + stripe * 8);
  }
  accumulate(input + length - STRIPE_BYTES, secret + SECRET_BYTES - STRIPE_BYTES - 7);
  let sum = <u64>length * PRIME64_1;
  for (let i: usize = 0; i < 64; i += 16) {
    sum += fold(
      load<u64>(ACCUMULATORS + i) ^ load<u64>(secret + 11 + i),
      load<u64>(ACCUMULATORS + i + 8) ^ load<u64>(secret + 11 + i + 8),
    );
  }
  return avalanche(sum);
}

/** XXH3-64 of `length` bytes at `input`. */
export function xxh3(input: usize, length: usize, seed: u64): u64 {
  if (length <= 16) return upTo16(input, length, seed);
  if (length <= 128) return upTo128(input, length, seed);
  if (length <= 240) return upTo240(input, length, seed);
  return long(input, length, seed);
}

/** The chain key of a block: XXH3-64 over its parent's chain key and its own local hash. */
export function chain(parentKey: u64, local: u64, seed: u64): u64 {
  const flipLow = (load<u64>(SECRET, 24) ^ load<u64>(SECRET, 32)) + seed;
  const flipHigh = (load<u64>(SECRET, 40) ^ load<u64>(SECRET, 48)) - seed;
  const low = parentKey ^ flipLow;
  const high = local ^ flipHigh;
  return avalanche(16 + bswap<u64>(low) + high + fold(low, high));
}
