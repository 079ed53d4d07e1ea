/**
 * Reservations: bookings that are named, so that a client of the selection API can choose in one
 * call and book, report progress and free in later ones.
 *
 * A selection is remembered for a short time and replayed exactly as it was made, once. A
 * reservation ends when it is released or, at the latest, at its absolute expiry: a client that
 * forgets it cannot make a worker look busy for ever. One instance for each (model, group).
 */

import { BatonError } from "../errors.ts";
import type { Clock } from "../runtime/runtime.ts";
import type { WorkerRank } from "./choice.ts";
import type { Booking, BookingSize, LoadBook } from "./load.ts";

/** What a choice decided, to be booked later. */
export interface Selection {
  readonly rank: WorkerRank;
  /** Tokens of the prompt. */
  readonly promptTokens: number;
  readonly size: BookingSize;
  /** Chain keys of the prompt's blocks; counted in the memory that selections may take. */
  readonly keys?: BigUint64Array;
}

export interface ReservationsOptions {
  readonly clock: Clock;
  readonly book: LoadBook;
  /** Whether a rank can be given requests now. */
  readonly isSchedulable: (rank: WorkerRank) => boolean;
  readonly expiryMs?: number;
  readonly selectionTtlMs?: number;
  readonly maxSelections?: number;
  readonly maxSelectionBytes?: number;
}

interface Remembered {
  readonly selection: Selection;
  readonly bytes: number;
  readonly expiresAt: number;
}

interface Held {
  readonly booking: Booking;
  readonly selection: Selection;
  readonly expiresAt: number;
}

/** Bytes of a remembered selection without its keys and its name. */
const SELECTION_BYTES = 512;

export class Reservations {
  readonly #options: ReservationsOptions;
  /** Both in the order in which they expire. */
  readonly #selections = new Map<string, Remembered>();
  readonly #held = new Map<string, Held>();
  #selectionBytes = 0;
  #cancelTimer: (() => void) | undefined;

  constructor(options: ReservationsOptions) {
    this.#options = options;
  }

  get size(): number {
    return this.#held.size;
  }

  has(id: string): boolean {
    return this.#held.has(id);
  }

  /** Keeps a selection for `reserveSelected`; a later one of the same name replaces it. */
  remember(id: string, selection: Selection): void {
    const {
      clock,
      selectionTtlMs = 120_000,
      maxSelections = 4096,
      maxSelectionBytes = 256 * 1024 * 1024,
    } = this.#options;
    this.#forgetSelection(id);
    const bytes = SELECTION_BYTES + 2 * id.length + 8 * (selection.keys?.length ?? 0);
    if (bytes > maxSelectionBytes) return;
    const expiresAt = clock.monotonic() + selectionTtlMs;
    this.#selections.set(id, { selection, bytes, expiresAt });
    this.#selectionBytes += bytes;
    for (const [oldest, { expiresAt }] of this.#selections) {
      const fits = this.#selections.size <= maxSelections &&
        this.#selectionBytes <= maxSelectionBytes;
      if (fits && expiresAt > clock.monotonic()) break;
      this.#forgetSelection(oldest);
    }
  }

  /**
   * Books what was selected under this name. Throws `conflict` if the name is booked already,
   * `not_found` if there is no such selection (any more), `no_worker` if its worker cannot take it:
   * the selection is kept then, and may be tried again.
   */
  reserveSelected(id: string): Selection {
    this.#checkFree(id);
    const remembered = this.#selections.get(id);
    if (remembered === undefined || remembered.expiresAt <= this.#options.clock.monotonic()) {
      this.#forgetSelection(id);
      throw new BatonError("not_found", "no pending selection of this name");
    }
    const { selection } = remembered;
    if (!this.#options.isSchedulable(selection.rank)) {
      throw new BatonError("no_worker", "the selected worker cannot take requests now");
    }
    this.#hold(id, selection);
    this.#forgetSelection(id);
    return selection;
  }

  /**
   * Books explicitly. Throws `conflict` if the name is booked, `bad_request` if there is more to
   * prefill than the prompt has, `not_found` if the worker is unknown or cannot take requests.
   */
  reserve(id: string, selection: Selection): void {
    this.#checkFree(id);
    if (selection.size.prefillTokens > selection.promptTokens) {
      throw new BatonError("bad_request", "effective_prefill_tokens is more than isl_tokens");
    }
    if (!this.#options.isSchedulable(selection.rank)) {
      throw new BatonError("not_found", "no such worker that can take requests");
    }
    this.#hold(id, selection);
    this.#forgetSelection(id);
  }

  /** Throws `not_found` for a name that is not booked; so do the two below. */
  prefillComplete(id: string): void {
    this.#find(id).booking.prefillComplete();
  }

  /** `weight`: what the request's blocks count from now on, 0 to 1, else `bad_request`. */
  outputBlock(id: string, weight?: number): void {
    const held = this.#find(id);
    if (weight !== undefined && !(weight >= 0 && weight <= 1)) {
      throw new BatonError("bad_request", "decay_fraction must be from 0 to 1");
    }
    held.booking.outputBlock(weight);
  }

  release(id: string): void {
    const held = this.#find(id);
    this.#held.delete(id);
    held.booking.release();
  }

  /** Releases everything of a worker that is gone. */
  releaseWorker(worker: string): void {
    for (const [id, { booking }] of this.#held) {
      if (booking.rank.worker === worker) this.release(id);
    }
  }

  /** Releases everything and stops the timer. */
  close(): void {
    for (const id of this.#held.keys()) this.release(id);
    this.#selections.clear();
    this.#selectionBytes = 0;
    this.#cancelTimer?.();
    this.#cancelTimer = undefined;
  }

  #checkFree(id: string): void {
    if (this.#held.has(id)) throw new BatonError("conflict", "this selection_id is booked already");
  }

  #find(id: string): Held {
    const held = this.#held.get(id);
    if (held === undefined) throw new BatonError("not_found", "no reservation of this name");
    return held;
  }

  #hold(id: string, selection: Selection): void {
    const { clock, book, expiryMs = 300_000 } = this.#options;
    const booking = book.book(selection.rank, selection.size);
    this.#held.set(id, { booking, selection, expiresAt: clock.monotonic() + expiryMs });
    this.#arm();
  }

  #forgetSelection(id: string): void {
    const known = this.#selections.get(id);
    if (known === undefined) return;
    this.#selections.delete(id);
    this.#selectionBytes -= known.bytes;
  }

  /** One timer, for the oldest: all last equally long, so they expire in the order they were made. */
  #arm(): void {
    if (this.#cancelTimer !== undefined) return;
    const [oldest] = this.#held.values();
    if (oldest === undefined) return;
    const { clock } = this.#options;
    this.#cancelTimer = clock.after(Math.max(0, oldest.expiresAt - clock.monotonic()), () => {
      this.#cancelTimer = undefined;
      for (const [id, { expiresAt }] of this.#held) {
        if (expiresAt > clock.monotonic()) break;
        this.release(id);
      }
      this.#arm();
    });
  }
}
