/**
 * The prefix index: which lanes hold which blocks, one partition to an instance.
 *
 * One rule carries everything: a lane holds a node only while it holds the node's parent. So the
 * holders of a block are a subset of the holders of the block before it, equal counts mean equal
 * sets, and a look-up has to compare lists only where the counts differ.
 *
 * Lanes are known here by slot numbers. A slot with handle 0 is hidden: a lane that was closed or
 * cleared and is being taken apart in slices, or one that is being loaded.
 */

import { reserve, usedBytes } from "./arena";
import {
  addHolder,
  ENTRY,
  entryAt,
  entrySlot,
  entryTiers,
  holdingOn,
  isSingle,
  listAt,
  listCount,
  listMixed,
  removeHolder,
  setTiers,
} from "./holders";
import {
  ageOf,
  copiesOf,
  dropHolding,
  dropNode,
  engineOf,
  firstOf,
  holdingAt,
  holdingsLive,
  holdingsMade,
  isNextTo,
  LANE_TOP,
  makeHolding,
  makeNode,
  nextEpoch,
  nextOf,
  nextTo,
  nodeAt,
  nodeHolders,
  nodeLocal,
  nodeOf,
  nodeParent,
  nodesLive,
  nodeTag,
  NUMBER_MASK,
  previousOf,
  ROOT,
  ROOT_TAG,
  setCopies,
  setFirst,
  setNext,
  setPrevious,
  slotOf,
  tiersOf,
  touch,
} from "./records";
import {
  candidates,
  chunkAt,
  createTable,
  edgeTag,
  EDGES,
  ENGINES,
  engineTag,
  firstNumber,
  further,
  insert,
  remove,
  seek,
} from "./table";
import { chain, xxh3 } from "./xxh3";

// ------------------------------------------------------------------------------- shared memory

/** What callers write before a call and read after one. */
const STAGING_BYTES: usize = 1 << 19;
const STAGING: usize = reserve(STAGING_BYTES);
const RESULT: usize = reserve(64);
const MAX_SLOTS: usize = 65536;
const MATCH_BYTES: usize = 20;
const MATCHES: usize = reserve(MAX_SLOTS * MATCH_BYTES);

export function stagingAt(): usize {
  return STAGING;
}
export function stagingBytes(): usize {
  return STAGING_BYTES;
}
export function resultAt(): usize {
  return RESULT;
}
export function matchesAt(): usize {
  return MATCHES;
}

// Offsets in RESULT, u32 each.
const APPLIED: usize = 0;
const DUPLICATES: usize = 4;
const UNKNOWN: usize = 8;
const EVICTED: usize = 12;
const RENAMED: usize = 16;
const CONFLICTS: usize = 20;
const CUT: usize = 24;
const FULL: usize = 28;

// @ts-ignore: decorator
@inline
function bump(counter: usize): void {
  store<u32>(RESULT + counter, load<u32>(RESULT + counter) + 1);
}

function resetResult(): void {
  memory.fill(RESULT, 0, 32);
}

// ------------------------------------------------------------------------------------- hashing

/**
 * Local hashes of `count` blocks: XXH3-64 of `windowBytes` at every `strideBytes` from `tokens`,
 * written to `out` (u64 each).
 */
export function hashBlocks(
  tokens: usize,
  count: u32,
  strideBytes: u32,
  windowBytes: u32,
  seed: u64,
  out: usize,
): void {
  for (let i: u32 = 0; i < count; i++) {
    store<u64>(out, xxh3(tokens, windowBytes, seed));
    tokens += strideBytes;
    out += 8;
  }
}

export function hashBytes(at: usize, length: u32, seed: u64): u64 {
  return xxh3(at, length, seed);
}

/**
 * Chain keys of `count` rows. `parents` (i32 each) are row numbers from `base` on; a row whose
 * parent is below `base` finds the parent's key in its own place in `keys`; -1 starts a sequence.
 */
export function chainKeys(
  count: u32,
  base: i32,
  parents: usize,
  locals: usize,
  keys: usize,
  seed: u64,
): void {
  for (let i: u32 = 0; i < count; i++) {
    const parent = load<i32>(parents + (<usize>i << 2));
    const local = load<u64>(locals + (<usize>i << 3));
    const at = keys + (<usize>i << 3);
    if (parent < 0) store<u64>(at, local);
    else if (parent < base) store<u64>(at, chain(load<u64>(at), local, seed));
    else store<u64>(at, chain(load<u64>(keys + (<usize>(parent - base) << 3)), local, seed));
  }
}

// --------------------------------------------------------------------------------------- slots
// 0 first u32 | 4 count u32 | 8 handle u32 | 12 query u32: the last look-up that followed the lane
// through slower tiers | 16 its row u32 | 20 the tier it has come to u32 (4 = none is left)

const SLOT_BYTES: usize = 24;
const SLOTS: usize = reserve(MAX_SLOTS * SLOT_BYTES);

// @ts-ignore: decorator
@inline
function slotAt(slot: u32): usize {
  return SLOTS + <usize>slot * SLOT_BYTES;
}

/** Shows a slot as lane `handle` in look-ups, or hides it (0). */
export function setHandle(slot: u32, handle: u32): void {
  store<u32>(slotAt(slot), handle, 8);
}

export function slotCount(slot: u32): u32 {
  return load<u32>(slotAt(slot), 4);
}

// ------------------------------------------------------------------------------------ look-ups

function findEngine(engine: u64, slot: u32): u32 {
  return findNamed(engineTag(engine, slot), engine, slot);
}

function findNamed(tag: u32, engine: u64, slot: u32): u32 {
  seek(ENGINES, tag);
  do {
    let slots = candidates(chunkAt, tag);
    while (slots != 0) {
      const holding = firstNumber(chunkAt, slots);
      const at = holdingAt(holding);
      if (engineOf(at) == engine && slotOf(at) == slot) return holding;
      slots &= slots - 1;
    }
  } while (further());
  return 0;
}

/** The child of a node with a local hash, or 0. */
function findEdge(tag: u32, parent: u32, local: u64): u32 {
  const next = nextTo(parent, local);
  if (next != 0) return next;
  seek(EDGES, tag);
  do {
    let slots = candidates(chunkAt, tag);
    while (slots != 0) {
      const node = firstNumber(chunkAt, slots);
      const at = nodeAt(node);
      if (nodeLocal(at) == local && nodeParent(at) == parent) return node;
      slots &= slots - 1;
    }
  } while (further());
  return 0;
}

// ------------------------------------------------------------------------- linking and dropping

/** Puts a holding in front of the children of `parent` (0 = the slot's own list). */
function link(holding: u32, parent: u32, slot: u32): void {
  const at = holdingAt(holding);
  let next: u32;
  if (parent != 0) {
    const parentAt = holdingAt(parent);
    next = firstOf(parentAt);
    setFirst(parentAt, holding);
    setPrevious(at, parent);
  } else {
    next = load<u32>(slotAt(slot));
    store<u32>(slotAt(slot), holding);
    setPrevious(at, LANE_TOP | slot);
  }
  setNext(at, next);
  if (next != 0) setPrevious(holdingAt(next), holding);
}

function unlink(holding: u32): void {
  const at = holdingAt(holding);
  const previous = previousOf(at);
  const next = nextOf(at);
  if ((previous & LANE_TOP) != 0) {
    store<u32>(slotAt(previous & ~LANE_TOP), next);
  } else {
    const previousAt = holdingAt(previous);
    if (firstOf(previousAt) == holding) setFirst(previousAt, next);
    else setNext(previousAt, next);
  }
  if (next != 0) setPrevious(holdingAt(next), previous);
}

/** Forgets a holding that has no children. */
function dropLeaf(holding: u32): void {
  unlink(holding);
  const at = holdingAt(holding);
  const slot = slotOf(at);
  const node = nodeOf(at);
  remove(ENGINES, engineTag(engineOf(at), slot), holding);
  if (removeHolder(node, slot)) {
    const nodeRecord = nodeAt(node);
    if (!isNextTo(node, nodeParent(nodeRecord))) remove(EDGES, nodeTag(nodeRecord), node);
    dropNode(node);
  }
  dropHolding(holding);
  const counter = slotAt(slot) + 4;
  store<u32>(counter, load<u32>(counter) - 1);
}

/** Forgets a holding and all below it, leaves first. Returns how many. */
function dropTree(holding: u32): u32 {
  let current = holding;
  let dropped: u32 = 0;
  while (true) {
    let first = firstOf(holdingAt(current));
    while (first != 0) {
      current = first;
      first = firstOf(holdingAt(current));
    }
    const parent = previousOf(holdingAt(current));
    dropLeaf(current);
    dropped++;
    if (current == holding) return dropped;
    // A leaf that was reached through first children has its parent in `previous`.
    current = parent;
  }
}

/** Forgets up to `budget` holdings of a slot; returns how many are left. */
export function release(slot: u32, budget: u32): u32 {
  const at = slotAt(slot);
  let current = load<u32>(at);
  while (budget > 0 && current != 0) {
    let first = firstOf(holdingAt(current));
    while (first != 0) {
      current = first;
      first = firstOf(holdingAt(current));
    }
    const previous = previousOf(holdingAt(current));
    dropLeaf(current);
    budget--;
    current = (previous & LANE_TOP) != 0 ? load<u32>(at) : previous;
  }
  return load<u32>(at, 4);
}

// ----------------------------------------------------------------------------------- the bound

let bound: u32 = 0;
/** Without a bound of its own an index ends here, before 4 GiB of memory do. */
const MOST_HOLDINGS: u32 = 60_000_000;
let epochLeft: u32 = 0;
let hand: u32 = 0;
/** The block above the last one evicted, and how old that one was. */
let suspect: u32 = 0;
let suspectAge: u32 = 0;
/** Leaves looked at for each eviction that starts on another sequence. */
const SAMPLE: i32 = 8;
/** Holdings passed before a smaller sample has to do. */
const PATIENCE: u32 = 4096;

/** Most holdings to keep; 0 = no bound. */
export function setBound(holdings: u32): void {
  bound = holdings;
  epochLeft = (holdings >> 3) + 1;
}

// @ts-ignore: decorator
@inline
function isLeaf(holding: u32): bool {
  const at = holdingAt(holding);
  return nodeOf(at) != 0 && firstOf(at) == 0;
}

/**
 * Forgets one block at the end of a sequence, nearly the one that was least recently stored or
 * matched: the oldest of a few leaves below a hand that goes round over all holdings. Then the blocks
 * above it, as long as they are as old: cold sequences go as a whole, from their end. False when there
 * is nothing to forget: all there is leads to `spared`.
 */
function evict(spared: u32): bool {
  let victim: u32 = 0;
  if (suspect != 0 && suspect != spared && isLeaf(suspect)) {
    if (ageOf(nodeAt(nodeOf(holdingAt(suspect)))) >= suspectAge) victim = suspect;
  }
  if (victim == 0) {
    let oldest: u32 = 0;
    let sample = SAMPLE;
    const most: u32 = 2 * holdingsMade;
    for (let steps: u32 = 0; steps < most; steps++) {
      if (hand <= 1) hand = holdingsMade;
      hand--;
      if (hand == spared || !isLeaf(hand)) continue;
      const age = ageOf(nodeAt(nodeOf(holdingAt(hand))));
      if (victim == 0 || age > oldest) {
        victim = hand;
        oldest = age;
      }
      sample--;
      if (sample == 0 || steps > PATIENCE) break;
    }
    if (victim == 0) return false;
    suspectAge = oldest;
  }
  const at = holdingAt(victim);
  const previous = previousOf(at);
  suspect = (previous & LANE_TOP) == 0 && nextOf(at) == 0 && firstOf(holdingAt(previous)) == victim
    ? previous
    : 0;
  dropLeaf(victim);
  bump(EVICTED);
  return true;
}

// ---------------------------------------------------------------------------------- store, load

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
  if (bound != 0) {
    if (--epochLeft == 0) {
      epochLeft = (bound >> 3) + 1;
      nextEpoch();
    }
    if (holdingsLive >= bound) {
      if (!evict(parent)) {
        bump(FULL);
        return 0;
      }
      if (node != 0) node = findEdge(tag, parentNode, local);
    }
  } else if (holdingsLive >= MOST_HOLDINGS) {
    bump(FULL);
    return 0;
  }
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

const AHEAD: u32 = 16;
const AHEAD_NAMES: usize = memory.data(16 * 4, 4);
const AHEAD_TAGS: usize = memory.data(16 * 4, 4);
const AHEAD_NODES: usize = memory.data(16 * 4, 4);
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

// --------------------------------------------------------------------------------------- remove

/** The holding after `holding` and its subtree, below `top`; 0 when there is none. */
function after(holding: u32, top: u32): u32 {
  let current = holding;
  while (current != top) {
    const next = nextOf(holdingAt(current));
    if (next != 0) return next;
    let previous = previousOf(holdingAt(current));
    while (firstOf(holdingAt(previous)) != current) {
      current = previous;
      previous = previousOf(holdingAt(current));
    }
    current = previous;
  }
  return 0;
}

/** Takes a tier from all that is below `top`; what has no other tier goes, with what is below it. */
function cutTier(top: u32, tier: u32): void {
  const mask: u32 = ~(<u32>15 << (tier << 2));
  let current = firstOf(holdingAt(top));
  while (current != 0) {
    const at = holdingAt(current);
    const before = copiesOf(at);
    const copies = before & mask;
    if (copies == 0) {
      const next = after(current, top);
      const dropped = dropTree(current);
      store<u32>(RESULT + CUT, load<u32>(RESULT + CUT) + dropped);
      current = next;
      continue;
    }
    if (copies != before) {
      setCopies(at, copies);
      setTiers(nodeOf(at), slotOf(at), tiersOf(copies));
    }
    const first = firstOf(at);
    current = first != 0 ? first : after(current, top);
  }
}

/** Removes one copy; false if there is none. */
function removeCopy(holding: u32, tier: u32): bool {
  const at = holdingAt(holding);
  const shift = tier << 2;
  const before = copiesOf(at);
  if (((before >> shift) & 15) == 0) return false;
  const copies = before - (<u32>1 << shift);
  bump(APPLIED);
  if (((copies >> shift) & 15) != 0) {
    setCopies(at, copies);
    return true;
  }
  if (copies == 0) {
    const dropped = dropTree(holding) - 1;
    store<u32>(RESULT + CUT, load<u32>(RESULT + CUT) + dropped);
    return true;
  }
  setCopies(at, copies);
  const tiers = tiersOf(copies);
  setTiers(nodeOf(at), slotOf(at), tiers);
  // A faster tier still carries the sequence over this block; else the tier ends here.
  if ((tiers & ((<u32>1 << tier) - 1)) == 0 && firstOf(at) != 0) cutTier(holding, tier);
  return true;
}

/**
 * Removes one copy in `tier` of each named block. A name that was unknown before the call counts
 * as unknown; one that goes because an earlier one of the same call took it along does not.
 */
export function removeRun(slot: u32, count: u32, engines: usize, tier: u32): void {
  resetResult();
  const shift = tier << 2;
  if (count > 1) {
    for (let i: u32 = 0; i < count; i++) {
      const holding = findEngine(load<u64>(engines + (<usize>i << 3)), slot);
      if (holding == 0 || ((copiesOf(holdingAt(holding)) >> shift) & 15) == 0) bump(UNKNOWN);
    }
  }
  for (let i: u32 = 0; i < count; i++) {
    const holding = findEngine(load<u64>(engines + (<usize>i << 3)), slot);
    if ((holding == 0 || !removeCopy(holding, tier)) && count == 1) bump(UNKNOWN);
  }
}

/**
 * Takes the slowest tier from a block, then forgets it and the blocks above it up to one that has
 * another child or is in the slowest tier itself. Returns how many went.
 */
export function trim(slot: u32, engine: u64): u32 {
  let holding = findEngine(engine, slot);
  if (holding == 0) return 0;
  const end = holdingAt(holding);
  const copies = copiesOf(end) & 0x0fff;
  if (copies != 0) {
    setCopies(end, copies);
    setTiers(nodeOf(end), slot, tiersOf(copies));
  }
  let dropped: u32 = 0;
  while (holding != 0) {
    const at = holdingAt(holding);
    if (firstOf(at) != 0 || (dropped > 0 && copiesOf(at) >> 12 != 0)) break;
    const parent = nodeParent(nodeAt(nodeOf(at)));
    dropLeaf(holding);
    dropped++;
    holding = parent == ROOT ? 0 : holdingOn(parent, slot);
  }
  return dropped;
}

// ---------------------------------------------------------------------------------------- match

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

// ------------------------------------------------------------------------------------- snapshot

let snapshotAt: u32 = 0;
let snapshotDepth: u32 = 0;

export function snapshotBegin(slot: u32): void {
  snapshotAt = load<u32>(slotAt(slot));
  snapshotDepth = 0;
}

/**
 * Writes the next rows, at most `room`, parents before children: depth in the tree (u32), engine
 * hash, local hash (u64) and copies (u16), in columns. Returns how many; 0 = there are no more.
 */
export function snapshotRows(
  room: u32,
  depths: usize,
  engines: usize,
  locals: usize,
  copies: usize,
): u32 {
  let count: u32 = 0;
  let current = snapshotAt;
  let level = snapshotDepth;
  while (current != 0 && count < room) {
    const at = holdingAt(current);
    store<u32>(depths + (<usize>count << 2), level);
    store<u64>(engines + (<usize>count << 3), engineOf(at));
    store<u64>(locals + (<usize>count << 3), nodeLocal(nodeAt(nodeOf(at))));
    store<u16>(copies + (<usize>count << 1), <u16>copiesOf(at));
    count++;
    const first = firstOf(at);
    if (first != 0) {
      current = first;
      level++;
      continue;
    }
    while (true) {
      const next = nextOf(holdingAt(current));
      if (next != 0) {
        current = next;
        break;
      }
      if (level == 0) {
        current = 0;
        break;
      }
      let previous = previousOf(holdingAt(current));
      while (firstOf(holdingAt(previous)) != current) {
        current = previous;
        previous = previousOf(holdingAt(current));
      }
      current = previous;
      level--;
    }
  }
  snapshotAt = current;
  snapshotDepth = level;
  return count;
}

// ---------------------------------------------------------------------------------------- totals

export function liveHoldings(): u32 {
  return holdingsLive;
}
export function liveNodes(): u32 {
  return nodesLive;
}
/** Never used; it keeps the reads ahead from being left out. */
export function touchedWords(): u32 {
  return touched;
}

/** Bytes of records, lists and tables. */
export function bytesUsed(): f64 {
  return <f64>usedBytes;
}

createTable(EDGES);
createTable(ENGINES);
