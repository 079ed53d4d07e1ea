/**
 * A small world under one virtual clock: workers that publish events with losses and restarts, and
 * replicas with real lanes, the real dump handler, the real reader and the real recovery. Only the
 * index (a map) and the wire between replicas (function calls with cuts and pauses) are stand-ins.
 */

import * as v from "valibot";
import { replicaSchema } from "../../../src/config/replica.ts";
import type { KvEvent } from "../../../src/kv/blocks.ts";
import { KvStore } from "../../../src/kv/kv_store.ts";
import type { Lane, LaneBatch, ReplayEnd } from "../../../src/kv/lane.ts";
import type { LaneKey } from "../../../src/kv/lane_key.ts";
import { silentLog } from "../../../src/observe/log.ts";
import { createMetrics } from "../../../src/observe/metrics.ts";
import { createDumpHandler } from "../../../src/replica/dump_handler.ts";
import { createDumpMetrics } from "../../../src/replica/dump_metrics.ts";
import { type Discovery, PeerSet } from "../../../src/replica/peer_view.ts";
import { createRecovery, type Recovery } from "../../../src/replica/recovery.ts";
import { createRecoveryMetrics } from "../../../src/replica/recovery_metrics.ts";
import { ConnectFailed, type FetchInit, type Random } from "../../../src/runtime/runtime.ts";
import { MapIndex } from "./map_index.ts";
import { seeded, SimClock } from "./sim_clock.ts";

export interface WorldOptions {
  readonly seed: number;
  readonly workers: number;
  /** Batches that a worker can replay. */
  readonly ring: number;
  /** Chance that a live batch does not reach one subscriber. */
  readonly loss: number;
  /** Chance that it reaches one after those that were published after it. */
  readonly late?: number;
  /** Chance that a publisher restarts at a step. */
  readonly restart: number;
  readonly hasReplay: boolean;
}

export class World {
  readonly clock = new SimClock();
  readonly chance: () => number;
  readonly random: Random;
  readonly workers: Worker[] = [];
  readonly replicas = new Map<string, Replica>();
  readonly options: WorldOptions;

  constructor(options: WorldOptions) {
    this.options = options;
    this.chance = seeded(options.seed);
    const chance = this.chance;
    let ids = 0;
    this.random = {
      number: chance,
      uuid: () => `uuid-${options.seed}-${ids++}`,
      bytes: (length) => Uint8Array.from({ length }, () => Math.floor(chance() * 256)),
    };
    for (let id = 0; id < options.workers; id += 1) this.workers.push(new Worker(this, String(id)));
  }

  /** A whole number from 0 to `below` - 1. */
  pick(below: number): number {
    return Math.floor(this.chance() * below);
  }
}

/** One lane's publisher; the content it has is the truth. */
export class Worker {
  readonly key: LaneKey;
  readonly #world: World;
  readonly #subscribers = new Set<Lane>();
  /** Lanes whose connection broke with the process before and is not back yet. */
  readonly #broken = new Set<Lane>();
  readonly #truth = new MapIndex();
  #handle = this.#truth.openLane();
  #seq = 0n;
  #ring: LaneBatch[] = [];
  #names: bigint[] = [];
  #made = 0n;
  #restarts = 0;

  constructor(world: World, id: string) {
    this.#world = world;
    this.key = { model: "model:7b", group: "default", worker: id, dpRank: 0 };
  }

  get rows(): string[] {
    return this.#truth.rows(this.#handle);
  }

  /** Publishes one batch of random events, in order, to whoever it reaches. */
  publish(): void {
    const events = Array.from({ length: 1 + this.#world.pick(3) }, () => this.#event());
    const batch = { seq: this.#seq++, events, bytes: 64 };
    for (const event of events) this.#truth.apply(this.#handle, event);
    this.#ring.push(batch);
    if (this.#ring.length > this.#world.options.ring) this.#ring.shift();
    for (const lane of this.#subscribers) {
      if (this.#world.chance() >= this.#world.options.loss) this.#deliver(lane, batch);
    }
  }

  #deliver(lane: Lane, batch: LaneBatch): void {
    const { clock, chance, options: { late = 0 } } = this.#world;
    if (late === 0 || chance() >= late) return lane.receive(batch);
    // What is under way when the connection breaks never arrives.
    const restarts = this.#restarts;
    clock.after(this.#world.pick(60), () => {
      if (restarts === this.#restarts && this.#subscribers.has(lane)) lane.receive(batch);
    });
  }

  /** The process ends and another one begins: empty, counting from 0. */
  restart(): void {
    this.#restarts += 1;
    this.#handle = this.#truth.openLane();
    this.#seq = 0n;
    this.#ring = [];
    this.#names = [];
    // Connections break, each subscriber notices at its own time, and what comes before it is back
    // does not reach it.
    const { clock } = this.#world;
    for (const lane of [...this.#subscribers]) {
      this.#subscribers.delete(lane);
      this.#broken.add(lane);
      clock.after(this.#world.pick(40), () => lane.sourceDown("reset"));
      clock.after(40 + this.#world.pick(100), () => {
        if (!this.#broken.delete(lane)) return;
        this.#subscribers.add(lane);
        lane.sourceUp(true);
      });
    }
  }

  /** The lane is known to have a publisher, and no connection to it yet. */
  announce(lane: Lane): void {
    lane.attach(this.#world.options.hasReplay ? { replay: this.#replay } : {});
  }

  subscribe(lane: Lane): void {
    this.#subscribers.add(lane);
    lane.sourceUp(false);
  }

  unsubscribe(lane: Lane): void {
    this.#subscribers.delete(lane);
    this.#broken.delete(lane);
  }

  /** Each subscriber gets what it needs to notice any hole at the end. */
  async flush(): Promise<void> {
    const { options } = this.#world;
    for (let at = 0; at < 3; at += 1) {
      const batch = { seq: this.#seq++, events: [this.#event()], bytes: 64 };
      for (const event of batch.events) this.#truth.apply(this.#handle, event);
      this.#ring.push(batch);
      if (this.#ring.length > options.ring) this.#ring.shift();
      for (const lane of this.#subscribers) lane.receive(batch);
      await this.#world.clock.run(() => false, 2000);
    }
  }

  readonly #replay = async (
    from: bigint,
    deliver: (batch: LaneBatch) => boolean,
    stop: AbortSignal,
  ): Promise<ReplayEnd> => {
    const { clock } = this.#world;
    const ring = [...this.#ring];
    await new Promise<void>((resolve) => clock.after(1 + this.#world.pick(20), resolve));
    if (stop.aborted) return { kind: "stopped" };
    if (this.#world.chance() < 0.05) return { kind: "timeout" };
    for (const batch of ring) {
      if (batch.seq < from) continue;
      if (!deliver(batch)) return { kind: "stopped" };
    }
    return { kind: "complete" };
  };

  #event(): KvEvent {
    const { chance } = this.#world;
    const dice = chance();
    if (dice < 0.02) {
      this.#names = [];
      return { kind: "cleared" };
    }
    const known = (): bigint => this.#names[this.#world.pick(this.#names.length)] as bigint;
    if (dice < 0.3 && this.#names.length > 0) {
      const hashes = BigUint64Array.of(known());
      return { kind: "removed", hashes, tier: chance() < 0.8 ? "device" : "host" };
    }
    const parent = this.#names.length > 0 && chance() < 0.7 ? known() : undefined;
    const count = 1 + this.#world.pick(4);
    const hashes = BigUint64Array.from({ length: count }, () => this.#name());
    this.#names.push(...hashes);
    return {
      kind: "stored_hashed",
      parent,
      hashes,
      locals: hashes.map((hash) => hash ^ 0x5555555555555555n),
      tier: chance() < 0.8 ? "device" : "host",
    };
  }

  #name(): bigint {
    this.#made += 1n;
    return BigInt.asUintN(
      64,
      (BigInt(this.key.worker) * 1_000_003n + this.#made) * 0x9e3779b97f4a7c15n,
    );
  }
}

/** A dump is cut so many bytes after the end of one of its lines: 0 = right between two lines. */
export interface Cut {
  readonly lines: number;
  readonly bytes: number;
}

export interface ReplicaPlan {
  /** What the wire does to the n-th dump that this replica gives; undefined = it comes whole. */
  readonly cut?: (answer: number) => Cut | undefined;
  /** Answers 503 without saying why. */
  readonly isBroken?: boolean;
}

export class Replica {
  readonly name: string;
  readonly url: string;
  readonly store: KvStore<MapIndex>;
  readonly recovery: Recovery;
  readonly peers = new PeerSet();
  readonly conditions: { ok: boolean; reason: string }[] = [];
  readonly #world: World;
  readonly #app: { fetch(request: Request): Response | Promise<Response> };
  isDown = false;
  plan: ReplicaPlan = {};
  answers = 0;

  constructor(world: World, name: string, config: Record<string, unknown>) {
    this.#world = world;
    this.name = name;
    this.url = `http://${name}:8082`;
    const { clock, random } = world;
    this.store = new KvStore({
      clock,
      random,
      createIndex: () => Promise.resolve(new MapIndex()),
      hashBytes: () => 0n,
      laneLimits: { replayBackoffMs: 5 },
    });
    const metrics = createMetrics();
    const discovery: Discovery = {
      start: () => Promise.resolve(),
      stop: () => {},
      current: () => this.peers.current,
      onChange: (listener) => this.peers.onChange(listener),
    };
    const runtime = { clock, random, http: { serve: notHere, fetch: this.#fetch } };
    this.recovery = createRecovery({
      runtime,
      log: silentLog,
      metrics: createRecoveryMetrics(metrics),
      events: { emit: (kind) => ({ id: 1, ts: "", kind }) },
      store: this.store,
      discovery,
      config: v.parse(replicaSchema, { peers: ["http://unused:1"], ...config }),
      replica: name,
      setCondition: (ok, reason) => this.conditions.push({ ok, reason }),
    });
    this.#app = createDumpHandler({
      runtime,
      log: silentLog,
      metrics: createDumpMetrics(metrics),
      store: this.store,
      replica: name,
      recovered: () => this.recovery.recovered,
      offers: (lane) => this.recovery.offers(lane),
      hasSource: () => this.recovery.hasSource,
    });
    world.replicas.set(this.url, this);
  }

  async open(workers: readonly Worker[] = this.#world.workers): Promise<void> {
    for (const worker of workers) {
      worker.announce(await this.store.open(worker.key, { blockSize: 4 }));
    }
  }

  subscribe(workers: readonly Worker[] = this.#world.workers): void {
    for (const worker of workers) worker.subscribe(this.lane(worker));
  }

  lane(worker: Worker): Lane {
    const lane = this.store.lane(worker.key);
    if (lane === undefined) throw new Error("no such lane");
    return lane;
  }

  rows(worker: Worker): string[] {
    const { handle } = this.lane(worker);
    return this.store.partition(worker.key.model, worker.key.group)?.index.rows(handle) ?? [];
  }

  /** What others get when they ask this replica. */
  async answer(request: Request): Promise<Response> {
    if (this.isDown) throw new ConnectFailed("refused", "nobody listens");
    this.answers += 1;
    if (this.plan.isBroken === true) return new Response("broken", { status: 503 });
    const response = await this.#app.fetch(request);
    if (response.status !== 200 || response.body === null) return response;
    const cut = this.plan.cut?.(this.answers);
    return new Response(this.#slow(response.body, cut), { headers: response.headers });
  }

  readonly #fetch = async (url: string | URL, init?: FetchInit): Promise<Response> => {
    const { origin } = new URL(url);
    const peer = this.#world.replicas.get(origin);
    await new Promise<void>((resolve) => this.#world.clock.after(this.#world.pick(10), resolve));
    if (peer === undefined) throw new ConnectFailed("refused", "nobody listens");
    const headers = new Headers(init?.headers);
    return await peer.answer(new Request(url, { headers }));
  };

  /** The body in small pieces with pauses; broken off at `cut`, or when we go down. */
  #slow(body: ReadableStream<Uint8Array>, cut: Cut | undefined): ReadableStream<Uint8Array> {
    const reader = body.getReader();
    const { clock } = this.#world;
    let rest: Uint8Array = new Uint8Array(0);
    let linesLeft = cut?.lines ?? Infinity;
    let bytesLeft = cut?.bytes ?? Infinity;
    /** How much of `piece` comes before the cut. */
    const allowed = (piece: Uint8Array): number => {
      let at = 0;
      for (; linesLeft > 0 && at < piece.length; at += 1) if (piece[at] === 10) linesLeft -= 1;
      const more = Math.min(piece.length - at, bytesLeft);
      if (linesLeft === 0) bytesLeft -= more;
      return at + (linesLeft === 0 ? more : 0);
    };
    return new ReadableStream({
      pull: async (controller) => {
        if (rest.length === 0) {
          const next = await reader.read();
          if (next.done) {
            controller.close();
            return;
          }
          rest = next.value;
        }
        await new Promise<void>((resolve) => clock.after(this.#world.pick(30), resolve));
        const piece = rest.subarray(0, 1 + this.#world.pick(4000));
        rest = rest.subarray(piece.length);
        const size = this.isDown ? 0 : allowed(piece);
        if (size > 0) controller.enqueue(piece.subarray(0, size));
        if (size === piece.length) return;
        // Half of the cuts look like a clean end, as with an HTTP/1.0 peer.
        if (this.#world.chance() < 0.5) controller.close();
        else controller.error(new Error("connection reset"));
        await reader.cancel();
      },
      cancel: (reason) => reader.cancel(reason),
    }, { highWaterMark: 0 });
  }
}

function notHere(): never {
  throw new Error("nothing is served here");
}
