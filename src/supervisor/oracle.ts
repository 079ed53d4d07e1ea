/**
 * Follows an oracle: an http(s) address that is polled, or a file that is watched.
 *
 * Every poll ends in one report: the list as it now stands, or an error, and an error never changes
 * what is desired. Polls are jittered so that a fleet does not ask, and swap, in the same second.
 */

import type { VersionsConfig } from "../config/versions.ts";
import type { Log } from "../observe/log.ts";
import type { Clock, Files, Http, Random } from "../runtime/runtime.ts";
import { assertSecure, fileUrlPath, printableUrl } from "./address.ts";
import type { Catalog, DesiredVersion } from "./catalog.ts";
import { parseCatalog } from "./catalog.ts";
import { CatalogStore } from "./catalog_store.ts";
import { dismiss, secureGet } from "./secure_fetch.ts";

export type { DesiredVersion } from "./catalog.ts";

/** What a poll (or the first look at the disk) brought. */
export type OracleReport =
  | {
    readonly kind: "catalog";
    /**
     * All desired versions. May be empty: then the caller decides whether that is believed
     * (`allowEmpty`), since only it knows whether children run.
     */
    readonly versions: readonly DesiredVersion[];
    readonly revision?: number;
    /** Names that the publisher took back explicitly. */
    readonly withdrawn: readonly string[];
    /** `disk`: the last accepted list, reported once at the start, before the oracle answered. */
    readonly source: "oracle" | "disk";
    /** False when the list is what the last report said. */
    readonly changed: boolean;
  }
  | { readonly kind: "error"; readonly error: Error };

export interface Oracle {
  /**
   * Reports the stored list (if any), polls at once and then at intervals. Reports come one at a
   * time. Resolves after the first poll has been reported.
   */
  start(listener: (report: OracleReport) => void): Promise<void>;
  /** Polls now (or joins the poll under way) and resolves after its report. */
  pollNow(): Promise<void>;
  /** No report comes after this has been called. */
  stop(): void;
}

export interface OracleOptions {
  readonly runtime: {
    readonly clock: Clock;
    readonly random: Random;
    readonly files: Files;
    readonly http: Http;
  };
  readonly log: Log;
  readonly config: Pick<
    VersionsConfig,
    | "oracle"
    | "pollIntervalMs"
    | "pollJitter"
    | "oracleTimeoutMs"
    | "maxOracleBytes"
    | "allowEmpty"
    | "allowInsecure"
  >;
  /** Where the last accepted list is kept. Absent: not kept. */
  readonly catalogFile?: string;
}

/** Changes of a file come in bursts (write, rename, sync): wait for the end of the burst. */
const DEBOUNCE_MS = 50;

/** Makes the oracle's follower; nothing happens before `start`. Throws if the address is refused. */
export function createOracle(options: OracleOptions): Oracle {
  const { oracle } = options.config;
  if (!oracle.startsWith("file:")) assertSecure(new URL(oracle), options.config.allowInsecure);
  return new Follower(options);
}

class Follower implements Oracle {
  readonly #options: OracleOptions;
  readonly #read: (signal: AbortSignal) => Promise<string | undefined>;
  readonly #base: string;
  readonly #filePath: string | undefined;
  #store: CatalogStore | undefined;
  #listener: ((report: OracleReport) => void) | undefined;
  #polling: Promise<void> | undefined;
  #again = false;
  #stopped = false;
  #cancelTimer: (() => void) | undefined;
  #cancelDebounce: (() => void) | undefined;
  #unwatch: (() => void) | undefined;
  readonly #abort = new AbortController();
  #etag: string | undefined;
  #lastError = "";

  constructor(options: OracleOptions) {
    this.#options = options;
    const { oracle } = options.config;
    if (oracle.startsWith("file:")) {
      const path = fileUrlPath(oracle);
      this.#filePath = path;
      this.#base = `file:${path}`;
      this.#read = (signal) => this.#readFile(path, signal);
    } else {
      this.#base = oracle;
      this.#read = (signal) => this.#readHttp(oracle, signal);
    }
  }

  async start(listener: (report: OracleReport) => void): Promise<void> {
    const { runtime, log, config, catalogFile } = this.#options;
    this.#listener = listener;
    this.#store = await CatalogStore.open({
      files: runtime.files,
      log,
      oracle: config.oracle,
      ...(catalogFile === undefined ? {} : { path: catalogFile }),
    });
    const stored = this.#store.current;
    if (stored !== undefined) this.#report(stored, "disk", true);
    this.#watch();
    await this.pollNow();
  }

  pollNow(): Promise<void> {
    if (this.#stopped) return Promise.resolve();
    this.#cancelTimer?.();
    this.#polling ??= this.#poll().finally(() => {
      this.#polling = undefined;
      if (this.#stopped) return;
      if (this.#again) {
        this.#again = false;
        void this.pollNow();
      } else {
        this.#schedule();
      }
    });
    return this.#polling;
  }

  stop(): void {
    this.#stopped = true;
    this.#listener = undefined;
    this.#cancelTimer?.();
    this.#cancelDebounce?.();
    this.#unwatch?.();
    this.#abort.abort(new Error("the oracle is no longer followed"));
  }

  /** One poll, one report; never rejects. */
  async #poll(): Promise<void> {
    const { clock } = this.#options.runtime;
    const timeout = new AbortController();
    const cancelTimeout = clock.after(this.#options.config.oracleTimeoutMs, () => {
      timeout.abort(new Error(`no answer within ${this.#options.config.oracleTimeoutMs} ms`));
    });
    const signal = AbortSignal.any([timeout.signal, this.#abort.signal]);
    try {
      const text = await raceAbort(this.#read(signal), signal);
      const store = this.#store;
      if (store === undefined) throw new Error("not started");
      let changed = false;
      if (text !== undefined) {
        const catalog = parseCatalog(text, this.#base);
        if (this.#isDoubtful(catalog, store.current)) {
          this.#etag = undefined;
          return this.#report(catalog, "oracle", false);
        }
        changed = await store.accept(catalog);
      }
      if (store.current === undefined) throw new Error("answered 304 to a first question");
      this.#lastError = "";
      this.#report(store.current, "oracle", changed);
    } catch (error) {
      this.#etag = undefined;
      this.#fail(error instanceof Error ? error : new Error(String(error)));
    } finally {
      cancelTimeout();
    }
  }

  /**
   * An empty list where there was one that was not: more often a fault of the oracle than a wish. It
   * is told, but the list that is kept stays, so that a restart does not come up with nothing.
   */
  #isDoubtful(catalog: Catalog, current: Catalog | undefined): boolean {
    return catalog.versions.length === 0 && catalog.withdrawn.length === 0 &&
      !this.#options.config.allowEmpty && (current?.versions.length ?? 0) > 0;
  }

  #report(catalog: Catalog, source: "oracle" | "disk", changed: boolean): void {
    if (changed) {
      this.#options.log.info("oracle_catalog", {
        source,
        revision: catalog.revision,
        versions: catalog.versions.map((one) => `${one.name}@${one.sha256.slice(0, 12)}`),
      });
    }
    this.#listener?.({
      kind: "catalog",
      versions: catalog.versions,
      ...(catalog.revision === undefined ? {} : { revision: catalog.revision }),
      withdrawn: catalog.withdrawn,
      source,
      changed,
    });
  }

  #fail(error: Error): void {
    if (this.#stopped) return;
    const level = error.message === this.#lastError ? "debug" : "warn";
    this.#lastError = error.message;
    this.#options.log[level]("oracle_error", {
      oracle: printableUrl(this.#options.config.oracle),
      error: error.message,
    });
    this.#listener?.({ kind: "error", error });
  }

  #schedule(): void {
    const { runtime, config } = this.#options;
    const varied = 1 + config.pollJitter * (2 * runtime.random.number() - 1);
    this.#cancelTimer = runtime.clock.after(config.pollIntervalMs * varied, () => {
      void this.pollNow();
    });
  }

  #watch(): void {
    if (this.#filePath === undefined || this.#stopped) return;
    const { files, clock } = this.#options.runtime;
    this.#unwatch = files.watch(this.#filePath, () => {
      this.#cancelDebounce?.();
      this.#cancelDebounce = clock.after(DEBOUNCE_MS, () => {
        if (this.#polling !== undefined) this.#again = true;
        void this.pollNow();
      });
    });
  }

  async #readFile(path: string, signal: AbortSignal): Promise<string> {
    return await readLimited(
      await this.#options.runtime.files.stream(path),
      this.#options.config.maxOracleBytes,
      signal,
    );
  }

  /** The body, or undefined when the list is what it was (304). */
  async #readHttp(url: string, signal: AbortSignal): Promise<string | undefined> {
    const headers: Record<string, string> = { accept: "application/json" };
    if (this.#etag !== undefined) headers["if-none-match"] = this.#etag;
    const { runtime, config } = this.#options;
    const { allowInsecure } = config;
    const response = await secureGet(runtime.http, url, { allowInsecure, headers, signal });
    if (response.status === 304 && this.#etag !== undefined) {
      await dismiss(response);
      return undefined;
    }
    if (response.status !== 200) {
      await dismiss(response);
      throw new Error(`answered ${response.status}`);
    }
    const text = response.body === null
      ? ""
      : await readLimited(response.body, config.maxOracleBytes, signal);
    // Only a list that was taken may be referred to later: #poll forgets the tag on any error.
    this.#etag = response.headers.get("etag") ?? undefined;
    return text;
  }
}

/** Reads a whole body as UTF-8; throws when it is longer than `maxBytes` or not UTF-8. */
async function readLimited(
  body: ReadableStream<Uint8Array>,
  maxBytes: number,
  signal: AbortSignal,
): Promise<string> {
  const reader = body.getReader();
  const stop = (): void => void reader.cancel(signal.reason).catch(() => {});
  signal.addEventListener("abort", stop);
  const decoder = new TextDecoder("utf-8", { fatal: true });
  let text = "";
  let bytes = 0;
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) break;
      bytes += value.length;
      if (bytes > maxBytes) throw new Error(`the answer is longer than ${maxBytes} bytes`);
      text += decoder.decode(value, { stream: true });
    }
    signal.throwIfAborted();
    return text + decoder.decode();
  } catch (error) {
    void reader.cancel(error).catch(() => {});
    throw error;
  } finally {
    signal.removeEventListener("abort", stop);
  }
}

/** The promise, or the signal's reason if that comes first: a read that hangs must not hold a poll. */
function raceAbort<Value>(promise: Promise<Value>, signal: AbortSignal): Promise<Value> {
  return new Promise((resolve, reject) => {
    const onAbort = (): void => reject(signal.reason);
    if (signal.aborted) onAbort();
    signal.addEventListener("abort", onAbort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", onAbort));
  });
}
