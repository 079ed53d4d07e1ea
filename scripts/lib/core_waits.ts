/**
 * How long the parts of a path had to wait for a core.
 *
 * On a machine with two cores the load generator, the proxy, the program behind it and one that is
 * starting all want to run at once, and which of them goes first is the kernel's choice. A bench that
 * asks what one of them costs has to know that time apart.
 *
 * Every few milliseconds it is noted how late this process's own timer was (busy or not on a core:
 * nobody read the clock meanwhile), and for the processes that are watched how long their main thread
 * was ready to run and had no core (`/proc/<pid>/schedstat`, second field, nanoseconds; where there
 * is no such file nothing is noted for them). Time in which a process runs, sleeps, or waits for
 * another (a `fork` for its child, a write for the disk) is never counted.
 */

import { readFileSync } from "node:fs";

const EVERY_MS = 5;

export class CoreWaits {
  /** The proxy's processes: each is on the path of everything. */
  readonly #always = new Map<number, number>();
  /** Programs of which one is on the path of any one message. */
  readonly #either = new Map<number, number>();
  readonly #slots: { readonly from: number; readonly to: number; readonly waitedMs: number }[] = [];
  readonly #timer: ReturnType<typeof setInterval>;
  #last = performance.now();

  readonly #countsOwn: boolean;

  /** `countsOwn`: whether this process being late counts as a wait, too. */
  constructor({ countsOwn }: { countsOwn: boolean }) {
    this.#countsOwn = countsOwn;
    this.#timer = setInterval(() => this.#note(), EVERY_MS);
  }

  watch(pid: number, place: "always" | "either"): void {
    const watched = place === "always" ? this.#always : this.#either;
    if (!watched.has(pid)) watched.set(pid, waitedMs(pid) ?? 0);
  }

  /**
   * Of the time between two instants of `performance.now()`, the part in which a process of the path
   * waited for a core, milliseconds. Waits of several at once are added up, but a moment is never
   * counted twice.
   */
  within(from: number, to: number): number {
    let sum = 0;
    for (let at = this.#firstAfter(from);; at += 1) {
      const slot = this.#slots[at];
      if (slot === undefined || slot.from >= to) break;
      const overlapMs = Math.min(to, slot.to) - Math.max(from, slot.from);
      if (overlapMs > 0) sum += Math.min(overlapMs, slot.waitedMs);
    }
    return sum;
  }

  /** The first slot that ends after an instant. */
  #firstAfter(instant: number): number {
    let low = 0;
    for (let high = this.#slots.length; low < high;) {
      const middle = (low + high) >> 1;
      if ((this.#slots[middle]?.to ?? Infinity) <= instant) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  stop(): void {
    clearInterval(this.#timer);
  }

  #note(): void {
    const now = performance.now();
    const lateMs = this.#countsOwn ? Math.max(0, now - this.#last - EVERY_MS) : 0;
    const always = growth(this.#always).reduce((sum, ms) => sum + ms, 0);
    const either = Math.max(0, ...growth(this.#either));
    this.#slots.push({ from: this.#last, to: now, waitedMs: lateMs + always + either });
    this.#last = now;
  }
}

function growth(watched: Map<number, number>): number[] {
  const grown: number[] = [];
  for (const [pid, before] of watched) {
    const now = waitedMs(pid);
    if (now === undefined) watched.delete(pid);
    else {
      watched.set(pid, now);
      grown.push(now - before);
    }
  }
  return grown;
}

/**
 * Milliseconds so far that the main thread of a process (this one by default) was ready to run and
 * had no core; undefined where the kernel does not say. Exact whenever the thread runs.
 */
export function waitedMs(pid: number | "self" = "self"): number | undefined {
  try {
    return Number(readFileSync(`/proc/${pid}/schedstat`, "latin1").split(" ")[1]) / 1e6;
  } catch {
    return undefined;
  }
}
