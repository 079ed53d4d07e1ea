/**
 * Links a holding into its lane's tree, and forgets holdings and what goes with them.
 */

import { removeHolder } from "./holders";
import {
  dropHolding,
  dropNode,
  engineOf,
  firstOf,
  holdingAt,
  isNextTo,
  LANE_TOP,
  nextOf,
  nodeAt,
  nodeOf,
  nodeParent,
  nodeTag,
  previousOf,
  setFirst,
  setNext,
  setPrevious,
  slotOf,
} from "./records";
import { releasedTo, setReleasedTo, slotAt } from "./slots";
import { EDGES, ENGINES, engineTag, remove } from "./table";

/** Puts a holding in front of the children of `parent` (0 = the slot's own list). */
export function link(holding: u32, parent: u32, slot: u32): void {
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
export function dropLeaf(holding: u32): void {
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
export function dropTree(holding: u32): u32 {
  return dropSome(holding, 0xffffffff);
}

/**
 * Forgets up to `budget` of a holding and what is below it, leaves first, so that what is left is
 * whole. Returns how many; the holding itself is gone when it has no node any more.
 */
export function dropSome(holding: u32, budget: u32): u32 {
  let current = holding;
  let dropped: u32 = 0;
  while (dropped < budget) {
    let first = firstOf(holdingAt(current));
    while (first != 0) {
      current = first;
      first = firstOf(holdingAt(current));
    }
    const parent = previousOf(holdingAt(current));
    dropLeaf(current);
    dropped++;
    if (current == holding) break;
    // A leaf that was reached through first children has its parent in `previous`.
    current = parent;
  }
  return dropped;
}

/** Forgets up to `budget` holdings of a hidden slot; returns how many are left. */
export function release(slot: u32, budget: u32): u32 {
  const at = slotAt(slot);
  let current = releasedTo(slot);
  if (current == 0) current = load<u32>(at);
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
  setReleasedTo(slot, current);
  return load<u32>(at, 4);
}
