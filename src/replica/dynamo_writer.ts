/**
 * Writes Dynamo's dump: one JSON object, `{"<model>:<group>":{"block_size":n,"events":[...]}}`, with
 * each event on a line of its own, so that it can be read and printed a line at a time.
 *
 * Each event is a `stored` event with a made-up id, parents before children, so that a Dynamo
 * replica can recover from us. The shape has no cursor, no epoch, no decoder state and no copies:
 * see docs/dump-format.md for what is lost.
 */

import { TIERS } from "../kv/blocks.ts";
import { RowBuilder } from "../kv/lane_blocks.ts";
import { partitionId } from "../kv/lane_key.ts";
import { cutLane, type DumpSource, SLICE_BYTES } from "./dump_writer.ts";
import { dynamoPartition, dynamoWorkerId } from "./dynamo_ids.ts";
import { dumpable, type LaneCut, type RecoverableLane, tellable } from "./lane_port.ts";
import { SliceBuffer } from "./slice_buffer.ts";

const TIER_NAMES: Record<(typeof TIERS)[number], string> = {
  device: "device",
  host: "host_pinned",
  disk: "disk",
  external: "external",
};

/** Blocks in one event at most, so that no event grows without bound. */
const MAX_EVENT_BLOCKS = 256;

/** The dump as slices of about 64 KiB. Lanes are cut one by one, as in our own format. */
export async function* dynamoSlices(
  source: DumpSource,
): AsyncGenerator<Uint8Array<ArrayBuffer>, void> {
  const out = new SliceBuffer(SLICE_BYTES * 2);
  const { store } = source;
  const rows = new RowBuilder(false);
  let eventId = 0;
  out.text("{");
  let first = true;
  for (const lanes of partitions(source)) {
    const [some] = lanes;
    if (some === undefined) continue;
    out.text(
      `${first ? "" : ","}${JSON.stringify(dynamoPartition(some.key))}:` +
        `{"block_size":${store.blockSize(some.key)},"events":[`,
    );
    first = false;
    let firstEvent = true;
    for (const lane of lanes) {
      const cut = await cutLane(source, lane, rows);
      if (cut === undefined) continue;
      source.onLane?.(cut);
      for (const text of eventTexts(cut, () => eventId++)) {
        out.text(firstEvent ? text : `,\n${text}`);
        firstEvent = false;
        if (out.length >= SLICE_BYTES) yield out.take();
      }
    }
    out.text("]}");
  }
  out.text("}");
  yield out.take();
}

/** A lower bound of the bytes of so many blocks, for `?max_bytes=`. */
export function dynamoLeastBytes(blocks: number): number {
  return 2 + blocks * `{"block_hash":0,"tokens_hash":0,"mm_extra_info":null}`.length;
}

function partitions(source: DumpSource): Iterable<RecoverableLane[]> {
  const byId = new Map<string, RecoverableLane[]>();
  for (const lane of source.store.lanes()) {
    // Also lanes whose events have no numbers: this shape says of no lane where it stands in them.
    const isThere = dumpable(lane) || tellable(lane);
    if (!isThere || source.wanted?.(lane) === false) continue;
    const id = partitionId(lane.key);
    const lanes = byId.get(id);
    if (lanes === undefined) byId.set(id, [lane]);
    else lanes.push(lane);
  }
  return byId.values();
}

/** One event for each chain of rows, and one more for each further tier of it. */
function* eventTexts(cut: LaneCut, nextId: () => number): Generator<string> {
  const { blocks, key } = cut;
  const worker = dynamoWorkerId(key.worker);
  let from = 0;
  while (from < blocks.count) {
    let to = from + 1;
    while (
      to < blocks.count && to - from < MAX_EVENT_BLOCKS && blocks.parents[to] === to - 1 &&
      blocks.tiers[to] === blocks.tiers[from]
    ) {
      to += 1;
    }
    const parentRow = blocks.parents[from] as number;
    const parent = parentRow < 0 ? "null" : `${blocks.engines[parentRow] as bigint}`;
    let list = "";
    for (let row = from; row < to; row += 1) {
      list += `${row === from ? "" : ","}{"block_hash":${blocks.engines[row] as bigint},` +
        `"tokens_hash":${blocks.locals[row] as bigint},"mm_extra_info":null}`;
    }
    const mask = blocks.tiers[from] as number;
    for (const [bit, tier] of TIERS.entries()) {
      if ((mask & (1 << bit)) === 0) continue;
      yield `{"worker_id":${worker},"storage_tier":"${TIER_NAMES[tier]}",` +
        `"event":{"event_id":${nextId()},"data":{"stored":{"parent_hash":${parent},` +
        `"start_position":null,"blocks":[${list}]}},"dp_rank":${key.dpRank}}}`;
    }
    from = to;
  }
}
