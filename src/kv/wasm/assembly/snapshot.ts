/**
 * Reads what a slot holds, parents before children, a piece at a time. Between two pieces the slot
 * must not change; others may, and any number of copies may be under way.
 */

import { RESULT } from "./exchange";
import {
  copiesOf,
  engineOf,
  firstOf,
  holdingAt,
  nextOf,
  nodeAt,
  nodeLocal,
  nodeOf,
  previousOf,
} from "./records";
import { slotAt } from "./slots";

/** The holding to begin with, at depth 0; 0 = the slot is empty. */
export function firstHolding(slot: u32): u32 {
  return load<u32>(slotAt(slot));
}

/**
 * Writes the next rows, at most `room`, parents before children: depth in the tree (u32), engine
 * hash, local hash (u64) and copies (u16), in columns. Begins with holding `from` at depth `level`;
 * leaves where to go on in the result (u32 each; holding 0 = that was all). Returns how many.
 */
export function snapshotRows(
  from: u32,
  level: u32,
  room: u32,
  depths: usize,
  engines: usize,
  locals: usize,
  copies: usize,
): u32 {
  let count: u32 = 0;
  let current = from;
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
  store<u32>(RESULT, current);
  store<u32>(RESULT, level, 4);
  return count;
}
