/**
 * One cycle of attempts: every candidate at most once, in an order drawn when the cycle began.
 *
 * Membership may change while an attempt runs. That never touches the attempt: candidates that left
 * and were not tried yet are dropped, new ones come last, tried ones stay tried.
 */
export class AttemptOrder {
  readonly #tried = new Set<string>();
  #waiting: string[];

  /** `random` gives numbers in [0, 1). Candidates among `first` come first, in that order. */
  constructor(
    candidates: Iterable<string>,
    random: () => number,
    first: readonly string[] = [],
  ) {
    const all = [...candidates];
    const front = first.filter((url) => all.includes(url));
    const others = all.filter((url) => !front.includes(url));
    this.#waiting = [...front, ...shuffled(others, random)];
  }

  /** Takes the next candidate that may be asked now; undefined if there is none now. */
  take(isReady: (url: string) => boolean): string | undefined {
    const at = this.#waiting.findIndex(isReady);
    if (at === -1) return undefined;
    const [url] = this.#waiting.splice(at, 1);
    if (url !== undefined) this.#tried.add(url);
    return url;
  }

  /** Candidates that are still to be tried. */
  get waiting(): readonly string[] {
    return this.#waiting;
  }

  update(candidates: ReadonlySet<string>, random: () => number): void {
    const kept = this.#waiting.filter((url) => candidates.has(url));
    const added = [...candidates].filter((url) => !this.#tried.has(url) && !kept.includes(url));
    this.#waiting = [...kept, ...shuffled(added, random)];
  }
}

/** Fisher and Yates: without it all joiners would ask the lowest address first. */
function shuffled(urls: string[], random: () => number): string[] {
  for (let last = urls.length - 1; last > 0; last -= 1) {
    const other = Math.floor(random() * (last + 1));
    [urls[last], urls[other]] = [urls[other] as string, urls[last] as string];
  }
  return urls;
}

/** True for equal sets, whatever their order. */
export function sameSet(a: ReadonlySet<string>, b: ReadonlySet<string>): boolean {
  return a.size === b.size && [...a].every((url) => b.has(url));
}
