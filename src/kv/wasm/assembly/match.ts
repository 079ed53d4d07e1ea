/**
 * Look-ups: how far each lane holds a sequence, in each tier.
 */

import { reserve } from "./arena";
import { bound } from "./evict";
import { AHEAD, findEdge } from "./find";
import {
  ENTRY,
  entryAt,
  entrySlot,
  entryTiers,
  isSingle,
  listAt,
  listCount,
  listMixed,
} from "./holders";
import {
  holdingAt,
  nextTo,
  nodeAt,
  nodeHolders,
  nodeLocal,
  nodeParent,
  nodeTag,
  NUMBER_MASK,
  ROOT,
  ROOT_TAG,
  slotOf,
  touch,
} from "./records";
import { MAX_SLOTS, slotAt } from "./slots";
import { candidates, chunkAt, EDGES, edgeTag, firstNumber, seek } from "./table";

const MATCH_BYTES: usize = 20;
const MATCHES: usize = reserve(MAX_SLOTS * MATCH_BYTES);
const AHEAD_TAGS: usize = memory.data(16 * 4, 4);
const AHEAD_NODES: usize = memory.data(16 * 4, 4);

/** Where `matchEnd` writes its rows. */
export function matchesAt(): usize {
  return MATCHES;
}

let path: usize = reserve(1 << 16);
let pathRoom: u32 = 1 << 14;
let depth: u32 = 0;
let walkNode: u32 = ROOT;

export function matchBegin(): void {
  depth = 0;
  walkNode = ROOT;
}

// @ts-ignore: decorator
@inline
function step(node: u32): void {
  store<u32>(path + (<usize>depth << 2), node);
  depth++;
}

/** Walks on by `count` local hashes; false once a block is missing. */
export function matchFeed(locals: usize, count: u32): bool {
  if (depth + count > pathRoom) {
    let room = pathRoom * 2;
    while (room < depth + count) room *= 2;
    const larger = reserve(<usize>room << 2);
    memory.copy(larger, path, <usize>depth << 2);
    path = larger;
    pathRoom = room;
  }
  const end = locals + (<usize>count << 3);
  let node = walkNode;
  while (locals < end) {
    const next = nextTo(node, load<u64>(locals));
    if (next != 0) {
      node = next;
      step(node);
      locals += 8;
      continue;
    }
    const left = <u32>((end - locals) >> 3);
    const batch = left < AHEAD ? left : AHEAD;
    node = walkTable(node, locals, batch);
    if (node == 0) return false;
    locals += <usize>batch << 3;
  }
  walkNode = node;
  return true;
}

/**
 * Walks on by a few blocks, or to the first that is missing (0). The place of a block in the table
 * does not depend on what the table says about the block before it, so the places are read first:
 * the reads wait for memory together, not one after the other.
 */
function walkTable(node: u32, locals: usize, batch: u32): u32 {
  let tag = node == ROOT ? ROOT_TAG : nodeTag(nodeAt(node));
  for (let i: u32 = 0; i < batch; i++) {
    tag = edgeTag(tag, load<u64>(locals + (<usize>i << 3)));
    seek(EDGES, tag);
    const slots = candidates(chunkAt, tag);
    store<u32>(AHEAD_TAGS + (<usize>i << 2), tag);
    store<u32>(AHEAD_NODES + (<usize>i << 2), slots == 0 ? 0 : firstNumber(chunkAt, slots));
  }
  for (let i: u32 = 0; i < batch; i++) {
    const local = load<u64>(locals + (<usize>i << 3));
    const guess = load<u32>(AHEAD_NODES + (<usize>i << 2));
    const at = nodeAt(guess);
    if (guess != 0 && nodeLocal(at) == local && nodeParent(at) == node) {
      node = guess;
    } else {
      node = findEdge(load<u32>(AHEAD_TAGS + (<usize>i << 2)), node, local);
      if (node == 0) return 0;
    }
    step(node);
  }
  return node;
}

let query: u32 = 0;
let rows: u32 = 0;

// @ts-ignore: decorator
@inline
function rowAt(row: u32): usize {
  return MATCHES + <usize>row * MATCH_BYTES;
}

function addRow(handle: u32, blocks: u32): u32 {
  const at = rowAt(rows);
  store<u32>(at, handle);
  store<u32>(at, blocks, 4);
  store<u32>(at, blocks, 8);
  store<u32>(at, blocks, 12);
  store<u32>(at, blocks, 16);
  return rows++;
}

/** The first tier from `tier` on that is in `tiers`; those passed over end at `blocks`. */
// @ts-ignore: decorator
@inline
function descend(row: u32, tier: u32, tiers: u32, blocks: u32): u32 {
  while (tier < 4 && ((tiers >> tier) & 1) == 0) {
    store<u32>(rowAt(row) + 4 + (<usize>tier << 2), blocks);
    tier++;
  }
  return tier;
}

// @ts-ignore: decorator
@inline
function holdersCount(holders: u32): u32 {
  return isSingle(holders) ? 1 : listCount(listAt(holders));
}

// @ts-ignore: decorator
@inline
function holderSlot(holders: u32, index: u32): u32 {
  return isSingle(holders)
    ? slotOf(holdingAt(holders & NUMBER_MASK))
    : entrySlot(entryAt(listAt(holders), index));
}

// @ts-ignore: decorator
@inline
function lacksDeviceSomewhere(holders: u32): bool {
  return isSingle(holders) ? ((holders >>> 28) & 1) == 0 : listMixed(listAt(holders)) != 0;
}

/** Lanes that are being followed through slower tiers. */
let followed: u32 = 0;

/** Takes note of the tiers in which a lane holds the block after the first `blocks`. */
function follow(slot: u32, tiers: u32, blocks: u32): void {
  const at = slotAt(slot);
  if (load<u32>(at, 12) == query) {
    const tier = load<u32>(at, 20);
    if (tier == 4 || ((tiers >> tier) & 1) != 0) return;
    const next = descend(load<u32>(at, 16), tier, tiers, blocks);
    store<u32>(at, next, 20);
    if (next == 4) followed--;
    return;
  }
  const handle = load<u32>(at, 8);
  if ((tiers & 1) != 0 || handle == 0) return;
  const row = addRow(handle, blocks);
  const tier = descend(row, 0, tiers, blocks);
  store<u32>(at, query, 12);
  store<u32>(at, row, 16);
  store<u32>(at, tier, 20);
  if (tier != 4) followed++;
}

/** Rows of all lanes that hold some block of the path outside the device, but for their ends. */
function matchTiers(): void {
  followed = 0;
  for (let i: u32 = 0; i < depth; i++) {
    const holders = nodeHolders(nodeAt(load<u32>(path + (<usize>i << 2))));
    if (followed == 0 && !lacksDeviceSomewhere(holders)) continue;
    if (isSingle(holders)) {
      follow(slotOf(holdingAt(holders & NUMBER_MASK)), holders >>> 28, i);
      continue;
    }
    const list = listAt(holders);
    const end = entryAt(list, listCount(list));
    for (let entry = entryAt(list, 0); entry < end; entry += ENTRY) {
      follow(entrySlot(entry), entryTiers(entry), i);
    }
  }
}

/** A lane holds `blocks` blocks of the path and no more. */
// @ts-ignore: decorator
@inline
function endLane(slot: u32, blocks: u32): void {
  const at = slotAt(slot);
  if (load<u32>(at, 12) == query) {
    descend(load<u32>(at, 16), load<u32>(at, 20), 0, blocks);
  } else {
    const handle = load<u32>(at, 8);
    if (handle != 0) addRow(handle, blocks);
  }
}

/** Ends the walk; returns the number of rows (handle, device, host, disk, external; u32 each). */
export function matchEnd(): u32 {
  rows = 0;
  if (depth == 0) return 0;
  query++;
  if (query == 0) query = 1;
  let mixed = false;
  for (let i: u32 = 0; i < depth; i++) {
    const at = nodeAt(load<u32>(path + (<usize>i << 2)));
    if (bound != 0) touch(at);
    if (lacksDeviceSomewhere(nodeHolders(at))) mixed = true;
  }
  if (mixed) matchTiers();
  let below = nodeHolders(nodeAt(load<u32>(path + (<usize>(depth - 1) << 2))));
  let belowCount = holdersCount(below);
  for (let i: u32 = 0; i < belowCount; i++) endLane(holderSlot(below, i), depth);
  for (let d = depth - 1; d > 0; d--) {
    const above = nodeHolders(nodeAt(load<u32>(path + (<usize>(d - 1) << 2))));
    const aboveCount = holdersCount(above);
    let from: u32 = 0;
    let missing: u32 = 0;
    const stopped = aboveCount - belowCount;
    while (missing < stopped) {
      // Up to the first lane that stops here both lists agree; from there on they never do.
      let low = from;
      let high = aboveCount - 1;
      while (low < high) {
        const middle = (low + high) >> 1;
        const other = middle - missing;
        if (other < belowCount && holderSlot(above, middle) == holderSlot(below, other)) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      endLane(holderSlot(above, low), d);
      missing++;
      from = low + 1;
    }
    below = above;
    belowCount = aboveCount;
  }
  return rows;
}

/** The number of blocks of the last walk that some lane holds. */
export function matchDepth(): u32 {
  return depth;
}
