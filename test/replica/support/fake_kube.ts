/**
 * A Kubernetes API server for EndpointSlices and Services, as its documentation describes it: lists
 * in pages, watches from a resourceVersion, bookmarks, 410 Gone for versions that are compacted
 * away, bearer tokens; and with the faults that real ones show.
 */

import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { createServer as createTlsServer } from "node:https";

export interface Slice {
  metadata: { name: string; labels: Record<string, string>; resourceVersion?: string };
  addressType: "IPv4" | "IPv6" | "FQDN";
  endpoints: {
    addresses: string[];
    conditions?: { ready?: boolean | null; serving?: boolean | null; terminating?: boolean | null };
  }[] | null;
  ports: { name?: string; port?: number | null }[] | null;
}

interface Change {
  readonly version: number;
  readonly type: "ADDED" | "MODIFIED" | "DELETED";
  readonly object: Slice;
}

interface Watcher {
  readonly response: ServerResponse;
  readonly selector: string;
}

export class FakeKube {
  readonly #slices = new Map<string, Slice>();
  readonly #watchers = new Set<Watcher>();
  readonly #tls: { cert: string; key: string } | undefined;
  #history: Change[] = [];
  #version = 1000;
  /** Versions below this are compacted away. */
  #oldest = 1000;
  #server: Server | undefined;
  #port = 0;
  services = new Set(["peers"]);
  token: string | undefined;
  /** Statuses to answer instead, used up one by one. */
  failures: number[] = [];
  servicesAllowed = true;
  pageSize = 500;
  /** Called before a page after the first is answered. */
  onNextPage: () => void = () => {};
  /** Statuses of answers whose body begins and never goes on, used up one by one. */
  stalls: number[] = [];
  /** Every page of a list says that there is another one. */
  isEndless = false;
  /** Watches are ended as soon as they begin. */
  isImpatient = false;
  readonly requests: { path: string; query: URLSearchParams; token: string | undefined }[] = [];

  constructor(tls?: { cert: string; key: string }) {
    this.#tls = tls;
  }

  async start(): Promise<void> {
    const handle = (request: IncomingMessage, response: ServerResponse) =>
      this.#handle(request, response);
    const server = this.#tls === undefined
      ? createServer(handle)
      : createTlsServer(this.#tls, handle);
    await new Promise<void>((resolve) => server.listen(this.#port, "127.0.0.1", () => resolve()));
    const address = server.address();
    if (address === null || typeof address === "string") throw new Error("no port");
    this.#port = address.port;
    this.#server = server;
  }

  /** Gone with all connections; `start` brings it back on the same port. */
  async stop(): Promise<void> {
    const server = this.#server;
    this.#server = undefined;
    if (server === undefined) return;
    const closed = new Promise<void>((resolve) => server.close(() => resolve()));
    for (const { response } of this.#watchers) response.destroy();
    this.#watchers.clear();
    server.closeAllConnections();
    await closed;
  }

  get url(): string {
    return `${this.#tls === undefined ? "http" : "https"}://127.0.0.1:${this.#port}`;
  }

  get watchers(): number {
    return this.#watchers.size;
  }

  set(slice: Slice): void {
    const { name } = slice.metadata;
    const type = this.#slices.has(name) ? "MODIFIED" : "ADDED";
    this.#change(type, slice);
  }

  delete(name: string): void {
    const slice = this.#slices.get(name);
    if (slice !== undefined) this.#change("DELETED", slice);
  }

  /** Tells watchers the current version without a change. */
  bookmark(): void {
    this.#version += 1;
    for (const { response } of this.#watchers) {
      const metadata = { resourceVersion: String(this.#version), creationTimestamp: null };
      const object = { kind: "EndpointSlice", apiVersion: "discovery.k8s.io/v1", metadata };
      response.write(JSON.stringify({ type: "BOOKMARK", object }) + "\n");
    }
  }

  /** Forgets the history: older versions are Gone. */
  compact(): void {
    this.#version += 1;
    this.#oldest = this.#version;
    this.#history = [];
  }

  /** Ends all watches in good order, as the server does after `timeoutSeconds`. */
  endWatches(): void {
    for (const { response } of this.#watchers) response.end();
    this.#watchers.clear();
  }

  /** Breaks all watches in the middle of an event. */
  cutWatches(slice: Slice): void {
    const line = JSON.stringify({ type: "MODIFIED", object: slice });
    for (const { response } of this.#watchers) {
      response.write(line.slice(0, line.length - 20), () => response.destroy());
    }
    this.#watchers.clear();
  }

  /** Writes text to all watches in pieces of one byte. */
  async drip(slice: Slice): Promise<void> {
    const version = this.#record("MODIFIED", slice);
    const line = JSON.stringify({ type: "MODIFIED", object: version.object }) + "\n";
    for (const letter of line) {
      for (const { response } of this.#watchers) response.write(letter);
      await new Promise((resolve) => setImmediate(resolve));
    }
  }

  /** An ERROR event, as a watch gets it whose version has expired meanwhile. */
  sendError(code: number): void {
    const object = { kind: "Status", code, reason: "Expired", message: "too old resource version" };
    for (const { response } of this.#watchers) {
      response.write(JSON.stringify({ type: "ERROR", object }) + "\n");
    }
  }

  write(text: string): void {
    for (const { response } of this.#watchers) response.write(text);
  }

  #change(type: Change["type"], slice: Slice): void {
    const change = this.#record(type, slice);
    for (const watcher of this.#watchers) this.#tell(watcher, change);
  }

  #record(type: Change["type"], slice: Slice): Change {
    this.#version += 1;
    const metadata = { ...slice.metadata, resourceVersion: String(this.#version) };
    const change = { version: this.#version, type, object: { ...slice, metadata } };
    if (type === "DELETED") this.#slices.delete(slice.metadata.name);
    else this.#slices.set(slice.metadata.name, change.object);
    this.#history.push(change);
    return change;
  }

  #tell(watcher: Watcher, { type, object }: Change): void {
    if (!matches(object, watcher.selector)) return;
    watcher.response.write(JSON.stringify({ type, object }) + "\n");
  }

  #handle(request: IncomingMessage, response: ServerResponse): void {
    const url = new URL(request.url ?? "", this.url);
    const token = request.headers.authorization;
    this.requests.push({ path: url.pathname, query: url.searchParams, token });
    const fail = (code: number, reason: string): void => {
      const body = {
        kind: "Status",
        apiVersion: "v1",
        status: "Failure",
        code,
        reason,
        message: reason,
      };
      response.writeHead(code, { "content-type": "application/json" }).end(JSON.stringify(body));
    };
    const stalled = this.stalls.shift();
    if (stalled !== undefined) {
      response.writeHead(stalled, { "content-type": "application/json" }).write(`{"kind":`);
      return;
    }
    const failure = this.failures.shift();
    if (failure !== undefined) return fail(failure, "as told");
    if (this.token !== undefined && token !== `Bearer ${this.token}`) {
      return fail(401, "Unauthorized");
    }
    const service = /^\/api\/v1\/namespaces\/ns\/services\/(.+)$/.exec(url.pathname)?.[1];
    if (service !== undefined) {
      if (!this.servicesAllowed) return fail(403, "Forbidden");
      if (!this.services.has(service)) return fail(404, "NotFound");
      response.writeHead(200).end(JSON.stringify({ kind: "Service" }));
      return;
    }
    if (url.pathname !== "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices") {
      return fail(404, "NotFound");
    }
    const selector = url.searchParams.get("labelSelector") ?? "";
    if (url.searchParams.get("watch") !== null) return this.#watch(url, selector, response, fail);
    this.#list(url, selector, response, fail);
  }

  #list(
    url: URL,
    selector: string,
    response: ServerResponse,
    fail: (code: number, reason: string) => void,
  ): void {
    const all = [...this.#slices.values()].filter((slice) => matches(slice, selector));
    const [version, skip] = (url.searchParams.get("continue") ?? `${this.#version}.0`).split(".")
      .map(Number) as [number, number];
    if (skip > 0) this.onNextPage();
    if (version < this.#oldest) return fail(410, "Expired");
    const size = Math.min(Number(url.searchParams.get("limit") ?? 500), this.pageSize);
    const items = all.slice(skip, skip + size);
    const next = skip + size < all.length ? `${version}.${skip + size}` : "";
    const metadata = {
      resourceVersion: String(version),
      continue: this.isEndless ? `${version}.0` : next,
    };
    response.writeHead(200, { "content-type": "application/json" });
    response.end(JSON.stringify({ kind: "EndpointSliceList", metadata, items }));
  }

  #watch(
    url: URL,
    selector: string,
    response: ServerResponse,
    fail: (code: number, reason: string) => void,
  ): void {
    const from = Number(url.searchParams.get("resourceVersion"));
    if (from < this.#oldest) return fail(410, "Expired");
    response.writeHead(200, { "content-type": "application/json", "transfer-encoding": "chunked" });
    response.flushHeaders();
    if (this.isImpatient) {
      response.end();
      return;
    }
    const watcher = { response, selector };
    for (const change of this.#history) if (change.version > from) this.#tell(watcher, change);
    this.#watchers.add(watcher);
    response.on("close", () => this.#watchers.delete(watcher));
  }
}

function matches(slice: Slice, selector: string): boolean {
  const [label, value] = selector.split("=");
  return slice.metadata.labels[label ?? ""] === value;
}

/** A slice of the Service `peers` with one port, named `peer`. */
export function slice(
  name: string,
  endpoints: Slice["endpoints"],
  more: Partial<Slice> & { service?: string } = {},
): Slice {
  const { service = "peers", ...rest } = more;
  return {
    metadata: { name, labels: { "kubernetes.io/service-name": service } },
    addressType: "IPv4",
    endpoints,
    ports: [{ name: "peer", port: 8082 }, { name: "metrics", port: 9090 }],
    ...rest,
  };
}

export const READY = { ready: true, serving: true, terminating: false };
