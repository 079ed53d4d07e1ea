/**
 * Where a block is: by the engine's name in a lane, and by its place in a sequence.
 */

import { engineOf, holdingAt, nextTo, nodeAt, nodeLocal, nodeParent, slotOf } from "./records";
import {
  candidates,
  chunkAt,
  EDGES,
  ENGINES,
  engineTag,
  firstNumber,
  further,
  seek,
} from "./table";

/** Blocks whose places are read before any of them is looked at. */
export const AHEAD: u32 = 16;

export function findEngine(engine: u64, slot: u32): u32 {
  return findNamed(engineTag(engine, slot), engine, slot);
}

export function findNamed(tag: u32, engine: u64, slot: u32): u32 {
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
export function findEdge(tag: u32, parent: u32, local: u64): u32 {
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
