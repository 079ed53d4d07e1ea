/**
 * Named reasons why a process is ready or not.
 */

export interface Condition {
  readonly name: string;
  readonly ok: boolean;
  /** For people: why, in a few words. Empty when there is nothing to say. */
  readonly reason: string;
}

export class Conditions {
  readonly #byName = new Map<string, Condition>();
  readonly #changed: (condition: Condition) => void;

  constructor(changed: (condition: Condition) => void = () => {}) {
    this.#changed = changed;
  }

  /** Sets a condition; it exists from its first `set` on, and an unmet one means "not ready". */
  set(name: string, ok: boolean, reason = ""): void {
    const before = this.#byName.get(name);
    if (before !== undefined && before.ok === ok && before.reason === reason) return;
    const condition = { name, ok, reason };
    this.#byName.set(name, condition);
    this.#changed(condition);
  }

  remove(name: string): void {
    this.#byName.delete(name);
  }

  get(name: string): Condition | undefined {
    return this.#byName.get(name);
  }

  /** True when every condition is met (also when there is none). */
  get met(): boolean {
    for (const condition of this.#byName.values()) if (!condition.ok) return false;
    return true;
  }

  list(): Condition[] {
    return [...this.#byName.values()];
  }
}
