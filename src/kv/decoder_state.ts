/** The state of a lane's decoding that goes with its blocks: what the event reader learned, and fingerprints. */

import type { DigestState } from "./batch_digests.ts";
import type { EventReaderState } from "./event_reader.ts";

export interface DecoderState {
  readonly reader: EventReaderState;
  readonly digests: DigestState;
}

/** What `cut` wrote; a peer of another make may give nothing, which is an empty state. */
export function readDecoderState(value: unknown): DecoderState {
  if (value === undefined || value === null) return { reader: { groups: [] }, digests: [] };
  const state = value as Partial<DecoderState>;
  const groups = state.reader?.groups ?? [];
  const digests = state.digests ?? [];
  const isGood = Array.isArray(groups) &&
    groups.every((row) => Array.isArray(row) && typeof row[0] === "number") &&
    Array.isArray(digests) &&
    digests.every((row) => Array.isArray(row) && /^[0-9]{1,20}$/.test(String(row[0])));
  if (!isGood) throw new TypeError("the cut's decoder state is not well made");
  return { reader: { ...state.reader, groups }, digests };
}
