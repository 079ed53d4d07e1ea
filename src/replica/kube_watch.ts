/**
 * Follows a collection of a Kubernetes API: list, then watch from there, for ever.
 *
 * As the API's documentation has it: a watch goes on from the last resourceVersion seen (bookmarks
 * count), may end at any time, and a version that is too old (410 Gone, as a status or as an ERROR
 * event) means to list again. While the API cannot be reached nothing is known to have changed, so
 * nothing is reported.
 */

import { byteLines, LineCut } from "../streams/byte_lines.ts";
import { patientReader, StreamStalled } from "../streams/patient_reader.ts";
import type { Log } from "../observe/log.ts";
import type { Runtime } from "../runtime/runtime.ts";
import { type KubeClient, KubeStatus } from "./kube_client.ts";

export interface KubeObject {
  readonly metadata: { readonly name: string; readonly resourceVersion?: string };
  readonly [field: string]: unknown;
}

export interface KubeWatchOptions {
  readonly runtime: Pick<Runtime, "clock" | "random">;
  readonly log: Log;
  readonly client: KubeClient;
  /** E.g. `/apis/discovery.k8s.io/v1/namespaces/x/endpointslices`. */
  readonly path: string;
  readonly labelSelector: string;
  /** Called after each complete list and after each change, with all objects. */
  readonly onObjects: (objects: readonly KubeObject[]) => void;
  /** Called after the first complete list. */
  readonly onListed: () => void;
}

const PAGE_SIZE = 500;
/** Pages of one list: a server that always names a next one must not be read for ever. */
const MOST_PAGES = 200;
/** How long the API server is asked to keep one watch open. */
const WATCH_SECONDS = 300;
const MAX_EVENT_BYTES = 4 * 1024 * 1024;
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 30_000;

/** The version to watch from is too old: list again. */
class Expired extends Error {
  override readonly name = "Expired";
}

export class KubeWatch {
  readonly #options: KubeWatchOptions;
  readonly #stop = new AbortController();
  readonly #objects = new Map<string, KubeObject>();
  #version: string | undefined;
  /** Until the next try after a failure; doubles with each, until something comes. */
  #pauseMs = FIRST_PAUSE_MS;

  constructor(options: KubeWatchOptions) {
    this.#options = options;
  }

  /** Runs until `stop`. Never rejects. */
  async run(): Promise<void> {
    const { log, path } = this.#options;
    while (!this.#stop.signal.aborted) {
      try {
        if (this.#version === undefined) await this.#list();
        const events = await this.#watch();
        // A server that ends every watch at once must not be asked in a loop.
        if (events === 0) await this.#pause(FIRST_PAUSE_MS);
      } catch (error) {
        if (this.#stop.signal.aborted) return;
        if (error instanceof Expired || (error instanceof KubeStatus && error.status === 410)) {
          log.info("kube_watch_expired", { path });
          this.#version = undefined;
        } else log.warn("kube_watch_failed", { path, error, retryMs: this.#pauseMs });
        await this.#pause(this.#pauseMs);
        this.#pauseMs = Math.min(this.#pauseMs * 2, LONGEST_PAUSE_MS);
      }
    }
  }

  stop(): void {
    this.#stop.abort(new Error("stopped"));
  }

  /** All pages; the objects are replaced only when the last one is there. */
  async #list(): Promise<void> {
    const { client, onObjects, onListed } = this.#options;
    const found: KubeObject[] = [];
    let next: string | undefined;
    let version: string | undefined;
    let pages = 0;
    do {
      if (++pages > MOST_PAGES) throw new Error(`a list of over ${MOST_PAGES} pages`);
      const query = this.#query({ limit: String(PAGE_SIZE), ...(next && { continue: next }) });
      const page = asList(await client.json(query, this.#stop.signal));
      found.push(...page.items);
      version = page.version;
      next = page.next;
    } while (next !== undefined);
    this.#objects.clear();
    for (const object of found) this.#objects.set(object.metadata.name, object);
    this.#version = version;
    this.#pauseMs = FIRST_PAUSE_MS;
    onObjects([...this.#objects.values()]);
    onListed();
  }

  /** One watch, until it ends. The number of events that it brought. */
  async #watch(): Promise<number> {
    const { client } = this.#options;
    const query = this.#query({
      watch: "1",
      allowWatchBookmarks: "true",
      resourceVersion: this.#version ?? "",
      timeoutSeconds: String(WATCH_SECONDS),
    });
    return await client.get(query, this.#stop.signal, (response) => this.#events(response));
  }

  async #events(response: Response): Promise<number> {
    const { runtime } = this.#options;
    if (response.body === null) return 0;
    const chunks = patientReader(response.body, {
      clock: runtime.clock,
      // The server ends a watch by itself; one that is silent beyond that is a dead connection.
      idleTimeoutMs: WATCH_SECONDS * 1000 + 30_000,
      signal: this.#stop.signal,
    });
    let events = 0;
    try {
      const limits = { maxLineBytes: MAX_EVENT_BYTES, unendedLine: "refuse" } as const;
      for await (const lines of byteLines(chunks, limits)) {
        for (const line of lines) {
          if (line.length === 0) continue;
          this.#event(JSON.parse(decoder.decode(line)));
          events += 1;
        }
      }
    } catch (error) {
      // A connection that was cut in the middle of an event: that event comes again.
      if (!(error instanceof LineCut || error instanceof StreamStalled)) throw error;
    }
    return events;
  }

  #event(value: unknown): void {
    const { type, object } = asEvent(value);
    if (type === "ERROR") {
      const status = object as { code?: unknown; message?: unknown };
      if (status.code === 410) throw new Expired(String(status.message));
      this.#version = undefined;
      throw new Error(`the watch reports ${String(status.code)}: ${String(status.message)}`);
    }
    const changed = asObject(object);
    this.#pauseMs = FIRST_PAUSE_MS;
    this.#version = changed.metadata.resourceVersion ?? this.#version;
    if (type === "BOOKMARK") return;
    if (type === "DELETED") this.#objects.delete(changed.metadata.name);
    else this.#objects.set(changed.metadata.name, changed);
    this.#options.onObjects([...this.#objects.values()]);
  }

  #query(parameters: Record<string, string>): string {
    const query = new URLSearchParams({
      labelSelector: this.#options.labelSelector,
      ...parameters,
    });
    return `${this.#options.path}?${query}`;
  }

  #pause(ms: number): Promise<void> {
    const { clock, random } = this.#options.runtime;
    const { signal } = this.#stop;
    return new Promise((resolve) => {
      const end = (): void => {
        stopTimer();
        signal.removeEventListener("abort", end);
        resolve();
      };
      const stopTimer = clock.after(ms * (0.5 + random.number()), end);
      signal.addEventListener("abort", end);
    });
  }
}

const decoder = new TextDecoder();

function fields(value: unknown, what: string): Record<string, unknown> {
  if (typeof value === "object" && value !== null) return value as Record<string, unknown>;
  throw new Error(`the API server sent ${what} that is no object`);
}

function asObject(value: unknown): KubeObject {
  const object = fields(value, "an item");
  const metadata = fields(object.metadata, "metadata");
  const { name, resourceVersion } = metadata;
  return {
    ...object,
    metadata: {
      // A bookmark has a version and no name.
      name: typeof name === "string" ? name : "",
      ...(typeof resourceVersion === "string" ? { resourceVersion } : {}),
    },
  };
}

function asList(value: unknown) {
  const list = fields(value, "a list");
  const metadata = fields(list.metadata, "metadata");
  if (!Array.isArray(list.items) && list.items !== null) throw new Error("a list without items");
  const items: unknown[] = list.items ?? [];
  return {
    items: items.map(asObject),
    version: typeof metadata.resourceVersion === "string" ? metadata.resourceVersion : undefined,
    next: typeof metadata.continue === "string" && metadata.continue !== ""
      ? metadata.continue
      : undefined,
  };
}

function asEvent(value: unknown): { type: string; object: unknown } {
  const { type, object } = fields(value, "an event");
  if (typeof type !== "string") throw new Error("the API server sent an event without a type");
  return { type, object };
}
