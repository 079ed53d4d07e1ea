/**
 * Base64 (RFC 4648, section 4) straight between columns and the bytes of a line.
 *
 * Neither runtime has a fast way from bytes to base64 bytes that all of them share: `btoa` wants a
 * string of each byte first. These loops take about 1 ns a byte.
 */

const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const PAD = 61;
const ENCODE = Uint8Array.from(ALPHABET, (letter) => letter.charCodeAt(0));
const DECODE = new Uint8Array(256).fill(255);
for (const [value, letter] of [...ALPHABET].entries()) DECODE[letter.charCodeAt(0)] = value;

/** Bytes that `length` bytes take as base64. */
export function base64Length(length: number): number {
  return Math.ceil(length / 3) * 4;
}

/** Writes `bytes` as base64 into `target` at `at`; returns where it ended. */
export function encodeBase64(bytes: Uint8Array, target: Uint8Array, at: number): number {
  const whole = bytes.length - (bytes.length % 3);
  let to = at;
  for (let from = 0; from < whole; from += 3) {
    const three = ((bytes[from] as number) << 16) | ((bytes[from + 1] as number) << 8) |
      (bytes[from + 2] as number);
    target[to] = ENCODE[three >> 18] as number;
    target[to + 1] = ENCODE[(three >> 12) & 63] as number;
    target[to + 2] = ENCODE[(three >> 6) & 63] as number;
    target[to + 3] = ENCODE[three & 63] as number;
    to += 4;
  }
  const rest = bytes.length - whole;
  if (rest === 0) return to;
  const first = bytes[whole] as number;
  const second = rest === 2 ? (bytes[whole + 1] as number) : 0;
  target[to] = ENCODE[first >> 2] as number;
  target[to + 1] = ENCODE[((first & 3) << 4) | (second >> 4)] as number;
  target[to + 2] = rest === 2 ? ENCODE[(second & 15) << 2] as number : PAD;
  target[to + 3] = PAD;
  return to + 4;
}

/**
 * Reads exactly `target.length` bytes out of the letters `source`. False if they are not the base64
 * of that many bytes (wrong length, foreign letter, wrong padding).
 */
export function decodeBase64(source: Uint8Array, target: Uint8Array): boolean {
  const length = target.length;
  if (source.length !== base64Length(length)) return false;
  const whole = length - (length % 3);
  let from = 0;
  let wrong = 0;
  for (let to = 0; to < whole; to += 3) {
    const a = DECODE[source[from] as number] as number;
    const b = DECODE[source[from + 1] as number] as number;
    const c = DECODE[source[from + 2] as number] as number;
    const d = DECODE[source[from + 3] as number] as number;
    wrong |= a | b | c | d;
    target[to] = (a << 2) | (b >> 4);
    target[to + 1] = (b << 4) | (c >> 2);
    target[to + 2] = (c << 6) | d;
    from += 4;
  }
  const rest = length - whole;
  if (rest > 0) {
    const a = DECODE[source[from] as number] as number;
    const b = DECODE[source[from + 1] as number] as number;
    wrong |= a | b;
    target[whole] = (a << 2) | (b >> 4);
    if (rest === 2) {
      const c = DECODE[source[from + 2] as number] as number;
      wrong |= c;
      if ((c & 3) !== 0) return false;
      target[whole + 1] = (b << 4) | (c >> 2);
    } else if ((b & 15) !== 0 || source[from + 2] !== PAD) {
      return false;
    }
    if (source[from + 3] !== PAD) return false;
  }
  // A letter is at most 63; anything foreign set a higher bit.
  return wrong < 64;
}
