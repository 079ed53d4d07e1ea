/**
 * The bound: which block goes when one more comes.
 */

import { dropLeaf } from "./drop";
import { bump, EVICTED } from "./exchange";
import {
  ageOf,
  firstOf,
  holdingAt,
  holdingsLive,
  holdingsMade,
  LANE_TOP,
  nextEpoch,
  nextOf,
  nodeAt,
  nodeOf,
  previousOf,
  slotOf,
} from "./records";
import { isPinned, pins, releasedTo, setReleasedTo } from "./slots";

export let bound: u32 = 0;
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

/** Is this the end of a sequence, of a slot that is not being copied? */
// @ts-ignore: decorator
@inline
function mayGo(holding: u32): bool {
  const at = holdingAt(holding);
  return nodeOf(at) != 0 && firstOf(at) == 0 && (pins == 0 || !isPinned(slotOf(at)));
}

/**
 * Forgets one block at the end of a sequence, nearly the one that was least recently stored or
 * matched: the oldest of a few leaves below a hand that goes round over all holdings. Then the blocks
 * above it, as long as they are as old: cold sequences go as a whole, from their end. False when there
 * is nothing to forget: all there is leads to `spared`, or is being copied.
 */
function evict(spared: u32): bool {
  let victim: u32 = 0;
  if (suspect != 0 && suspect != spared && mayGo(suspect)) {
    if (ageOf(nodeAt(nodeOf(holdingAt(suspect)))) >= suspectAge) victim = suspect;
  }
  if (victim == 0) {
    let oldest: u32 = 0;
    let sample = SAMPLE;
    // What is pinned may be nearly all there is; then it is refused rather than searched for.
    const most: u32 = pins == 0 ? 2 * holdingsMade : 2 * PATIENCE;
    for (let steps: u32 = 0; steps < most; steps++) {
      if (hand <= 1) hand = holdingsMade;
      hand--;
      if (hand == spared || !mayGo(hand)) continue;
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
  if (releasedTo(slotOf(at)) == victim) setReleasedTo(slotOf(at), 0);
  dropLeaf(victim);
  bump(EVICTED);
  return true;
}

/** Makes room for one more block below `spared`; false when there is none to be made. */
export function makeRoom(spared: u32): bool {
  if (bound == 0) return holdingsLive < MOST_HOLDINGS;
  if (--epochLeft == 0) {
    epochLeft = (bound >> 3) + 1;
    nextEpoch();
  }
  return holdingsLive < bound || evict(spared);
}
