/**
 * The prefix index: which lanes hold which blocks, one partition to an instance.
 *
 * One rule carries everything: a lane holds a node only while it holds the node's parent. So the
 * holders of a block are a subset of the holders of the block before it, equal counts mean equal
 * sets, and a look-up has to compare lists only where the counts differ.
 *
 * This file is what the outside sees.
 */

import { usedBytes } from "./arena";
import { holdingsLive, nodesLive } from "./records";
import { createTable, EDGES, ENGINES } from "./table";

export { stagingAt, stagingBytes, resultAt } from "./exchange";
export { hashBlocks, hashBytes, chainKeys } from "./hashing";
export { pin, setHandle, slotCount, unpin } from "./slots";
export { release } from "./drop";
export { setBound } from "./evict";
export { storeRun, loadRows, touchedWords } from "./store";
export { removeRun, trim } from "./remove";
export { matchesAt, matchBegin, matchFeed, matchEnd, matchDepth } from "./match";
export { firstHolding, snapshotRows } from "./snapshot";

export function liveHoldings(): u32 {
  return holdingsLive;
}
export function liveNodes(): u32 {
  return nodesLive;
}

/** Bytes of records, lists and tables. */
export function bytesUsed(): f64 {
  return <f64>usedBytes;
}

createTable(EDGES);
createTable(ENGINES);
