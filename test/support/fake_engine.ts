/**
 * An inference engine without a model: it publishes KV events on real ZeroMQ sockets, in the dialect
 * of a real engine, keeps a replay ring, and fails in all the ways that real ones do.
 *
 * Used by tests, benches and the demo; `scripts/fake-engine` runs it from a shell (docs/fake-engine.md).
 */

import { encode } from "@msgpack/msgpack";
import { silentLog } from "../../src/observe/log.ts";
import { readSeq, writeSeq } from "../../src/kv/replay.ts";
import type { ZmtpConnection } from "../../src/kv/zmtp.ts";
import { printZmqEndpoint } from "../../src/kv/zmq_endpoint.ts";
import { ZmqSocket } from "../../src/kv/zmq_socket.ts";
import type { Runtime } from "../../src/runtime/runtime.ts";

/**
 * - `vllm-array`: events as arrays, replies of 2 frames (vLLM before 0.26).
 * - `vllm-map`: events as maps, replies of 3 frames (vLLM from 0.26 on).
 * - `sglang`: events as maps, hashes as signed integers, salt in `cache_salt`, replies of 2 frames.
 * - `trtllm`: events as maps with `mm_keys`, token ids as text, replies of 3 frames.
 */
export type Dialect = "vllm-array" | "vllm-map" | "sglang" | "trtllm";
export const DIALECTS: readonly Dialect[] = ["vllm-array", "vllm-map", "sglang", "trtllm"];

/** How the replay socket behaves. `holes` leaves out every third batch of an answer. */
export const REPLAY_MODES = [
  "normal",
  "silent",
  "slow",
  "empty",
  "holes",
  "truncated",
  "garbage",
] as const;
export type ReplayMode = (typeof REPLAY_MODES)[number];

export interface FakeEngineOptions {
  readonly runtime: Runtime;
  readonly dialect?: Dialect;
  /** Where to publish; by default a free port of 127.0.0.1. */
  readonly endpoint?: string;
  /** Where to replay; `null` = no replay socket. */
  readonly replayEndpoint?: string | null;
  /** Connect to `endpoint` instead of binding it. */
  readonly connect?: boolean;
  readonly blockSize?: number;
  /** Batches that the ring keeps. */
  readonly ringBatches?: number;
  /** Rank that batches name; by default none. */
  readonly dpRank?: number;
  readonly topic?: string;
  /** Names the process's incarnation: block hashes depend on it. */
  readonly seed?: number;
}

export interface StoreOptions {
  /** The engine's hash of the block before; default: a new sequence. */
  readonly parent?: bigint;
  readonly medium?: string;
  readonly lora?: string;
  readonly salt?: string;
  readonly groupIndex?: number;
  readonly specKind?: string;
  readonly locality?: string;
  /** Multimodal digest of each block (64 hex digits), or undefined. */
  readonly images?: readonly (string | undefined)[];
}

interface Batch {
  readonly seq: bigint;
  readonly payload: Uint8Array;
}

type Wire = Record<string, unknown>;

export class FakeEngine {
  readonly dialect: Dialect;
  readonly blockSize: number;
  readonly #options: FakeEngineOptions;
  readonly #subscriptions = new Map<ZmtpConnection, string[]>();
  #publisher: ZmqSocket | undefined;
  #replayer: ZmqSocket | undefined;
  #endpoint = "";
  #replayEndpoint: string | undefined;
  #ring: Batch[] = [];
  #events: Wire[] = [];
  #nextSeq = 0n;
  #seed: number;
  #last: Batch | undefined;
  replayMode: ReplayMode = "normal";
  /** Rank that batches name from now on; undefined = none. */
  dpRank: number | undefined;
  /** Start numbers of the replays that were asked for. */
  readonly replayRequests: bigint[] = [];

  private constructor(options: FakeEngineOptions) {
    this.#options = options;
    this.dialect = options.dialect ?? "vllm-map";
    this.blockSize = options.blockSize ?? 16;
    this.#seed = options.seed ?? 1;
    this.dpRank = options.dpRank;
  }

  static async start(options: FakeEngineOptions): Promise<FakeEngine> {
    const engine = new FakeEngine(options);
    await engine.#open(options.endpoint ?? "tcp://127.0.0.1:0", options.replayEndpoint);
    return engine;
  }

  get endpoint(): string {
    return this.#endpoint;
  }

  get replayEndpoint(): string | undefined {
    return this.#replayEndpoint;
  }

  get nextSeq(): bigint {
    return this.#nextSeq;
  }

  /** Subscribers that asked for this engine's topic. */
  get subscribers(): number {
    let count = 0;
    for (const prefixes of this.#subscriptions.values()) if (prefixes.length > 0) count += 1;
    return count;
  }

  // -------------------------------------------------------------------------------------- events

  /** The hashes that this incarnation gives to the full blocks of `tokens`. */
  hashes(tokens: readonly number[], options: StoreOptions = {}): bigint[] {
    const hashes: bigint[] = [];
    let low = (options.parent === undefined ? this.#seed : Number(options.parent & 0xffffffffn)) |
      0;
    let high = (options.parent === undefined ? 0 : Number(options.parent >> 32n)) | 0;
    const mix = (word: number): void => {
      low = Math.imul(low ^ word, 0x85ebca6b);
      high = Math.imul(high ^ low ^ (low >>> 13), 0xc2b2ae35) ^ (low >>> 16);
    };
    for (const text of [options.lora ?? "", options.salt ?? ""]) {
      for (const letter of text) mix(letter.charCodeAt(0) + 1);
      mix(0);
    }
    for (let block = 0; block < Math.floor(tokens.length / this.blockSize); block++) {
      for (const digit of options.images?.[block] ?? "") mix(digit.charCodeAt(0));
      for (let i = 0; i < this.blockSize; i++) mix(tokens[block * this.blockSize + i] ?? 0);
      mix(this.#seed);
      hashes.push((BigInt(high >>> 0) << 32n) | BigInt(low >>> 0));
    }
    return hashes;
  }

  /** Queues a store of the full blocks of `tokens`; returns their hashes. */
  store(tokens: readonly number[], options: StoreOptions = {}): bigint[] {
    const hashes = this.hashes(tokens, options);
    const whole = tokens.slice(0, hashes.length * this.blockSize);
    const isRoot = options.parent === undefined;
    const extraKeys = hashes.map((_, block) => {
      const items: unknown[] = [];
      if (options.lora !== undefined) items.push(options.lora);
      const image = options.images?.[block];
      if (image !== undefined) items.push([image, 0]);
      if (options.salt !== undefined && isRoot && block === 0) items.push(options.salt);
      return items.length === 0 ? null : items;
    });
    const isSglang = this.dialect === "sglang";
    const isTrtllm = this.dialect === "trtllm";
    this.#events.push({
      type: "BlockStored",
      block_hashes: hashes.map((hash) => this.#wireHash(hash)),
      parent_block_hash: options.parent === undefined ? null : this.#wireHash(options.parent),
      token_ids: isTrtllm ? whole.map(String) : whole,
      block_size: this.blockSize,
      lora_id: null,
      medium: options.medium ?? "GPU",
      ...(isSglang
        ? (options.salt === undefined ? {} : { cache_salt: options.salt })
        : { lora_name: options.lora ?? null, extra_keys: extraKeys }),
      ...(isTrtllm ? { mm_keys: extraKeys.map(() => []) } : {}),
      ...groupFields(options),
    });
    return hashes;
  }

  /** Queues a removal. */
  remove(hashes: readonly bigint[], options: StoreOptions = {}): void {
    this.#events.push({
      type: "BlockRemoved",
      block_hashes: hashes.map((hash) => this.#wireHash(hash)),
      medium: options.medium ?? "GPU",
      ...groupFields(options),
    });
  }

  /** Queues "all blocks cleared". */
  clear(): void {
    this.#events.push({ type: "AllBlocksCleared" });
  }

  /** Queues an event as it is given, in map form. */
  raw(event: Wire): void {
    this.#events.push(event);
  }

  /** Sends what is queued as one batch; returns its number. */
  publish(): bigint {
    const batch = this.#batch();
    this.#send(batch);
    return batch.seq;
  }

  // -------------------------------------------------------------------------------------- faults

  /** As `publish`, but the batch gets lost on its way; the ring has it. */
  lose(): bigint {
    return this.#batch().seq;
  }

  /** As `publish`, but neither subscribers nor the ring get the batch. */
  loseForGood(): bigint {
    const batch = this.#batch();
    this.#ring.pop();
    return batch.seq;
  }

  /** Sends the last batch once more. */
  duplicate(): void {
    if (this.#last !== undefined) this.#send(this.#last);
  }

  /** Sends frames as they are given. */
  sendFrames(frames: readonly Uint8Array[]): void {
    for (const [peer, prefixes] of this.#subscriptions) if (prefixes.length > 0) peer.send(frames);
  }

  /** Takes a number for a payload that is not a batch, and sends that. */
  sendPayload(payload: Uint8Array): bigint {
    const batch = { seq: this.#nextSeq++, payload };
    this.#keep(batch);
    this.#send(batch);
    return batch.seq;
  }

  /** Breaks all connections; peers may come back. */
  async disconnect(): Promise<void> {
    for (const peer of [...this.#subscriptions.keys()]) peer.close();
    await Promise.resolve();
  }

  /** The process dies and comes back at the same addresses: numbers from 0, other hashes, no blocks. */
  async restart(): Promise<void> {
    await this.close();
    this.#seed += 1;
    this.#nextSeq = 0n;
    this.#ring = [];
    this.#events = [];
    this.#last = undefined;
    await this.#open(this.#endpoint, this.#replayEndpoint ?? null);
  }

  async close(): Promise<void> {
    await this.#publisher?.close();
    await this.#replayer?.close();
    this.#subscriptions.clear();
  }

  // ------------------------------------------------------------------------------------- sockets

  async #open(endpoint: string, replayEndpoint: string | null | undefined): Promise<void> {
    const { net, clock, random } = this.#options.runtime;
    const isBound = this.#options.connect !== true;
    const shared = { net, clock, random, log: silentLog };
    const publisher = new ZmqSocket({
      ...shared,
      type: "PUB",
      endpoint,
      bind: isBound,
      limits: { maxUnsentBytes: 256 * 1024 * 1024 },
      handlers: {
        up: (peer) => this.#subscriptions.set(peer, []),
        down: (_reason, peer) => {
          if (peer !== undefined) this.#subscriptions.delete(peer);
        },
        message: () => {},
        subscription: (isWanted, prefix, peer) => this.#subscribed(isWanted, prefix, peer),
      },
    });
    this.#publisher = publisher;
    this.#endpoint = isBound ? printZmqEndpoint(await publisher.bound) : endpoint;
    if (replayEndpoint === null) return;
    const replayer = new ZmqSocket({
      ...shared,
      type: "ROUTER",
      endpoint: replayEndpoint ?? "tcp://127.0.0.1:0",
      bind: true,
      limits: { maxUnsentBytes: 256 * 1024 * 1024 },
      handlers: { message: (frames, peer) => void this.#replay(frames, peer) },
    });
    this.#replayer = replayer;
    this.#replayEndpoint = printZmqEndpoint(await replayer.bound);
  }

  #subscribed(isWanted: boolean, prefix: Uint8Array, peer: ZmtpConnection): void {
    const text = new TextDecoder().decode(prefix);
    const prefixes = this.#subscriptions.get(peer) ?? [];
    if (isWanted) prefixes.push(text);
    else prefixes.splice(prefixes.indexOf(text), 1);
    this.#subscriptions.set(peer, prefixes);
  }

  async #replay(frames: readonly Uint8Array[], peer: ZmtpConnection): Promise<void> {
    const start = frames[frames.length - 1];
    if (start?.length !== 8) return;
    const from = readSeq(start);
    this.replayRequests.push(from);
    const mode = this.replayMode;
    if (mode === "silent") return;
    if (mode === "garbage") {
      peer.send([EMPTY, start, start, start, start, start]);
      return;
    }
    const hasTopic = this.dialect === "vllm-map" || this.dialect === "trtllm";
    const topic = new TextEncoder().encode(this.#options.topic ?? "");
    const answer = (seq: bigint, payload: Uint8Array): void => {
      const parts = [writeSeq(seq), payload];
      peer.send([EMPTY, ...(hasTopic ? [topic, ...parts] : parts)]);
    };
    const wanted = this.#ring.filter((batch) => batch.seq >= from);
    let sent = 0;
    for (const batch of mode === "empty" ? [] : wanted) {
      sent += 1;
      if (mode === "holes" && sent % 3 === 0) continue;
      if (mode === "truncated" && sent > wanted.length / 2) break;
      if (mode === "slow") await this.#wait(20);
      answer(batch.seq, batch.payload);
    }
    answer(2n ** 64n - 1n, EMPTY);
  }

  #wait(delayMs: number): Promise<void> {
    return new Promise((resolve) => {
      this.#options.runtime.clock.after(delayMs, resolve);
    });
  }

  #batch(): Batch {
    const events = this.#events.map((event) =>
      this.dialect === "vllm-array" ? arrayOf(event) : event
    );
    this.#events = [];
    const { clock } = this.#options.runtime;
    const content: unknown[] = [clock.now() / 1000 + Number(this.#nextSeq) * 1e-6, events];
    if (this.dpRank !== undefined) content.push(this.dpRank);
    const payload = encode(content, { useBigInt64: true });
    const batch = { seq: this.#nextSeq++, payload };
    this.#keep(batch);
    return batch;
  }

  #keep(batch: Batch): void {
    this.#last = batch;
    this.#ring.push(batch);
    while (this.#ring.length > (this.#options.ringBatches ?? 10_000)) this.#ring.shift();
  }

  #send(batch: Batch): void {
    const topic = this.#options.topic ?? "";
    const frames = [new TextEncoder().encode(topic), writeSeq(batch.seq), batch.payload];
    for (const [peer, prefixes] of this.#subscriptions) {
      if (prefixes.some((prefix) => topic.startsWith(prefix))) peer.send(frames);
    }
  }

  /** SGLang sends hashes as signed integers. */
  #wireHash(hash: bigint): bigint {
    return this.dialect === "sglang" ? BigInt.asIntN(64, hash) : hash;
  }
}

function groupFields(options: StoreOptions): Wire {
  return {
    ...(options.groupIndex === undefined ? {} : { group_idx: options.groupIndex }),
    ...(options.specKind === undefined ? {} : { kv_cache_spec_kind: options.specKind }),
    ...(options.locality === undefined ? {} : { locality: options.locality }),
  };
}

/** The array form of an event, trailing defaults omitted as msgspec omits them. */
function arrayOf(event: Wire): unknown[] {
  const tail = [
    event["group_idx"],
    event["kv_cache_spec_kind"],
    event["kv_cache_spec_sliding_window"],
    event["locality"],
  ];
  while (tail.length > 0 && tail[tail.length - 1] === undefined) tail.pop();
  const slots = tail.map((value) => value ?? null);
  switch (event["type"]) {
    case "BlockStored":
      return [
        "BlockStored",
        event["block_hashes"],
        event["parent_block_hash"] ?? null,
        event["token_ids"],
        event["block_size"],
        event["lora_id"] ?? null,
        event["medium"] ?? null,
        event["lora_name"] ?? null,
        event["extra_keys"] ?? null,
        ...slots,
      ];
    case "BlockRemoved":
      return ["BlockRemoved", event["block_hashes"], event["medium"] ?? null, ...slots];
    default:
      return Object.values(event);
  }
}

const EMPTY = new Uint8Array(0);
