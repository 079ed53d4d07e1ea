/**
 * One engine event from MessagePack: an array with the tag first, or a map with the key `type`.
 *
 * Both shapes name the same fields (docs/wire-formats.md lists them). Unknown keys, extra slots and
 * unknown tags are passed over; a field of the wrong kind makes the event unusable, never its batch.
 */

import { readExtraKeys, readMultimodal } from "./decode_extras.ts";
import type { EngineEvent, ExtraKey } from "./engine_event.ts";
import { type MsgpackReader, UnexpectedValue } from "./msgpack_reader.ts";

/** Fields found so far; one object is used for all events of a process. */
interface Found {
  tag: string | undefined;
  hashes: BigUint64Array | undefined;
  parent: bigint | undefined;
  tokens: Uint32Array | undefined;
  isBigram: boolean;
  blockSize: number | undefined;
  medium: string | undefined;
  lora: string | undefined;
  loraId: number | undefined;
  salt: string | undefined;
  extraKeys: ExtraKey[][] | undefined;
  multimodal: bigint[][] | undefined;
  groupIndex: number | undefined;
  specKind: string | undefined;
  locality: string | undefined;
}

const found: Found = {
  tag: undefined,
  hashes: undefined,
  parent: undefined,
  tokens: undefined,
  isBigram: false,
  blockSize: undefined,
  medium: undefined,
  lora: undefined,
  loraId: undefined,
  salt: undefined,
  extraKeys: undefined,
  multimodal: undefined,
  groupIndex: undefined,
  specKind: undefined,
  locality: undefined,
};

function forget(): void {
  found.tag = undefined;
  found.hashes = undefined;
  found.parent = undefined;
  found.tokens = undefined;
  found.isBigram = false;
  found.blockSize = undefined;
  found.medium = undefined;
  found.lora = undefined;
  found.loraId = undefined;
  found.salt = undefined;
  found.extraKeys = undefined;
  found.multimodal = undefined;
  found.groupIndex = undefined;
  found.specKind = undefined;
  found.locality = undefined;
}

/**
 * Reads the next value as an event; undefined = well made and of no interest (`Ignored`).
 * Throws `UnexpectedValue` (with the reader anywhere inside the value) or `MsgpackBroken`.
 */
export function decodeEvent(reader: MsgpackReader): EngineEvent | undefined {
  forget();
  const kind = reader.peek();
  if (kind === "array") readArray(reader);
  else if (kind === "map") readMap(reader);
  else throw new UnexpectedValue(`an event is an array or a map, not ${kind}`);
  switch (found.tag) {
    case "BlockStored":
      return {
        kind: "engine_stored",
        hashes: found.hashes ?? missing("block_hashes"),
        parent: found.parent,
        tokens: found.tokens ?? missing("token_ids"),
        isBigram: found.isBigram,
        blockSize: found.blockSize ?? missing("block_size"),
        medium: found.medium,
        lora: found.lora ?? (found.loraId ? `lora_id:${found.loraId}` : undefined),
        salt: found.salt,
        extraKeys: found.extraKeys,
        multimodal: found.multimodal,
        groupIndex: found.groupIndex,
        specKind: found.specKind,
        locality: found.locality,
        isArray: kind === "array",
      };
    case "BlockRemoved":
      return {
        kind: "engine_removed",
        hashes: found.hashes ?? missing("block_hashes"),
        medium: found.medium,
        groupIndex: found.groupIndex,
        specKind: found.specKind,
        locality: found.locality,
      };
    case "AllBlocksCleared":
      return { kind: "engine_cleared" };
    case "Ignored":
      return undefined;
    case undefined:
      throw new UnexpectedValue("an event without a tag");
    default:
      throw new UnexpectedValue(`unknown tag ${found.tag.slice(0, 40)}`);
  }
}

function missing(field: string): never {
  throw new UnexpectedValue(`${field} is missing`);
}

// ------------------------------------------------------------------------------------ the two shapes

function readMap(reader: MsgpackReader): void {
  const pairs = reader.mapLength();
  for (let i = 0; i < pairs; i++) {
    if (reader.peek() !== "string") {
      reader.skip();
      reader.skip();
      continue;
    }
    const key = reader.string();
    if (reader.takeNil()) continue;
    switch (key) {
      case "type":
        found.tag = reader.string();
        break;
      case "block_hashes":
        found.hashes = readHashes(reader);
        break;
      case "parent_block_hash":
        found.parent = readParent(reader);
        break;
      case "token_ids":
        readTokens(reader);
        break;
      case "block_size":
        found.blockSize = readCount(reader, "block_size");
        break;
      case "medium":
        found.medium = reader.string();
        break;
      case "lora_name":
        found.lora = reader.string();
        break;
      case "cache_salt":
        found.salt = reader.string();
        break;
      case "extra_keys":
        found.extraKeys = readExtraKeys(reader);
        break;
      case "block_mm_infos":
      case "mm_keys":
        found.multimodal = readMultimodal(reader);
        break;
      case "group_idx":
        found.groupIndex = readCount(reader, "group_idx");
        break;
      case "kv_cache_spec_kind":
        found.specKind = reader.string();
        break;
      case "locality":
        found.locality = reader.string();
        break;
      case "lora_id":
        readLoraId(reader);
        break;
      default:
        // session_id, sliding window, source_kind, ownership and whatever comes next.
        reader.skip();
    }
  }
}

function readArray(reader: MsgpackReader): void {
  const slots = reader.arrayLength();
  if (slots === 0) throw new UnexpectedValue("an event without a tag");
  found.tag = reader.string();
  let next = 1;
  const take = (): boolean => next < slots && (next += 1, !reader.takeNil());
  if (found.tag === "BlockStored") {
    if (take()) found.hashes = readHashes(reader);
    if (take()) found.parent = readParent(reader);
    if (take()) readTokens(reader);
    if (take()) found.blockSize = readCount(reader, "block_size");
    if (take()) readLoraId(reader);
    if (take()) found.medium = reader.string();
    if (take()) readLoraSlot(reader);
    if (take()) found.extraKeys = readExtraKeys(reader);
    readTail(reader, slots - next);
  } else if (found.tag === "BlockRemoved") {
    if (take()) found.hashes = readHashes(reader);
    if (take()) found.medium = reader.string();
    readTail(reader, slots - next);
  } else {
    while (next < slots) {
      next += 1;
      reader.skip();
    }
  }
}

/** The adapter's old number: only where no name follows does it keep adapters apart. */
function readLoraId(reader: MsgpackReader): void {
  if (reader.peek() !== "int") reader.skip();
  else found.loraId = reader.number();
}

/** Slot 7 of an array store: the adapter's name, or (SGLang) a map with what salts the block. */
function readLoraSlot(reader: MsgpackReader): void {
  if (reader.peek() !== "map") {
    found.lora = reader.string();
    return;
  }
  const pairs = reader.mapLength();
  for (let i = 0; i < pairs; i++) {
    const key = reader.peek() === "string" ? reader.string() : (reader.skip(), "");
    if (reader.takeNil()) continue;
    if (key === "cache_salt") found.salt = reader.string();
    else if (key === "lora_name") found.lora = reader.string();
    else reader.skip();
  }
}

/**
 * The slots after those that never moved. Current engines send group index, spec kind, window,
 * locality, source kind in this order; older ones any of multimodal list, group index, kind, window,
 * told apart by their kinds. The first number is the group in both; the text that names a place is
 * recognised in both only where the current order has it.
 */
function readTail(reader: MsgpackReader, slots: number): void {
  let isCurrent = true;
  for (let i = 0; i < slots; i++) {
    if (reader.takeNil()) continue;
    switch (reader.peek()) {
      case "array":
        found.multimodal = readMultimodal(reader);
        isCurrent = false;
        break;
      case "int":
        if (found.groupIndex === undefined && (i === 0 || !isCurrent || i === 1)) {
          found.groupIndex = readCount(reader, "group_idx");
        } else reader.skip();
        break;
      case "string":
        if (isCurrent && i === 3) found.locality = reader.string();
        else if (isCurrent && i > 3) reader.skip();
        else if (found.specKind === undefined) found.specKind = reader.string();
        else reader.skip();
        break;
      default:
        reader.skip();
    }
  }
}

// ------------------------------------------------------------------------------------ the fields

/**
 * Memory for hashes and tokens, handed out piece by piece: an array of its own for each event costs
 * more than reading the event. A piece keeps its chunk alive, so chunks are small.
 */
const CHUNK_HASHES = 4096;
const CHUNK_TOKENS = 16_384;
let hashChunk = new BigUint64Array(CHUNK_HASHES);
let hashWords = new Uint32Array(hashChunk.buffer);
let hashesUsed = 0;
let tokenChunk = new Uint32Array(CHUNK_TOKENS);
let tokensUsed = 0;

function readHashes(reader: MsgpackReader): BigUint64Array {
  const count = reader.arrayLength();
  if (hashesUsed + count > hashChunk.length) {
    hashChunk = new BigUint64Array(Math.max(CHUNK_HASHES, count));
    hashWords = new Uint32Array(hashChunk.buffer);
    hashesUsed = 0;
  }
  const start = hashesUsed;
  for (let i = start; i < start + count; i++) reader.hash(hashWords, i);
  hashesUsed = start + count;
  return hashChunk.subarray(start, hashesUsed);
}

const parentHash = new BigUint64Array(1);
const parentWords = new Uint32Array(parentHash.buffer);

function readParent(reader: MsgpackReader): bigint | undefined {
  reader.hash(parentWords, 0);
  return parentHash[0];
}

/** A run of token ids, or of pairs (t0,t1),(t1,t2).. that stand for the run t0,t1,t2.. */
function readTokens(reader: MsgpackReader): void {
  const count = reader.arrayLength();
  found.isBigram = count > 0 && reader.peek() === "array";
  const size = found.isBigram ? count + 1 : count;
  if (tokensUsed + size > tokenChunk.length) {
    tokenChunk = new Uint32Array(Math.max(CHUNK_TOKENS, size));
    tokensUsed = 0;
  }
  const start = tokensUsed;
  if (found.isBigram) {
    for (let i = start; i < start + count; i++) {
      if (reader.arrayLength() !== 2) throw new UnexpectedValue("token pairs have two ids");
      reader.uint32s(2, tokenChunk, i);
    }
  } else reader.uint32s(count, tokenChunk, start);
  tokensUsed = start + size;
  found.tokens = tokenChunk.subarray(start, tokensUsed);
}

function readCount(reader: MsgpackReader, field: string): number {
  const value = reader.number();
  if (!Number.isInteger(value) || value < 0 || value > 0xffffffff) {
    throw new UnexpectedValue(`${field} is not a small whole number`);
  }
  return value;
}
