/**
 * Fields of JSON bodies in the APIs that other systems' clients use: snake_case names, u64 as plain
 * numbers. Each reader throws `bad_request` with the field's name for what it does not take.
 */

import { BatonError } from "../errors.ts";
import { type Json, parseU64Json, toU64 } from "../kv/u64_json.ts";
import { readBody } from "./body.ts";

export type Fields = { readonly [key: string]: Json };

export const MAX_BODY_BYTES = 8 * 1024 * 1024;
export const DEFAULT_GROUP = "default";

/** The body as a JSON object. Throws `bad_request`, `body_too_large`. */
export async function readFields(request: Request, maxBytes: number): Promise<Fields> {
  const text = await readBody(request, maxBytes);
  let body: Json;
  try {
    body = parseU64Json(text);
  } catch {
    throw new BatonError("bad_request", "the body is not JSON");
  }
  if (typeof body !== "object" || body === null || Array.isArray(body)) {
    throw new BatonError("bad_request", "the body is not a JSON object");
  }
  return body as Fields;
}

export function required<T>(value: T | undefined, field: string): T {
  if (value === undefined) throw new BatonError("bad_request", `${field} is missing`);
  return value;
}

export function bad(field: string, wanted: string): BatonError {
  return new BatonError("bad_request", `${field} is not ${wanted}`);
}

/** Text; null and "" count as absent. */
export function text(fields: Fields, field: string): string | undefined {
  const value = fields[field];
  if (value === undefined || value === null || value === "") return undefined;
  if (typeof value !== "string") throw bad(field, "text");
  return value;
}

/** A worker's name; numbers are u64 and stand for their digits. */
export function worker(fields: Fields, field = "instance_id"): string | undefined {
  const value = fields[field];
  if (value === undefined || value === null || value === "") return undefined;
  if (typeof value === "string") return value;
  const number = typeof value === "number" && value < 0 ? undefined : toU64(value);
  if (number === undefined) throw bad(field, "a u64 or text");
  return number.toString();
}

export function count(fields: Fields, field: string): number | undefined {
  const value = fields[field];
  if (value === undefined || value === null) return undefined;
  if (typeof value === "number" && Number.isInteger(value) && value >= 1 && value < 2 ** 31) {
    return value;
  }
  throw bad(field, "a whole number above 0");
}

export function rank(fields: Fields): number | undefined {
  const value = fields["dp_rank"];
  if (value === undefined || value === null) return undefined;
  if (typeof value === "number" && Number.isInteger(value) && value >= 0 && value < 2 ** 32) {
    return value;
  }
  throw bad("dp_rank", "a whole number");
}

export function list(fields: Fields, field: string): readonly Json[] {
  const value = fields[field];
  if (!Array.isArray(value)) throw bad(field, "a list");
  return value;
}

export function tokens(fields: Fields): Uint32Array {
  const values = list(fields, "token_ids");
  const out = new Uint32Array(values.length);
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (typeof value !== "number" || value >>> 0 !== value) throw bad("token_ids", "a list of u32");
    out[i] = value;
  }
  return out;
}

/** 64-bit numbers, signed or not. */
export function hashes(fields: Fields, field = "block_hashes"): BigUint64Array {
  const values = list(fields, field);
  const out = new BigUint64Array(values.length);
  for (let i = 0; i < values.length; i++) {
    const hash = toU64(values[i]);
    if (hash === undefined) throw bad(field, "a list of 64-bit numbers");
    out[i] = hash;
  }
  return out;
}
