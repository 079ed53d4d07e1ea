/**
 * JSON whose integers above 2^53 keep all their digits, both ways.
 *
 * Dynamo's APIs write u64 as plain JSON numbers, which `JSON.parse` rounds. Here integers that a
 * double cannot hold come back as bigint, and bigints are written as plain digits. Texts without such
 * integers, which are nearly all, go through the native parser alone.
 */

/** A parsed value: as `JSON.parse` gives it, with `bigint` for integers beyond 2^53 of up to 40 digits. */
export type Json =
  | null
  | boolean
  | number
  | bigint
  | string
  | readonly Json[]
  | { readonly [key: string]: Json };

type SourceReviver = (
  this: unknown,
  key: string,
  value: unknown,
  context?: { readonly source?: string },
) => unknown;

const parseWithSource = JSON.parse as (text: string, reviver: SourceReviver) => Json;
/** Wraps text that goes into the output as it is (ES2026). */
const raw = (JSON as unknown as { rawJSON(text: string): unknown }).rawJSON;

/** Where a long integer may begin: not right after a quotation mark, so hashes as text cost nothing. */
const LONG_DIGITS = /(?:^|[[,:\s-])[0-9]{16}/;
/** More digits than a u64 has, by far; to turn millions of them into a bigint takes seconds. */
const INTEGER = /^-?[0-9]{16,40}$/;

/** Parses JSON. Throws `SyntaxError`. */
export function parseU64Json(text: string): Json {
  if (!LONG_DIGITS.test(text)) return JSON.parse(text) as Json;
  return parseWithSource(text, function (_key, value, context) {
    if (typeof value !== "number" || Number.isSafeInteger(value)) return value;
    const source = context?.source;
    return source !== undefined && INTEGER.test(source) ? BigInt(source) : value;
  });
}

/** Prints JSON, bigints as plain numbers. */
export function printU64Json(value: unknown): string {
  return JSON.stringify(
    value,
    (_key, item: unknown) => typeof item === "bigint" ? raw(item.toString()) : item,
  );
}

const DECIMAL_U64 = /^(?:0|[1-9][0-9]{0,19})$/;
const MOST_U64 = 2n ** 64n - 1n;

/**
 * A u64 from what JSON may carry one in: a number, a bigint, or a string of decimal digits or of
 * hexadecimal ones after `0x`. Negative numbers keep their bits, as a signed 64-bit integer has them.
 * undefined when it is none of these or does not fit.
 */
export function toU64(value: unknown): bigint | undefined {
  if (typeof value === "number") {
    return Number.isSafeInteger(value) ? BigInt.asUintN(64, BigInt(value)) : undefined;
  }
  if (typeof value === "bigint") {
    return value > MOST_U64 || value < -(2n ** 63n) ? undefined : BigInt.asUintN(64, value);
  }
  if (typeof value !== "string") return undefined;
  if (DECIMAL_U64.test(value)) {
    const number = BigInt(value);
    return number > MOST_U64 ? undefined : number;
  }
  if (/^-[1-9][0-9]{0,18}$/.test(value)) return toU64(BigInt(value));
  return /^0x[0-9a-fA-F]{1,16}$/.test(value) ? BigInt(value) : undefined;
}

/** A worker's name for an API in which they are u64: the number if the name is one, else the text. */
export function workerNumber(worker: string): bigint | string {
  if (!DECIMAL_U64.test(worker)) return worker;
  const number = BigInt(worker);
  return number > MOST_U64 ? worker : number;
}
