/**
 * The slots of an index: a lane lives in one, and moves to another when it is cleared or replaced.
 *
 * A slot that is given up is hidden at once and taken apart in slices, along with later events and
 * in turns of the event loop of its own; then it can be taken again.
 */

import type { IndexExports } from "./wasm/load.ts";

const MAX_SLOTS = 65_536;
/** Blocks freed in one turn of the event loop. */
export const FREE_BATCH = 2048;

export class LaneSlots {
  readonly #call: IndexExports;
  readonly #free: number[] = [];
  /** Slots that are being taken apart, oldest first. */
  readonly #dying: number[] = [];
  #next = 0;
  #freeing = false;

  constructor(call: IndexExports) {
    this.#call = call;
  }

  /** Whether some slot is still being taken apart. */
  get isFreeing(): boolean {
    return this.#dying.length > 0;
  }

  /** Blocks in slots that are being taken apart. */
  get dying(): number {
    let blocks = 0;
    for (const slot of this.#dying) blocks += this.#call.slotCount(slot);
    return blocks;
  }

  /** An empty, hidden slot. Throws RangeError when all are in use. */
  take(): number {
    const free = this.#free.pop();
    if (free !== undefined) return free;
    if (this.#next < MAX_SLOTS) return this.#next++;
    while (this.#free.length === 0 && this.#dying.length > 0) this.free(FREE_BATCH);
    const freed = this.#free.pop();
    if (freed === undefined) throw new RangeError(`more than ${MAX_SLOTS} lanes`);
    return freed;
  }

  /** Hides a slot now and takes it apart later. */
  retire(slot: number): void {
    this.#call.setHandle(slot, 0);
    if (this.#call.slotCount(slot) === 0) {
      this.#free.push(slot);
      return;
    }
    this.#dying.push(slot);
    this.#freeLater();
  }

  /** Frees up to `budget` blocks. */
  free(budget: number): void {
    while (budget > 0) {
      const slot = this.#dying[0];
      if (slot === undefined) return;
      const before = this.#call.slotCount(slot);
      const left = this.#call.release(slot, budget);
      budget -= Math.max(1, before - left);
      if (left > 0) return;
      this.#dying.shift();
      this.#free.push(slot);
    }
  }

  #freeLater(): void {
    if (this.#freeing) return;
    this.#freeing = true;
    setTimeout(() => {
      this.#freeing = false;
      this.free(FREE_BATCH);
      if (this.#dying.length > 0) this.#freeLater();
    }, 0);
  }
}
