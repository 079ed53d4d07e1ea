/** The state of a lane's decoding that goes with its blocks: what the event reader learned, and fingerprints. */

import type { DigestState } from "./batch_digests.ts";
import type { EventReaderState } from "./event_reader.ts";
import type { NamespaceState } from "./namespaces.ts";

export interface DecoderState {
  readonly reader: EventReaderState;
  readonly digests: DigestState;
}

/**
 * What `cut` wrote; a peer of another make may give nothing, which is an empty state. Throws
 * `TypeError` for anything else, or the error that stands for a state that could not be read.
 */
export function readDecoderState(value: unknown): DecoderState {
  if (value === undefined || value === null) return { reader: { groups: [] }, digests: [] };
  if (value instanceof Error) throw value;
  if (typeof value !== "object") throw new TypeError("the cut's decoder state is no object");
  const state = value as Partial<DecoderState>;
  const groups = state.reader?.groups ?? [];
  const digests = state.digests ?? [];
  const namespaces = state.reader?.namespaces;
  const isGood = Array.isArray(groups) &&
    groups.every((row) => Array.isArray(row) && typeof row[0] === "number") &&
    Array.isArray(digests) &&
    digests.every((row) => Array.isArray(row) && /^[0-9]{1,20}$/.test(String(row[0]))) &&
    (namespaces === undefined || areColumns(namespaces));
  if (!isGood) throw new TypeError("the cut's decoder state is not well made");
  return { reader: { ...state.reader, groups }, digests };
}

function areColumns({ salts, blocks, of, counts }: NamespaceState): boolean {
  return Array.isArray(salts) && blocks instanceof BigUint64Array && of instanceof Int32Array &&
    (counts === undefined || counts instanceof Uint16Array);
}
