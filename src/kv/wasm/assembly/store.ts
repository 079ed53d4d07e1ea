/**
 * Stores runs of blocks, and rows of snapshots.
 */

import { dropTree, link } from "./drop";
import { bound, makeRoom } from "./evict";
import {
  APPLIED,
  bump,
  CONFLICTS,
  CUT,
  DUPLICATES,
  EVICTED,
  FULL,
  RENAMED,
  resetResult,
  RESULT,
} from "./exchange";
import { AHEAD, findEdge, findEngine, findNamed } from "./find";
import { addHolder, holdingOn, setTiers } from "./holders";
import {
  copiesOf,
  holdingAt,
  isNextTo,
  makeHolding,
  makeNode,
  nodeAt,
  nodeLocal,
  nodeOf,
  nodeParent,
  nodeTag,
  ROOT,
  ROOT_TAG,
  setCopies,
  tiersOf,
  touch,
} from "./records";
import { slotAt } from "./slots";
import { chunkAt, EDGES, edgeTag, ENGINES, engineTag, insert, seek } from "./table";

/** Copies of one tier are four bits and stay at 15 once there. */
function addCopies(copies: u32, more: u32): u32 {
  for (let shift: u32 = 0; shift < 16; shift += 4) {
    const sum = ((copies >> shift) & 15) + ((more >> shift) & 15);
    copies = (copies & ~(<u32>15 << shift)) | ((sum > 15 ? 15 : sum) << shift);
  }
  return copies;
}

/**
 * Adds copies of one block below `parent` (0 = none). Returns its holding, or 0 if the engine's name
 * already stands for another block of the lane, or if there is no room (`FULL`). `nameTag` and `tag`
 * are the tags of the engine's name and of the block; `isParentNew` says that the parent cannot have
 * children yet.
 */
function put(
  slot: u32,
  parent: u32,
  engine: u64,
  local: u64,
  copies: u32,
  nameTag: u32,
  tag: u32,
  isParentNew: bool,
): u32 {
  const parentNode = parent != 0 ? nodeOf(holdingAt(parent)) : ROOT;
  const known = findNamed(nameTag, engine, slot);
  if (known != 0) {
    const at = holdingAt(known);
    const node = nodeOf(at);
    const nodeRecord = nodeAt(node);
    if (nodeParent(nodeRecord) != parentNode || nodeLocal(nodeRecord) != local) {
      bump(CONFLICTS);
      return 0;
    }
    const before = copiesOf(at);
    const after = addCopies(before, copies);
    setCopies(at, after);
    const tiers = tiersOf(after);
    if (tiers != tiersOf(before)) {
      setTiers(node, slot, tiers);
      bump(APPLIED);
    } else {
      bump(DUPLICATES);
    }
    touch(nodeRecord);
    madeNode = false;
    return known;
  }
  let node = isParentNew ? 0 : findEdge(tag, parentNode, local);
  if (node != 0) {
    const old = holdingOn(node, slot);
    if (old != 0) {
      // The same tokens under a new name: what the old name stood for is gone, and what was below.
      bump(RENAMED);
      const dropped = dropTree(old);
      store<u32>(RESULT + CUT, load<u32>(RESULT + CUT) + dropped);
      node = findEdge(tag, parentNode, local);
    }
  }
  if (!makeRoom(parent)) {
    bump(FULL);
    return 0;
  }
  // The node may have gone with the last of its holders to make room.
  if (bound != 0 && node != 0) node = findEdge(tag, parentNode, local);
  const fresh = node == 0;
  if (fresh) {
    node = makeNode(parentNode, local, tag);
    if (!isNextTo(node, parentNode)) insert(EDGES, tag, node);
  } else {
    touch(nodeAt(node));
  }
  const holding = makeHolding(engine, node, copies, slot);
  addHolder(node, slot, tiersOf(copies), holding, fresh);
  insert(ENGINES, nameTag, holding);
  link(holding, parent, slot);
  const counter = slotAt(slot) + 4;
  store<u32>(counter, load<u32>(counter) + 1);
  bump(APPLIED);
  madeNode = fresh;
  return holding;
}

/** Whether the last block that was put is one that no lane had. */
let madeNode: bool = false;

/**
 * Stores a run of blocks, each the child of the one before, the first the child of `parent` if
 * `hasParent`. Returns the number of blocks taken, or -1 when the parent is not held.
 */
export function storeRun(
  slot: u32,
  hasParent: bool,
  parent: u64,
  count: u32,
  engines: usize,
  locals: usize,
  tier: u32,
): i32 {
  resetResult();
  let above: u32 = 0;
  if (hasParent) {
    above = findEngine(parent, slot);
    if (above == 0) return -1;
  }
  const copies: u32 = 1 << (tier << 2);
  let tag = above != 0 ? nodeTag(nodeAt(nodeOf(holdingAt(above)))) : ROOT_TAG;
  let isParentNew = false;
  for (let i: u32 = 0; i < count; i++) {
    const offset = <usize>i << 3;
    if ((i & (AHEAD - 1)) == 0) readNames(slot, count - i, engines + offset);
    const local = load<u64>(locals + offset);
    tag = edgeTag(tag, local);
    const name = load<u32>(AHEAD_NAMES + (<usize>(i & (AHEAD - 1)) << 2));
    above = put(slot, above, load<u64>(engines + offset), local, copies, name, tag, isParentNew);
    if (above == 0) return i;
    isParentNew = madeNode;
  }
  return count;
}

const AHEAD_NAMES: usize = memory.data(16 * 4, 4);
let touched: u32 = 0;

/**
 * Computes the tags of the next names and reads their places in the table. No place depends on what
 * is found in another, so the reads wait for memory together, not one after the other.
 */
function readNames(slot: u32, count: u32, engines: usize): void {
  const batch = count < AHEAD ? count : AHEAD;
  let sum: u32 = 0;
  for (let i: u32 = 0; i < batch; i++) {
    const name = engineTag(load<u64>(engines + (<usize>i << 3)), slot);
    store<u32>(AHEAD_NAMES + (<usize>i << 2), name);
    seek(ENGINES, name);
    sum += load<u32>(chunkAt);
  }
  touched += sum;
}

/**
 * Stores rows of a snapshot, `base` being the number of the first. `parents` (i32 each) are row
 * numbers, -1 where a sequence starts; a row whose parent is below `base` has the parent's engine
 * hash in its place in `names`. Each row has a mask of `tiers` (u8) and the `copies` (u16) that each
 * of them holds. `holdings` and `tags` are room for 4 bytes a row. Returns the number of rows taken: less than
 * `count` when a parent is missing or does not come first, a name is taken, a block has two names, or
 * nothing is held. With a bound, rows that do not fit are left out.
 */
export function loadRows(
  slot: u32,
  count: u32,
  base: i32,
  parents: usize,
  names: usize,
  engines: usize,
  locals: usize,
  tiers: usize,
  copies: usize,
  holdings: usize,
  tags: usize,
): u32 {
  resetResult();
  for (let i: u32 = 0; i < count; i++) {
    const word = <usize>i << 2;
    const parent = load<i32>(parents + word);
    let tag = ROOT_TAG;
    if (parent >= base) {
      if (parent >= base + <i32>i) return i;
      tag = load<u32>(tags + (<usize>(parent - base) << 2));
    } else if (parent >= 0) {
      const above = findEngine(load<u64>(names + (<usize>i << 3)), slot);
      if (above != 0) tag = nodeTag(nodeAt(nodeOf(holdingAt(above))));
    }
    store<u32>(tags + word, edgeTag(tag, load<u64>(locals + (<usize>i << 3))));
  }
  for (let i: u32 = 0; i < count; i++) {
    const offset = <usize>i << 3;
    const word = <usize>i << 2;
    if ((i & (AHEAD - 1)) == 0) readNames(slot, count - i, engines + offset);
    const parent = load<i32>(parents + word);
    let above: u32 = 0;
    if (parent >= 0) {
      // A held block of this call may have been evicted since, and its number given to another.
      above = parent < base
        ? findEngine(load<u64>(names + offset), slot)
        : bound == 0
        ? load<u32>(holdings + (<usize>(parent - base) << 2))
        : findEngine(load<u64>(engines + (<usize>(parent - base) << 3)), slot);
      if (above == 0) {
        if (bound == 0) return i;
        bump(EVICTED);
        continue;
      }
    }
    const few = <u32>load<u16>(copies + (<usize>i << 1));
    const mask = <u32>load<u8>(tiers + i);
    const held = (few > 15 ? 15 : few) *
      ((mask & 1) | ((mask & 2) << 3) | ((mask & 4) << 6) | ((mask & 8) << 9));
    if (held == 0) return i;
    const engine = load<u64>(engines + offset);
    const local = load<u64>(locals + offset);
    const name = load<u32>(AHEAD_NAMES + (<usize>(i & (AHEAD - 1)) << 2));
    const tag = load<u32>(tags + word);
    const holding = put(slot, above, engine, local, held, name, tag, false);
    // Two names for one block: the first is gone with what was below it, and so are those rows.
    if (load<u32>(RESULT + RENAMED) != 0) return i;
    store<u32>(holdings + word, holding);
    if (holding == 0) {
      if (load<u32>(RESULT + FULL) == 0) return i;
      bump(EVICTED);
    }
  }
  return count;
}

/** Never used; it keeps the reads ahead from being left out. */
export function touchedWords(): u32 {
  return touched;
}
