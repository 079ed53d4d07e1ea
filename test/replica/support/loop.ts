/**
 * A recovery under a virtual clock, with peers that are functions: for tests of the loop itself.
 * What comes over the wire is made and read by the real writer and reader.
 */

import * as v from "valibot";
import { type ReplicaConfig, replicaSchema } from "../../../src/config/replica.ts";
import { createLog } from "../../../src/observe/log.ts";
import { createMetrics, type Metrics } from "../../../src/observe/metrics.ts";
import { BatonError, errorResponse } from "../../../src/errors.ts";
import { dumpSlices } from "../../../src/replica/dump_writer.ts";
import { REPLICA_HEADER } from "../../../src/replica/dump_handler.ts";
import type { LaneCut } from "../../../src/replica/lane_port.ts";
import { type Discovery, PeerSet, type PeerView } from "../../../src/replica/peer_view.ts";
import { createRecovery, type Recovery } from "../../../src/replica/recovery.ts";
import { createRecoveryMetrics } from "../../../src/replica/recovery_metrics.ts";
import { ConnectFailed, type FetchInit } from "../../../src/runtime/runtime.ts";
import { emptyCut, keyOf, Shelf } from "./shelf.ts";
import { seeded, settle, SimClock } from "./sim_clock.ts";

export type Answer = (request: Request) => Response | Promise<Response>;

export interface LoopOptions {
  readonly config?: Record<string, unknown>;
  readonly lanes?: readonly LaneCut[];
  readonly seed?: number;
  readonly discovery?: Partial<Discovery>;
  readonly workersListed?: Promise<void>;
  readonly importLoad?: (records: readonly unknown[]) => void;
  readonly readToken?: () => Promise<string>;
  readonly replica?: string;
  readonly predecessors?: readonly string[];
}

export class Loop {
  readonly clock = new SimClock();
  readonly peers = new PeerSet();
  readonly answers = new Map<string, Answer>();
  /** URLs that were asked, in order, with the virtual time. */
  readonly asked: { url: string; atMs: number; request: Request }[] = [];
  readonly conditions: { ok: boolean; reason: string }[] = [];
  readonly events: { kind: string; fields: Record<string, unknown> }[] = [];
  readonly log: Record<string, unknown>[] = [];
  readonly metrics: Metrics = createMetrics();
  readonly store: Shelf;
  readonly recovery: Recovery;
  readonly config: ReplicaConfig;
  ended: string | undefined;
  readonly #listeners = new Set<() => void>();

  constructor(options: LoopOptions = {}) {
    this.store = new Shelf(options.lanes ?? [emptyCut(keyOf("0"))]);
    this.config = v.parse(replicaSchema, {
      peers: ["http://unused:1"],
      subscribeTimeoutMs: 0,
      ...options.config,
    });
    const random = seeded(options.seed ?? 1);
    this.recovery = createRecovery({
      runtime: {
        clock: this.clock,
        random: { number: random, uuid: () => "uuid", bytes: (length) => new Uint8Array(length) },
        http: { serve: () => Promise.reject(new Error("not here")), fetch: this.#fetch },
      },
      log: createLog({
        write: (line) => this.log.push(JSON.parse(line) as Record<string, unknown>),
        now: () => this.clock.now(),
      }),
      metrics: createRecoveryMetrics(this.metrics),
      events: {
        emit: (kind, fields = {}) => {
          this.events.push({ kind, fields });
          return { id: this.events.length, ts: "", kind };
        },
      },
      store: this.store,
      discovery: {
        start: () => Promise.resolve(),
        stop: () => {},
        current: () => this.peers.current,
        onChange: (listener) => {
          this.#listeners.add(listener);
          const forget = this.peers.onChange(listener);
          return () => {
            this.#listeners.delete(listener);
            forget();
          };
        },
        ...options.discovery,
      },
      config: this.config,
      replica: options.replica ?? "joiner",
      setCondition: (ok, reason) => this.conditions.push({ ok, reason }),
      ...(options.workersListed === undefined ? {} : { workersListed: options.workersListed }),
      ...(options.importLoad === undefined ? {} : { importLoad: options.importLoad }),
      ...(options.readToken === undefined ? {} : { readToken: options.readToken }),
      ...(options.predecessors === undefined ? {} : { predecessors: options.predecessors }),
    });
    this.recovery.done.then(
      (state) => (this.ended = state),
      (error: unknown) => (this.ended = `failed: ${String(error)}`),
    );
  }

  /** Sets the members; a bare name is a peer that serves. */
  members(...peers: (string | (Partial<PeerView> & { name: string }))[]): void {
    this.peers.replace(peers.map((peer) => {
      const { name, ...more } = typeof peer === "string" ? { name: peer } : peer;
      return { url: `http://${name}:8082`, serving: true, terminating: false, ...more };
    }));
  }

  /** Tells listeners that something changed that is no change of the candidates. */
  churn(): void {
    for (const listener of [...this.#listeners]) listener();
  }

  answer(name: string, answer: Answer): void {
    this.answers.set(`http://${name}:8082`, answer);
  }

  start(): void {
    this.recovery.start();
  }

  /** Lets virtual time pass until the recovery has ended, or for `mostMs`. */
  async run(mostMs = 600_000): Promise<string> {
    await this.clock.run(() => this.ended !== undefined, mostMs);
    return this.ended ?? "running";
  }

  /** Lets exactly this much virtual time pass. */
  async pass(ms: number): Promise<void> {
    await this.clock.run(() => false, ms);
  }

  get names(): string[] {
    return this.asked.map(({ url }) => new URL(url).hostname);
  }

  async gauge(): Promise<string | undefined> {
    const text = await this.metrics.text();
    return /baton_kv_recovery_state\{state="(\w+)"\} 1/.exec(text)?.[1];
  }

  readonly #fetch = async (url: string | URL, init?: FetchInit): Promise<Response> => {
    const request = new Request(url, { headers: new Headers(init?.headers) });
    const { origin } = new URL(url);
    this.asked.push({ url: origin, atMs: this.clock.monotonic(), request });
    const answer = this.answers.get(origin);
    if (answer === undefined) throw new ConnectFailed("refused", "nobody listens");
    const aborted = new Promise<never>((_, reject) => {
      init?.signal?.addEventListener("abort", () => reject(init.signal?.reason));
    });
    return await Promise.race([answer(request), aborted]);
  };
}

/** A peer's whole dump of these lanes. */
export function dumpOf(
  cuts: readonly LaneCut[],
  more: { load?: unknown[]; size?: number } = {},
): Answer {
  return (request) => {
    const wanted = new URL(request.url).searchParams.getAll("lane");
    const slices = dumpSlices({
      store: new Shelf(cuts, more.size),
      replica: "peer",
      nowMs: 0,
      ...(wanted.length === 0 ? {} : {
        wanted: (lane) => {
          const { model, group, worker, dpRank } = lane.key;
          return wanted.includes(JSON.stringify([model, group, worker, dpRank]));
        },
      }),
      ...(more.load === undefined ? {} : { exportLoad: () => more.load ?? [] }),
    });
    return ndjson(ReadableStream.from(slices));
  };
}

export function ndjson(body: ReadableStream<Uint8Array> | Uint8Array<ArrayBuffer>): Response {
  return new Response(body, { headers: { "content-type": "application/x-ndjson" } });
}

/** The dump, cut off after so many bytes. */
export function cutDump(cuts: readonly LaneCut[], bytes: number): Answer {
  return async (request) => {
    const whole = new Uint8Array(await (await dumpOf(cuts)(request)).arrayBuffer());
    return ndjson(whole.slice(0, bytes));
  };
}

/** A body that stays silent until `finish` gives it what the answer gives. */
export function gate(
  inner: Answer,
): { answer: Answer; open(): void; fail(): void; asked(): number } {
  let asked = 0;
  let open: () => void = () => {};
  let fail: (error: Error) => void = () => {};
  const opened = new Promise<void>((resolve, reject) => {
    open = resolve;
    fail = reject;
  });
  opened.catch(() => {});
  return {
    answer: async (request) => {
      asked += 1;
      await opened;
      return await inner(request);
    },
    open: () => open(),
    fail: () => fail(new Error("connection reset")),
    asked: () => asked,
  };
}

/** As our own dump handler answers while it has no index. */
export function notRecovered(more: { hasSource?: boolean; replica?: string } = {}): Answer {
  return () => {
    const response = errorResponse(
      new BatonError("not_ready", "not recovered", {
        retryAfterS: 1,
        detail: { hasSource: more.hasSource ?? false },
      }),
    );
    response.headers.set(REPLICA_HEADER, more.replica ?? "peer");
    return response;
  };
}

export function status(code: number, headers: Record<string, string> = {}): Answer {
  return () => new Response("no", { status: code, headers });
}

export { settle };
