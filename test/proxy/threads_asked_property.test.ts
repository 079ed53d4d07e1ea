/**
 * Requests that the main thread decides about, over random orders of messages: a pool's in small, with
 * the real two ends between which they cross. No target that counts as drained has bytes of such a
 * request moved to it, every lease and every booking is given back exactly once, and everybody who
 * asked is told an end.
 */

import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { BatonError } from "../../src/errors.ts";
import type { Exchange, ForwardOutcome } from "../../src/proxy/exchange.ts";
import { type Lease, Target } from "../../src/proxy/target.ts";
import type { Moved, PoolBytes } from "../../src/router/pool_bytes.ts";
import type { PromptFacts } from "../../src/router/prompt_facts.ts";
import { AskedExchanges } from "../../src/threads/asked.ts";
import type { ToMain, ToThread } from "../../src/threads/messages.ts";
import { RemoteExchange } from "../../src/threads/remote_exchange.ts";
import { Replicas } from "../../src/threads/replicas.ts";
import { SharedTargetLeases } from "../../src/threads/shared_targets.ts";

const FACTS: PromptFacts = {
  model: "m",
  session: undefined,
  salt: undefined,
  tokens: undefined,
  source: undefined,
  text: "",
  tokenize: undefined,
};

type End = "complete" | "refused" | "broken" | "cut";

/** A client's request on a thread, whose bytes the test moves. */
class Request implements Exchange, PoolBytes {
  readonly requestId = "r";
  readonly method = "POST";
  readonly target = "/";
  readonly path = "/";
  readonly headers = [];
  readonly remoteAddress = "";
  finished = false;
  answered = false;
  /** Where its bytes are going now. */
  moving: Target | undefined;
  /** How often it was told an end. */
  ends = 0;
  #lease: Lease | undefined;
  #finish: ((moved: Moved) => void) | undefined;
  #prompt: ((facts: PromptFacts) => void) | undefined;
  #noPrompt: ((error: BatonError) => void) | undefined;
  readonly #aborts: (() => void)[] = [];

  header(): undefined {}
  note(): void {}
  readBody(): Promise<Uint8Array> {
    throw new Error("nobody reads it");
  }
  onAbort(listener: () => void): void {
    this.#aborts.push(listener);
  }
  respond(): void {
    if (this.finished || this.answered) return;
    this.answered = this.finished = true;
  }

  readPrompt(): Promise<PromptFacts> {
    if (this.finished) return Promise.reject(new BatonError("client_closed", "gone"));
    return new Promise((resolve, reject) => {
      this.#prompt = resolve;
      this.#noPrompt = reject;
    });
  }

  /** The body is there, if it was asked for. */
  read(): void {
    this.#prompt?.(FACTS);
  }

  move(lease: Lease, firstByte: () => void): Promise<Moved> {
    assert.is(this.moving, undefined, "moved twice at a time");
    lease.cut = () => this.end("cut");
    return new Promise((resolve) => {
      this.#lease = lease;
      this.#finish = resolve;
      if (this.finished) return this.#settle({ result: "client_closed", status: 499 }, false);
      this.moving = lease.target;
      firstByte();
    });
  }

  end(how: End): void {
    if (this.moving === undefined) return;
    if (how === "complete") {
      this.answered = this.finished = true;
      this.#settle({ result: "complete", status: 200 }, false);
    } else if (how === "cut") {
      this.answered = this.finished = true;
      this.#settle({ result: "cut", status: 503 }, false);
    } else this.#settle({ result: "upstream_failed", status: 0 }, how === "refused");
  }

  leave(): void {
    if (this.finished) return;
    this.finished = true;
    this.#noPrompt?.(new BatonError("client_closed", "gone"));
    for (const listener of this.#aborts.splice(0)) listener();
    if (this.moving !== undefined) this.#settle({ result: "client_closed", status: 499 }, false);
  }

  #settle(outcome: Pick<ForwardOutcome, "result" | "status">, retriable: boolean): void {
    const finish = this.#finish;
    this.moving = undefined;
    this.#finish = undefined;
    this.#lease?.release(outcome.result === "complete" ? undefined : outcome.result);
    finish?.({
      outcome: { ...outcome, retriable, bytesToClient: 0 },
      status: outcome.status,
      cachedTokens: undefined,
    });
  }
}

/** A thread with its two queues; messages arrive when the test says so, in order. */
class ModelThread {
  readonly inbox: ToThread[] = [];
  readonly outbox: ToMain[] = [];
  readonly requests: Request[] = [];
  readonly remote = new Map<number, RemoteExchange>();
  ended = false;
  readonly replicas = new Replicas({ clock: { monotonic: () => 0 }, post: (m) => this.#tell(m) });
  readonly asked = new AskedExchanges({
    clock: { monotonic: () => 0 },
    replicas: this.replicas,
    post: (message) => this.#tell(message),
  });

  #tell(message: ToMain): void {
    if (!this.ended) this.outbox.push(message);
  }

  post(message: ToThread): void {
    if (!this.ended) this.inbox.push(message);
  }

  ask(readsFirst: boolean): void {
    const request = new Request();
    this.requests.push(request);
    const end = (): void => void (request.ends += 1);
    const forward = (): never => {
      throw new Error("a pool's bytes are moved by themselves");
    };
    void this.asked.askPool(request, forward, request, readsFirst).then(end, end);
  }

  receive(): void {
    const message = this.inbox.shift();
    if (message === undefined) return;
    if (message.kind === "table") this.replicas.apply(message.table);
    else if (message.kind === "cut") this.replicas.lease(message.lease)?.cut?.(message.reason);
    else if ("exchange" in message) this.asked.told(message);
  }
}

/** The main thread: a pool of one worker that is replaced now and then. */
class Model {
  readonly threads: ModelThread[];
  readonly shared = new Map<Target, SharedTargetLeases>();
  readonly byId = new Map<number, SharedTargetLeases>();
  readonly drained = new Set<Target>();
  current: Target;
  bookings = 0;
  firstBytes = 0;
  /** Requests that it is busy with. */
  serving = 0;
  #waiting: (() => void)[] = [];
  #generation = 0;

  constructor(threads: number) {
    this.threads = Array.from({ length: threads }, () => new ModelThread());
    this.current = this.#next();
  }

  #next(): Target {
    this.#generation += 1;
    return new Target({
      service: "s",
      version: "v",
      generation: this.#generation,
      address: { kind: "unix", path: "/nowhere" },
    });
  }

  #publish(): void {
    const service = {
      name: "s",
      mounts: ["/"],
      byVersion: false,
      hidden: [],
      readsFirst: true,
      timeouts: undefined,
      direct: [],
    };
    for (const thread of this.threads.filter(({ ended }) => !ended)) {
      const targets = [...this.shared.values()].filter(({ target }) => !target.retired)
        .map((shared) => shared.forThread(thread));
      thread.post({ kind: "table", table: { number: 0, services: [service], targets } });
    }
  }

  /** As ThreadedTraffic does it: what no thread knows is told before anything is moved to it. */
  #idOf(target: Target): number {
    const known = this.shared.get(target);
    if (known !== undefined) return known.id;
    const shared = new SharedTargetLeases(this.shared.size + 1, target, () => 0);
    this.shared.set(target, shared);
    this.byId.set(shared.id, shared);
    target.onRetire(() => this.#publish());
    if (!target.retired) this.#publish();
    return shared.id;
  }

  swap(): void {
    const old = this.current;
    this.current = this.#next();
    void old.retire().then(() => this.drained.add(old));
    for (const wake of this.#waiting.splice(0)) wake();
  }

  async #serve(exchange: RemoteExchange, pauses: boolean): Promise<void> {
    await exchange.bytes.readPrompt();
    for (let attempt = 0; attempt < 3 && !exchange.finished; attempt++) {
      const lease = this.current.claim(exchange.requestId, 0);
      if (lease === undefined) throw new Error("the current one is retired");
      this.bookings += 1;
      // The worker may be replaced between the claim and the move.
      if (pauses) await Promise.resolve();
      const { outcome } = await exchange.bytes.move(lease, () => void (this.firstBytes += 1))
        .finally(() => void (this.bookings -= 1));
      assert.ok(lease.released, "moved, and the lease is still held");
      if (outcome.result !== "upstream_failed") return;
      if (!outcome.retriable) throw new BatonError("upstream_reset", "broken");
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    }
  }

  deliver(thread: ModelThread, pauses: boolean): void {
    const message = thread.outbox.shift();
    if (message === undefined) return;
    switch (message.kind) {
      case "exchange": {
        const exchange = new RemoteExchange(message, {
          post: (answer) => thread.post(answer),
          idOf: (target) => this.#idOf(target),
        });
        thread.remote.set(message.exchange, exchange);
        this.serving += 1;
        void exchange.serve(() => this.#serve(exchange, pauses)).finally(() => {
          this.serving -= 1;
          thread.remote.delete(message.exchange);
        });
        return;
      }
      case "acknowledged":
        for (const { target, open } of message.retired) {
          this.byId.get(target)?.acknowledged(thread, open);
        }
        return;
      case "gone":
      case "prompt":
      case "first_byte":
      case "forward_kind":
      case "outcome":
        return thread.remote.get(message.exchange)?.told(message);
    }
  }

  /** Its sockets are closed, then the main thread hears of it. */
  end(thread: ModelThread): void {
    thread.ended = true;
    for (const request of thread.requests.splice(0)) request.leave();
    thread.inbox.length = thread.outbox.length = 0;
    for (const exchange of thread.remote.values()) exchange.lost();
    thread.remote.clear();
    for (const shared of this.shared.values()) shared.threadEnded(thread);
  }

  check(): void {
    for (const { requests } of this.threads) {
      for (const { moving } of requests) {
        if (moving === undefined) continue;
        const drained = [...this.drained].some(({ generation }) =>
          generation === moving.generation
        );
        assert.not(drained, "bytes are moved to a target that counts as drained");
      }
    }
  }

  wakeAll(): void {
    for (const wake of this.#waiting.splice(0)) wake();
  }
}

const step = fc.record({
  act: fc.constantFrom(
    "ask",
    "ask",
    "read",
    "read",
    "complete",
    "refused",
    "broken",
    "leave",
    "swap",
    "cut",
    "receive",
    "receive",
    "receive",
    "deliver",
    "deliver",
    "deliver",
    "settle",
    "end",
  ),
  thread: fc.nat(1),
  pick: fc.nat(1000),
});

async function turns(): Promise<void> {
  for (let turn = 0; turn < 20; turn++) await Promise.resolve();
}

test("what the main thread decides about ends once, and never on a target that is drained", async () => {
  let moved = 0;
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 30, maxLength: 150 }), async (steps) => {
      const model = new Model(2);
      const all: Request[] = [];
      for (const { act, thread: index, pick } of steps) {
        const thread = model.threads[index] as ModelThread;
        const request = thread.requests[pick % Math.max(1, thread.requests.length)];
        const pauses = pick % 2 === 0;
        switch (act) {
          case "ask":
            if (thread.ended) break;
            thread.ask(pick % 3 > 0);
            all.push(thread.requests.at(-1) as Request);
            break;
          case "read":
            request?.read();
            break;
          case "leave":
            request?.leave();
            break;
          case "swap":
            model.swap();
            break;
          case "cut":
            for (const target of model.shared.keys()) {
              if (target.retired) { for (const lease of target.open()) lease.cut?.("deadline"); }
            }
            break;
          case "receive":
            for (let count = 0; count < 1 + pick % 5; count++) thread.receive();
            break;
          case "deliver":
            for (let count = 0; count < 1 + pick % 5; count++) model.deliver(thread, pauses);
            break;
          case "settle":
            for (let round = 0; round < 4; round++) {
              for (const one of model.threads) {
                while (one.inbox.length > 0) one.receive();
                await turns();
                while (one.outbox.length > 0) model.deliver(one, pauses);
                await turns();
              }
            }
            break;
          case "end":
            if (pick < 60) model.end(thread);
            break;
          default:
            request?.end(act);
        }
        await turns();
        model.check();
      }
      // Everything arrives and comes to its end.
      for (let round = 0; round < 30; round++) {
        model.wakeAll();
        for (const thread of model.threads) {
          for (const request of thread.requests) {
            request.read();
            request.end("complete");
          }
          while (thread.inbox.length > 0) thread.receive();
          await turns();
          while (thread.outbox.length > 0) model.deliver(thread, false);
          await turns();
        }
        model.check();
      }
      moved += model.firstBytes;
      model.swap();
      for (const thread of model.threads) {
        while (thread.inbox.length > 0) thread.receive();
        while (thread.outbox.length > 0) model.deliver(thread, false);
      }
      await turns();
      assert.is(model.bookings, 0);
      assert.is(model.serving, 0);
      for (const target of model.shared.keys()) {
        assert.is(target.leases, 0, "a lease is left");
        assert.ok(model.drained.has(target), "a drain that does not end");
      }
      for (const { ends } of all) assert.ok(ends <= 1, "told two ends");
      for (const { ended, requests } of model.threads) {
        if (ended) continue;
        for (const { ends } of requests) assert.is(ends, 1, "nobody told it an end");
      }
    }),
    { seed: 20261130, numRuns: 300 },
  );
  assert.ok(moved > 1000, `${moved} moved`);
});

test.run();
