/**
 * Reads what a lane holds, parents before children, a piece at a time.
 */

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
