/** The dump that docs/dump-format.md shows and explains. */

import type { LaneCut } from "../../../src/replica/lane_port.ts";
import { dumpSlices } from "../../../src/replica/dump_writer.ts";
import { Shelf } from "./shelf.ts";

export const EXAMPLE_CUTS: readonly LaneCut[] = [
  {
    key: { model: "org/model:7b", group: "default", worker: "0", dpRank: 0 },
    epoch: "0b6f5d3e-6c3b-4a57-9a3f-1f0f5a0a7c11",
    cursor: 13226331709069118873n,
    decoderState: { reader: { groups: [] }, digests: [] },
    blocks: {
      count: 3,
      engines: BigUint64Array.of(1n, 2n, 18446744073709551615n),
      locals: BigUint64Array.of(9143094415614847814n, 12124091508212882195n, 3n),
      parents: Int32Array.of(-1, 0, 1),
      keys: new BigUint64Array(0),
      tiers: Uint8Array.of(1, 1, 1),
      copies: Uint16Array.of(1, 1, 1),
    },
  },
  {
    key: { model: "org/model:7b", group: "default", worker: "pod-a", dpRank: 1 },
    epoch: "9d2f4c55-77e3-4d0c-8a4e-6f1b6a3f2d20",
    cursor: 7n,
    decoderState: undefined,
    degraded: "the replay ring starts at batch 5",
    blocks: {
      count: 4,
      engines: BigUint64Array.of(10n, 11n, 12n, 13n),
      locals: BigUint64Array.of(20n, 21n, 22n, 23n),
      parents: Int32Array.of(-1, 0, 0, -1),
      keys: new BigUint64Array(0),
      tiers: Uint8Array.of(1, 3, 1, 4),
      copies: Uint16Array.of(1, 1, 2, 1),
    },
  },
];

/** Its text, with the fixed moment that the document has. */
export async function exampleDump(): Promise<string> {
  const slices = dumpSlices({
    store: new Shelf(EXAMPLE_CUTS, 16),
    replica: "6a1f0b7e-30c5-4a7d-b7b0-5a6b3c2d1e0f",
    nowMs: Date.UTC(2026, 10, 30, 12),
    exportLoad: () => [{ worker: "0", dpRank: 0, prefillTokens: 512, decodeBlocks: 40 }],
  });
  const decoder = new TextDecoder();
  return (await Array.fromAsync(slices)).map((slice) => decoder.decode(slice)).join("");
}
