/** What else than tokens went into blocks: extra keys and multimodal hashes, by block. */

import type { ExtraKey } from "./engine_event.ts";
import { type MsgpackReader, UnexpectedValue } from "./msgpack_reader.ts";

/** undefined when no block has any item, which is the common case. */
export function readExtraKeys(reader: MsgpackReader): ExtraKey[][] | undefined {
  const blocks = reader.arrayLength();
  let keys: ExtraKey[][] | undefined;
  for (let block = 0; block < blocks; block++) {
    if (reader.takeNil()) continue;
    const items: ExtraKey[] = [];
    if (reader.peek() === "array") {
      const count = reader.arrayLength();
      for (let i = 0; i < count; i++) readExtraKey(reader, items);
    } else readExtraKey(reader, items);
    if (items.length === 0) continue;
    keys ??= Array.from({ length: blocks }, () => []);
    keys[block] = items;
  }
  return keys;
}

function readExtraKey(reader: MsgpackReader, items: ExtraKey[]): void {
  if (reader.takeNil()) return;
  if (reader.peek() !== "array") {
    items.push(readScalar(reader));
    return;
  }
  const count = reader.arrayLength();
  if (count === 0) return;
  const id = readScalar(reader);
  let offset = 0;
  for (let i = 1; i < count; i++) {
    if (i === 1 && reader.peek() === "int") offset = reader.number();
    else reader.skip();
  }
  items.push({ id, offset });
}

/** Any item that is not a list; what is neither text, integer nor bytes is kept as its text. */
function readScalar(reader: MsgpackReader): string | bigint | Uint8Array {
  switch (reader.peek()) {
    case "string":
      return reader.string();
    case "int":
      return BigInt.asUintN(64, reader.bigint());
    case "bytes":
      return reader.binary().slice();
    case "float":
      return `float:${reader.number()}`;
    case "bool":
      return `bool:${reader.bool()}`;
    default:
      throw new UnexpectedValue("an extra key of an unknown kind");
  }
}

/**
 * Multimodal hashes by block. Each block is nil, a map with `mm_objects`, or a list of items; an
 * item is an integer, a hex digest (its first 16 digits count), or a map with `mm_hash` or `hash`.
 */
export function readMultimodal(reader: MsgpackReader): bigint[][] | undefined {
  const blocks = reader.arrayLength();
  let all: bigint[][] | undefined;
  for (let block = 0; block < blocks; block++) {
    if (reader.takeNil()) continue;
    const hashes: bigint[] = [];
    readMultimodalItem(reader, hashes, 0);
    if (hashes.length === 0) continue;
    all ??= Array.from({ length: blocks }, () => []);
    all[block] = hashes;
  }
  return all;
}

const MAX_DEPTH = 4;

function readMultimodalItem(reader: MsgpackReader, hashes: bigint[], depth: number): void {
  if (depth > MAX_DEPTH) throw new UnexpectedValue("multimodal items nested too deep");
  switch (reader.peek()) {
    case "int":
      hashes.push(BigInt.asUintN(64, reader.bigint()));
      return;
    case "string": {
      const hex = /^[0-9a-fA-F]{16}/.exec(reader.string());
      if (hex !== null) hashes.push(BigInt(`0x${hex[0]}`));
      return;
    }
    case "bytes": {
      const digest = reader.binary();
      let value = 0n;
      for (const byte of digest.subarray(0, 8)) value = (value << 8n) | BigInt(byte);
      if (digest.length > 0) hashes.push(value);
      return;
    }
    case "array": {
      const count = reader.arrayLength();
      for (let i = 0; i < count; i++) {
        if (!reader.takeNil()) readMultimodalItem(reader, hashes, depth + 1);
      }
      return;
    }
    case "map": {
      const pairs = reader.mapLength();
      for (let i = 0; i < pairs; i++) {
        const key = reader.peek() === "string" ? reader.string() : (reader.skip(), "");
        const isHash = key === "mm_objects" || key === "mm_hash" || key === "hash";
        if (isHash && !reader.takeNil()) readMultimodalItem(reader, hashes, depth + 1);
        else if (!isHash) reader.skip();
      }
      return;
    }
    default:
      reader.skip();
  }
}
