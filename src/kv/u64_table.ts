/**
 * A table from u64 keys to small numbers, without an object or a bigint per entry.
 *
 * Open addressing in typed arrays (14 bytes a slot). Sixteen shards by the key's bits, each growing
 * by itself, so that no single growth step moves more than a sixteenth of the entries.
 */

const SHARDS = 16;
const FIRST_SLOTS = 16;

export interface U64Entry {
  readonly low: number;
  readonly high: number;
  readonly value: number;
  readonly count: number;
}

export class U64Table {
  readonly #shards: Shard[] = Array.from({ length: SHARDS }, () => new Shard());

  get size(): number {
    let size = 0;
    for (const shard of this.#shards) size += shard.size;
    return size;
  }

  /** Bytes of the arrays. */
  get bytes(): number {
    let bytes = 0;
    for (const shard of this.#shards) bytes += shard.bytes;
    return bytes;
  }

  /** The value of a key, or 0 when there is none (values are from 1 to 2^32-1). */
  get(low: number, high: number): number {
    return this.#shard(low, high).get(low, high);
  }

  /**
   * Adds one to the key's count and gives it the value if it had none. Returns the value that it
   * had, 0 if it is new.
   */
  add(low: number, high: number, value: number): number {
    return this.#shard(low, high).add(low, high, value, 1);
  }

  /** Replaces the value of a key that is in the table. */
  replace(low: number, high: number, value: number): void {
    this.#shard(low, high).replace(low, high, value);
  }

  /** Takes one from the key's count; returns the value if that removed the entry, else 0. */
  drop(low: number, high: number): number {
    return this.#shard(low, high).drop(low, high);
  }

  /** Puts an entry back as `entries` gave it. */
  restore(entry: U64Entry): void {
    this.#shard(entry.low, entry.high).add(entry.low, entry.high, entry.value, entry.count);
  }

  clear(): void {
    for (const shard of this.#shards) shard.reset();
  }

  *entries(): Generator<U64Entry, void> {
    for (const shard of this.#shards) yield* shard.entries();
  }

  #shard(low: number, high: number): Shard {
    const shard = this.#shards[(mix(low, high) >>> 28) & (SHARDS - 1)];
    if (shard === undefined) throw new RangeError("no such shard");
    return shard;
  }
}

class Shard {
  size = 0;
  #mask = FIRST_SLOTS - 1;
  #low = new Uint32Array(FIRST_SLOTS);
  #high = new Uint32Array(FIRST_SLOTS);
  /** 0 = the slot is empty. */
  #values = new Uint32Array(FIRST_SLOTS);
  #counts = new Uint16Array(FIRST_SLOTS);

  get bytes(): number {
    return (this.#mask + 1) * 14;
  }

  get(low: number, high: number): number {
    return this.#values[this.#find(low, high)] ?? 0;
  }

  add(low: number, high: number, value: number, count: number): number {
    let slot = this.#find(low, high);
    const had = this.#values[slot] ?? 0;
    if (had !== 0) {
      this.#counts[slot] = Math.min(0xffff, (this.#counts[slot] ?? 0) + count);
      return had;
    }
    if ((this.size + 1) * 3 > (this.#mask + 1) * 2) {
      this.#grow();
      slot = this.#find(low, high);
    }
    this.#low[slot] = low;
    this.#high[slot] = high;
    this.#values[slot] = value;
    this.#counts[slot] = count;
    this.size += 1;
    return 0;
  }

  replace(low: number, high: number, value: number): void {
    const slot = this.#find(low, high);
    if (this.#values[slot] !== 0) this.#values[slot] = value;
  }

  drop(low: number, high: number): number {
    let hole = this.#find(low, high);
    const value = this.#values[hole] ?? 0;
    if (value === 0) return 0;
    const count = this.#counts[hole] ?? 1;
    if (count > 1) {
      this.#counts[hole] = count - 1;
      return 0;
    }
    // Backward shift: later entries of the same run move up, so that no tombstones are needed.
    for (let slot = (hole + 1) & this.#mask;; slot = (slot + 1) & this.#mask) {
      if (this.#values[slot] === 0) break;
      const home = mix(this.#low[slot] ?? 0, this.#high[slot] ?? 0) & this.#mask;
      if (((slot - home) & this.#mask) < ((slot - hole) & this.#mask)) continue;
      this.#move(slot, hole);
      hole = slot;
    }
    this.#values[hole] = 0;
    this.size -= 1;
    return value;
  }

  reset(): void {
    this.size = 0;
    this.#allocate(FIRST_SLOTS);
  }

  *entries(): Generator<U64Entry, void> {
    for (let slot = 0; slot <= this.#mask; slot++) {
      const value = this.#values[slot] ?? 0;
      if (value === 0) continue;
      yield {
        low: this.#low[slot] ?? 0,
        high: this.#high[slot] ?? 0,
        value,
        count: this.#counts[slot] ?? 1,
      };
    }
  }

  /** The key's slot, or the empty one where it would go. */
  #find(low: number, high: number): number {
    const mask = this.#mask;
    let slot = mix(low, high) & mask;
    while (
      this.#values[slot] !== 0 && (this.#low[slot] !== low || this.#high[slot] !== high)
    ) slot = (slot + 1) & mask;
    return slot;
  }

  #move(from: number, to: number): void {
    this.#low[to] = this.#low[from] ?? 0;
    this.#high[to] = this.#high[from] ?? 0;
    this.#values[to] = this.#values[from] ?? 0;
    this.#counts[to] = this.#counts[from] ?? 0;
  }

  #allocate(slots: number): void {
    this.#mask = slots - 1;
    this.#low = new Uint32Array(slots);
    this.#high = new Uint32Array(slots);
    this.#values = new Uint32Array(slots);
    this.#counts = new Uint16Array(slots);
  }

  #grow(): void {
    const [low, high, values, counts] = [this.#low, this.#high, this.#values, this.#counts];
    this.#allocate(2 * (this.#mask + 1));
    for (let i = 0; i < values.length; i++) {
      if (values[i] === 0) continue;
      const slot = this.#find(low[i] ?? 0, high[i] ?? 0);
      this.#low[slot] = low[i] ?? 0;
      this.#high[slot] = high[i] ?? 0;
      this.#values[slot] = values[i] ?? 0;
      this.#counts[slot] = counts[i] ?? 0;
    }
  }
}

/** Spreads a key over 32 bits (the finaliser of MurmurHash3). */
function mix(low: number, high: number): number {
  let h = low ^ Math.imul(high, 0x9e3779b1);
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}
