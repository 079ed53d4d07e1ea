/**
 * The open streams of a connection by their ids.
 *
 * Open addressing with linear probing, since a Map whose entries come and go with each request keeps
 * ended ones from the young collection (../roster.ts has the reason).
 */

const SMALLEST = 16;

export class StreamTable<S extends { readonly id: number }> {
  #slots: (S | undefined)[] = new Array(SMALLEST).fill(undefined);
  #size = 0;

  get size(): number {
    return this.#size;
  }

  get(id: number): S | undefined {
    return this.#slots[this.#find(id)];
  }

  /** A stream whose id is not in the table yet. */
  add(stream: S): void {
    if (2 * this.#size >= this.#slots.length) this.#grow();
    this.#slots[this.#find(stream.id)] = stream;
    this.#size += 1;
  }

  delete(id: number): void {
    const slots = this.#slots;
    const mask = slots.length - 1;
    let hole = this.#find(id);
    if (slots[hole] === undefined) return;
    this.#size -= 1;
    // What was pushed past the hole by others moves back, so that a search may end at a free slot.
    for (let at = (hole + 1) & mask;; at = (at + 1) & mask) {
      const stream = slots[at];
      if (stream === undefined) break;
      const isPast = ((at - home(stream.id, mask)) & mask) >= ((at - hole) & mask);
      if (!isPast) continue;
      slots[hole] = stream;
      hole = at;
    }
    slots[hole] = undefined;
  }

  /** Those that are open now, in no order; streams may end while one goes through them. */
  all(): S[] {
    return this.#slots.filter((stream) => stream !== undefined);
  }

  /** Where the stream is, or where it would go. */
  #find(id: number): number {
    const slots = this.#slots;
    const mask = slots.length - 1;
    let at = home(id, mask);
    for (;;) {
      const stream = slots[at];
      if (stream === undefined || stream.id === id) return at;
      at = (at + 1) & mask;
    }
  }

  #grow(): void {
    const before = this.all();
    this.#slots = new Array(this.#slots.length * 2).fill(undefined);
    for (const stream of before) this.#slots[this.#find(stream.id)] = stream;
  }
}

/** Ids of one side are all odd or all even (RFC 9113 section 5.1.1). */
function home(id: number, mask: number): number {
  return (id >>> 1) & mask;
}
