/**
 * All generations of a service, each from its creation until it was reaped.
 *
 * There is no other list of processes: shutdown goes over this one, so a child that was not
 * published yet, or is no longer, can not be forgotten.
 */

import type { Generation } from "./generation.ts";

export class Generations {
  readonly #all = new Set<Generation>();
  readonly #numbers = new Map<string, number>();

  /** Numbers up to this one were used: by a child of an earlier Baton that may still be there. */
  startAfter(version: string, number: number): void {
    this.#numbers.set(version, Math.max(this.#numbers.get(version) ?? 0, number));
  }

  /** The number for the next generation of a version; `least` is the highest one used before. */
  nextNumber(version: string, least: number): number {
    const next = Math.max(this.#numbers.get(version) ?? 0, least) + 1;
    this.#numbers.set(version, next);
    return next;
  }

  /** Adds a generation; it leaves by itself once it has ended. */
  add(generation: Generation): void {
    this.#all.add(generation);
    generation.ended.then(() => this.#all.delete(generation));
  }

  get size(): number {
    return this.#all.size;
  }

  [Symbol.iterator](): IterableIterator<Generation> {
    return new Set(this.#all).values();
  }

  of(version: string): Generation[] {
    return [...this.#all].filter((generation) => generation.version === version);
  }
}
