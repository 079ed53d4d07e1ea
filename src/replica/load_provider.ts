/**
 * What travels with a dump besides the index, best-effort: requests that are in progress and session
 * affinity, so that a joiner does not take every worker for idle.
 */
export interface LoadProvider {
  /** Hints as plain JSON, each of at most 64 KiB as text; larger ones are left out. */
  exportLoad(): Iterable<unknown>;
  /**
   * Takes a peer's hints, once, when its dump has come to its end. They come from outside: check
   * them. Throwing costs the hints and nothing else.
   */
  importLoad(records: readonly unknown[]): void;
}

/** Letters of one hint at most. */
export const MAX_LOAD_TEXT = 65_536;

/** The hints as lines of a dump; a provider that fails ends them and not the dump. */
export function* loadLines(exportLoad: LoadProvider["exportLoad"] | undefined): Generator<string> {
  if (exportLoad === undefined) return;
  try {
    for (const load of exportLoad()) {
      const text = JSON.stringify({ kind: "load", load });
      if (text.length <= MAX_LOAD_TEXT) yield text;
    }
  } catch {
    // Best-effort by its definition.
  }
}
