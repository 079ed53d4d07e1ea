/**
 * The two kinds of record.
 *
 * A node is one block of one sequence, shared by all lanes that hold it: (parent node, local hash).
 * A holding is one lane's hold on one node, under the engine's own name for the block. The holdings
 * of a lane form a tree of their own (first child, next sibling, previous sibling or parent), so
 * that a removal finds the lane's suffix without looking at other lanes, and so that walking a lane
 * yields parents before children.
 *
 * Records are numbered from 1; 0 is none; 26 bits are enough for them (64 M, beyond which memory
 * ends). They lie in chunks, found through a table of chunk
 * addresses, and are reused last freed first: suffixes are freed leaf first, so a chain that comes
 * back gets ascending numbers.
 */

import { reserve, take } from "./arena";

const CHUNK_SHIFT: u32 = 10;
const CHUNK_RECORDS: u32 = 1 << CHUNK_SHIFT;
const MAX_CHUNKS: usize = 65536;
export const NUMBER_MASK: u32 = 0x0fffffff;

// ---------------------------------------------------------------------------------------- nodes
// 0 local u64 | 8 parent u32 (top four bits: the epoch of its last use) | 12 holders u32
// | 16 tag u32. A free node keeps the next free one in `parent`.

const NODE_BYTES: usize = 20;
const nodeChunks: usize = reserve(MAX_CHUNKS * 4);
export let nodesMade: u32 = 0;
let freeNode: u32 = 0;
export let nodesLive: u32 = 0;
export const ROOT: u32 = 0;
/** The state of the table hash before the first block. */
export const ROOT_TAG: u32 = 0x9e3779b9;

/** Counts up, modulo 16, as blocks are stored: the grain of what eviction knows about time. */
let epoch: u32 = 0;

export function nextEpoch(): void {
  epoch = (epoch + 1) & 15;
}

/** Notes that a node is in use. */
// @ts-ignore: decorator
@inline
export function touch(at: usize): void {
  store<u32>(at, (load<u32>(at, 8) & NUMBER_MASK) | (epoch << 28), 8);
}

/** Epochs since a node was last used, 0 to 15. */
// @ts-ignore: decorator
@inline
export function ageOf(at: usize): u32 {
  return (epoch - (load<u32>(at, 8) >>> 28)) & 15;
}

// @ts-ignore: decorator
@inline
export function nodeAt(node: u32): usize {
  return <usize>load<u32>(nodeChunks + (<usize>(node >> CHUNK_SHIFT) << 2)) +
    <usize>(node & (CHUNK_RECORDS - 1)) * NODE_BYTES;
}

// @ts-ignore: decorator
@inline
export function nodeLocal(at: usize): u64 {
  return load<u64>(at);
}
// @ts-ignore: decorator
@inline
export function nodeParent(at: usize): u32 {
  return load<u32>(at, 8) & NUMBER_MASK;
}
// @ts-ignore: decorator
@inline
export function nodeHolders(at: usize): u32 {
  return load<u32>(at, 12);
}
// @ts-ignore: decorator
@inline
export function nodeTag(at: usize): u32 {
  return load<u32>(at, 16);
}
// @ts-ignore: decorator
@inline
export function setNodeHolders(at: usize, holders: u32): void {
  store<u32>(at, holders, 12);
}

export function makeNode(parent: u32, local: u64, tag: u32): u32 {
  let node = freeNode;
  if (node != 0) {
    freeNode = load<u32>(nodeAt(node), 8);
  } else {
    if ((nodesMade & (CHUNK_RECORDS - 1)) == 0) {
      const chunk = nodesMade >> CHUNK_SHIFT;
      if (<usize>chunk >= MAX_CHUNKS) unreachable();
      store<u32>(nodeChunks + (<usize>chunk << 2), <u32>take(<usize>CHUNK_RECORDS * NODE_BYTES));
    }
    // Number 0 is the root: its record exists and is never used.
    node = nodesMade == 0 ? 1 : nodesMade;
    nodesMade = node + 1;
  }
  const at = nodeAt(node);
  store<u64>(at, local);
  store<u32>(at, parent | (epoch << 28), 8);
  store<u32>(at, 0, 12);
  store<u32>(at, tag, 16);
  nodesLive++;
  return node;
}

/**
 * Whether a node's number follows its parent's. Such a node is found without the table, and is not in
 * it: sequences mostly get their numbers in one go.
 */
// @ts-ignore: decorator
@inline
export function isNextTo(node: u32, parent: u32): bool {
  return node == parent + 1 && parent != ROOT;
}

/**
 * The child of a node that has the next number, if it has that local hash, or 0. A free record never
 * looks like a child: where it keeps its link to the next free one, that is not a node in use.
 */
// @ts-ignore: decorator
@inline
export function nextTo(parent: u32, local: u64): u32 {
  const node = parent + 1;
  if (parent == ROOT || node >= nodesMade) return 0;
  const at = nodeAt(node);
  return nodeLocal(at) == local && nodeParent(at) == parent ? node : 0;
}

export function dropNode(node: u32): void {
  const at = nodeAt(node);
  store<u32>(at, freeNode, 8);
  store<u32>(at, 0, 12);
  freeNode = node;
  nodesLive--;
}

// ------------------------------------------------------------------------------------- holdings
// 0 engine u64 | 8 node u32 | 12 first child u32 | 16 next sibling u32 | 20 previous u32
// | 24 copies u16 (four bits a tier) | 26 slot u16.
// `previous` is the previous sibling; for a first child its parent; for the first of a lane's
// sequences LANE_TOP | slot. A free holding has node 0 and keeps the next free one in `next`.

const HOLDING_BYTES: usize = 28;
const holdingChunks: usize = reserve(MAX_CHUNKS * 4);
export let holdingsMade: u32 = 0;
let freeHolding: u32 = 0;
export let holdingsLive: u32 = 0;
export const LANE_TOP: u32 = 0x80000000;

// @ts-ignore: decorator
@inline
export function holdingAt(holding: u32): usize {
  return <usize>load<u32>(holdingChunks + (<usize>(holding >> CHUNK_SHIFT) << 2)) +
    <usize>(holding & (CHUNK_RECORDS - 1)) * HOLDING_BYTES;
}
// @ts-ignore: decorator
@inline
export function engineOf(at: usize): u64 {
  return load<u64>(at);
}
// @ts-ignore: decorator
@inline
export function nodeOf(at: usize): u32 {
  return load<u32>(at, 8);
}
// @ts-ignore: decorator
@inline
export function firstOf(at: usize): u32 {
  return load<u32>(at, 12);
}
// @ts-ignore: decorator
@inline
export function nextOf(at: usize): u32 {
  return load<u32>(at, 16);
}
// @ts-ignore: decorator
@inline
export function previousOf(at: usize): u32 {
  return load<u32>(at, 20);
}
// @ts-ignore: decorator
@inline
export function copiesOf(at: usize): u32 {
  return <u32>load<u16>(at, 24);
}
// @ts-ignore: decorator
@inline
export function slotOf(at: usize): u32 {
  return <u32>load<u16>(at, 26);
}
// @ts-ignore: decorator
@inline
export function setFirst(at: usize, first: u32): void {
  store<u32>(at, first, 12);
}
// @ts-ignore: decorator
@inline
export function setNext(at: usize, next: u32): void {
  store<u32>(at, next, 16);
}
// @ts-ignore: decorator
@inline
export function setPrevious(at: usize, previous: u32): void {
  store<u32>(at, previous, 20);
}
// @ts-ignore: decorator
@inline
export function setCopies(at: usize, copies: u32): void {
  store<u16>(at, <u16>copies, 24);
}

export function makeHolding(engine: u64, node: u32, copies: u32, slot: u32): u32 {
  let holding = freeHolding;
  if (holding != 0) {
    freeHolding = nextOf(holdingAt(holding));
  } else {
    if ((holdingsMade & (CHUNK_RECORDS - 1)) == 0) {
      const chunk = holdingsMade >> CHUNK_SHIFT;
      if (<usize>chunk >= MAX_CHUNKS) unreachable();
      store<u32>(holdingChunks + (<usize>chunk << 2), <u32>take(<usize>CHUNK_RECORDS * HOLDING_BYTES));
    }
    holding = holdingsMade == 0 ? 1 : holdingsMade;
    holdingsMade = holding + 1;
  }
  const at = holdingAt(holding);
  store<u64>(at, engine);
  store<u32>(at, node, 8);
  store<u32>(at, 0, 12);
  store<u32>(at, 0, 16);
  store<u32>(at, 0, 20);
  store<u16>(at, <u16>copies, 24);
  store<u16>(at, <u16>slot, 26);
  holdingsLive++;
  return holding;
}

export function dropHolding(holding: u32): void {
  const at = holdingAt(holding);
  store<u32>(at, 0, 8);
  setNext(at, freeHolding);
  freeHolding = holding;
  holdingsLive--;
}

/** The tiers (one bit each) of a holding's copies (four bits each). */
// @ts-ignore: decorator
@inline
export function tiersOf(copies: u32): u32 {
  return <u32>((copies & 0x000f) != 0) | (<u32>((copies & 0x00f0) != 0) << 1) |
    (<u32>((copies & 0x0f00) != 0) << 2) | (<u32>((copies & 0xf000) != 0) << 3);
}
