/**
 * Removes copies of blocks, and what cannot stay without them.
 */

import { dropLeaf, dropSome, dropTree } from "./drop";
import { APPLIED, bump, CUT, resetResult, RESULT, UNKNOWN } from "./exchange";
import { findEngine } from "./find";
import { holdingOn, setTiers } from "./holders";
import {
  copiesOf,
  firstOf,
  holdingAt,
  nextOf,
  nodeAt,
  nodeOf,
  nodeParent,
  previousOf,
  ROOT,
  setCopies,
  slotOf,
  tiersOf,
} from "./records";

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

/** How many more blocks this call may take along with those that it names. */
let budget: u32 = 0;

const GONE: u32 = 0;
const NONE: u32 = 1;
const UNFINISHED: u32 = 2;

/** Removes one copy. `NONE` if there is none; `UNFINISHED` if the budget ended before. */
function removeCopy(holding: u32, tier: u32): u32 {
  const at = holdingAt(holding);
  const shift = tier << 2;
  const before = copiesOf(at);
  if (((before >> shift) & 15) == 0) return NONE;
  const copies = before - (<u32>1 << shift);
  if (copies == 0) {
    const dropped = dropSome(holding, budget + 1);
    const isWhole = nodeOf(at) == 0;
    const below = isWhole ? dropped - 1 : dropped;
    store<u32>(RESULT + CUT, load<u32>(RESULT + CUT) + below);
    budget -= min(budget, below);
    if (!isWhole) return UNFINISHED;
    bump(APPLIED);
    return GONE;
  }
  bump(APPLIED);
  setCopies(at, copies);
  if (((copies >> shift) & 15) != 0) return GONE;
  const tiers = tiersOf(copies);
  setTiers(nodeOf(at), slotOf(at), tiers);
  // A faster tier still carries the sequence over this block; else the tier ends here.
  if ((tiers & ((<u32>1 << tier) - 1)) == 0 && firstOf(at) != 0) cutTier(holding, tier);
  return GONE;
}

/**
 * Removes one copy in `tier` of each named block, and what cannot stay below them, which is about
 * `most` blocks at most. Returns the number of names that are done with: less than `count` when there
 * is more to take along; the names from there on are for another call. A name that was unknown before
 * the call counts as unknown; one that goes because an earlier one of the same call took it along
 * does not.
 */
export function removeRun(slot: u32, count: u32, engines: usize, tier: u32, most: u32): u32 {
  resetResult();
  budget = most;
  const shift = tier << 2;
  if (count > 1) {
    for (let i: u32 = 0; i < count; i++) {
      const holding = findEngine(load<u64>(engines + (<usize>i << 3)), slot);
      if (holding == 0 || ((copiesOf(holdingAt(holding)) >> shift) & 15) == 0) bump(UNKNOWN);
    }
  }
  for (let i: u32 = 0; i < count; i++) {
    const holding = findEngine(load<u64>(engines + (<usize>i << 3)), slot);
    const done = holding == 0 ? NONE : removeCopy(holding, tier);
    if (done == NONE && count == 1) bump(UNKNOWN);
    if (done == UNFINISHED) {
      // Those that are left are counted by the call that goes on.
      store<u32>(RESULT + UNKNOWN, 0);
      return i;
    }
  }
  return count;
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
