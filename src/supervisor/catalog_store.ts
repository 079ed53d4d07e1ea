/**
 * The last list that was accepted, kept on disk: a start while the oracle is away serves the versions
 * that were known, and an older list cannot be slipped in after a restart.
 *
 * What was remembered of one oracle does not bind another: with a changed address the versions are
 * still served until the new oracle answers, and its first answer is taken as it is.
 */

import { messageOf } from "../errors.ts";
import * as v from "valibot";
import type { Log } from "../observe/log.ts";
import { type Files, isDiskFull } from "../runtime/runtime.ts";
import type { Catalog } from "./catalog.ts";
import { CatalogRefused, mayFollow, parseCatalog } from "./catalog.ts";
import { StateFile } from "./state.ts";

const storedSchema = v.object({
  oracle: v.string(),
  schema: v.literal(1),
  initialized: v.literal(true),
  revision: v.nullable(v.pipe(v.number(), v.safeInteger(), v.minValue(0))),
  versions: v.array(v.object({
    name: v.string(),
    binary: v.string(),
    sha256: v.string(),
    entryPoint: v.optional(v.string()),
  })),
  withdrawn: v.optional(v.array(v.string()), []),
});

type Stored = v.InferOutput<typeof storedSchema>;

export interface CatalogStoreOptions {
  readonly files: Files;
  readonly log: Log;
  /** The oracle's address, as configured. */
  readonly oracle: string;
  /** Absent: in memory only. */
  readonly path?: string;
}

export class CatalogStore {
  readonly #oracle: string;
  readonly #file: StateFile<Stored | undefined> | undefined;
  #current: Catalog | undefined;
  #foreign = false;
  #saved = true;
  readonly #log: Log;

  private constructor(options: CatalogStoreOptions) {
    this.#oracle = options.oracle;
    this.#log = options.log;
    if (options.path === undefined) return;
    this.#file = new StateFile<Stored | undefined>({
      files: options.files,
      log: options.log,
      path: options.path,
      schema: v.pipe(storedSchema, v.check(isServable, "an entry is not valid")),
      empty: () => undefined,
    });
  }

  /** Reads what was kept. A damaged file is set aside and reported, and nothing is known. */
  static async open(options: CatalogStoreOptions): Promise<CatalogStore> {
    const store = new CatalogStore(options);
    const stored = await store.#file?.load();
    if (stored === undefined) return store;
    store.#current = fromStored(stored);
    store.#foreign = stored.oracle !== options.oracle;
    return store;
  }

  /** The last accepted list, or undefined. */
  get current(): Catalog | undefined {
    return this.#current;
  }

  /**
   * Takes a list if it may follow the current one: written first, then remembered, so that a disk
   * that refuses leaves the memory where it was. Only the first list of all is taken on a full disk,
   * and written with a later poll: it is that or nothing. Returns whether anything changed. Throws
   * `CatalogRefused`, or the disk's error.
   */
  async accept(next: Catalog): Promise<boolean> {
    const isFirst = this.#current === undefined;
    const changed = mayFollow(this.#foreign ? undefined : this.#current, next);
    if (!changed && this.#saved) return false;
    try {
      await this.#save(next);
      this.#saved = true;
    } catch (error) {
      if (!isDiskFull(error) || !(isFirst || !changed)) throw error;
      if (isFirst) this.#log.error("catalog_not_saved", { error: messageOf(error) });
      this.#saved = false;
    }
    this.#current = next;
    this.#foreign = false;
    return changed;
  }

  async #save(next: Catalog): Promise<void> {
    await this.#file?.save({
      oracle: this.#oracle,
      schema: 1,
      initialized: true,
      revision: next.revision ?? null,
      versions: next.versions.map(({ name, url, sha256, entryPoint }) => ({
        name,
        binary: url,
        sha256,
        ...(entryPoint === undefined ? {} : { entryPoint }),
      })),
      withdrawn: [...next.withdrawn],
    });
  }
}

function fromStored(stored: Stored): Catalog {
  const { oracle: _oracle, revision, ...rest } = stored;
  // Read by the same rules as an oracle's answer: a file edited by hand is no way around them.
  const catalog = parseCatalog(JSON.stringify({ ...rest, revision: revision ?? 0 }), "file:///");
  return {
    versions: catalog.versions,
    withdrawn: catalog.withdrawn,
    ...(revision === null ? {} : { revision }),
  };
}

function isServable(stored: Stored): boolean {
  try {
    fromStored(stored);
    return true;
  } catch (error) {
    if (error instanceof CatalogRefused) return false;
    throw error;
  }
}
