/**
 * Publish before retire across threads, over random orders of messages: no claim on a target that
 * the main thread took for drained, and a drain that always ends.
 */

import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { type Lease, Target } from "../../src/proxy/target.ts";
import type { Table, ToMain } from "../../src/threads/messages.ts";
import { Replicas } from "../../src/threads/replicas.ts";
import { type LeaseThread, SharedTargetLeases } from "../../src/threads/shared_targets.ts";

type ToModelThread =
  | { readonly kind: "table"; readonly table: Table }
  | { readonly kind: "cut"; readonly lease: number; readonly reason: string }
  | { readonly kind: "warn"; readonly lease: number };

/** A thread with its two queues; messages arrive when the test says so, in order. */
class ModelThread implements LeaseThread {
  readonly inbox: ToModelThread[] = [];
  readonly outbox: ToMain[] = [];
  readonly leases: Lease[] = [];
  ended = false;
  readonly replicas = new Replicas({
    clock: { monotonic: () => 0 },
    post: (message) => void this.outbox.push(message),
  });

  post(message: ToModelThread): void {
    if (!this.ended) this.inbox.push(message);
  }

  receive(): void {
    const message = this.inbox.shift();
    if (message?.kind === "table") this.replicas.apply(message.table);
    if (message?.kind === "cut") this.replicas.lease(message.lease)?.cut?.(message.reason);
  }
}

/** What ThreadedTraffic does with tables, without sockets. */
class Model {
  readonly threads: ModelThread[];
  readonly shared = new Map<Target, SharedTargetLeases>();
  readonly byId = new Map<number, SharedTargetLeases>();
  /** Targets that the main thread would stop now. */
  readonly drained = new Set<number>();
  current: Target | undefined;
  #lastId = 0;
  #lastTable = 0;

  constructor(threads: number) {
    this.threads = Array.from({ length: threads }, () => new ModelThread());
  }

  publish(): void {
    this.#lastTable += 1;
    for (const thread of this.threads) this.#tell(thread);
  }

  #tell(thread: ModelThread): void {
    if (thread.ended) return;
    const { current } = this;
    const direct = current === undefined || current.retired
      ? []
      : [["v", this.share(current).id] as const];
    const targets = [...this.shared.values()].filter(({ target }) => !target.retired)
      .map((shared) => shared.forThread(thread));
    const service = {
      name: "s",
      mounts: ["/"],
      byVersion: true,
      hidden: [],
      readsFirst: false,
      timeouts: undefined,
      direct,
    };
    thread.post({
      kind: "table",
      table: { number: this.#lastTable, services: [service], targets },
    });
  }

  share(target: Target): SharedTargetLeases {
    const known = this.shared.get(target);
    if (known !== undefined) return known;
    this.#lastId += 1;
    const id = this.#lastId;
    const shared = new SharedTargetLeases(id, target, () => 0);
    this.shared.set(target, shared);
    this.byId.set(id, shared);
    target.onRetire(() => this.publish());
    return shared;
  }

  /** The swap, as the supervisor does it: reachable first, then the old one is retired. */
  swap(): void {
    const old = this.current;
    this.current = new Target({
      service: "s",
      version: "v",
      generation: this.#lastId + 1,
      address: { kind: "unix", path: "/nowhere" },
    });
    this.publish();
    if (old !== undefined) this.retire(old);
  }

  retire(target: Target): void {
    const { id } = this.share(target);
    void target.retire().then(() => this.drained.add(id));
  }

  claim(thread: ModelThread): void {
    const lease = thread.ended ? undefined : thread.replicas.direct("s", "v")?.claim("r", 0);
    if (lease === undefined) return;
    assert.not.ok(this.drained.has(lease.target.generation), "a claim on a stopped target");
    lease.cut = () => {
      thread.leases.splice(thread.leases.indexOf(lease), 1);
      lease.release("cut");
    };
    thread.leases.push(lease);
  }

  deliver(thread: ModelThread): void {
    const message = thread.outbox.shift();
    if (message === undefined) return;
    if (message.kind === "acknowledged") {
      for (const { target, open } of message.retired) {
        this.byId.get(target)?.acknowledged(thread, open);
      }
    } else if (message.kind === "lease_ended") {
      this.byId.get(message.target)?.leaseEnded(thread, message.lease);
    } else if (message.kind === "lease_kind") {
      for (const one of this.byId.values()) {
        one.leaseKind(thread, message.lease, message.leaseKind);
      }
    }
  }

  end(thread: ModelThread): void {
    thread.ended = true;
    for (const lease of thread.leases.splice(0)) lease.release();
    thread.inbox.length = thread.outbox.length = 0;
    for (const shared of this.shared.values()) shared.threadEnded(thread);
  }

  /** Nothing that counts as drained has a lease anywhere. */
  check(): void {
    for (const thread of this.threads) {
      for (const lease of thread.leases) {
        assert.not.ok(this.drained.has(lease.target.generation), "drained with an open lease");
      }
    }
    for (const shared of this.shared.values()) {
      const open = this.threads.reduce(
        (sum, { leases }) =>
          sum +
          leases.filter(({ target }) => target.generation === shared.target.generation).length,
        0,
      );
      if (shared.target.retired) {
        assert.ok(open === 0 || shared.count > 0, "a retired target looks idle and is not");
      } else assert.is(shared.target.leases, open);
    }
  }
}

const step = fc.record({
  act: fc.constantFrom(
    "swap",
    "claim",
    "claim",
    "claim",
    "release",
    "release",
    "kind",
    "receive",
    "receive",
    "deliver",
    "deliver",
    "settle",
    "settle",
    "cut",
    "end",
  ),
  thread: fc.nat(2),
  pick: fc.nat(1000),
});

test("no order of messages lets a claim reach a target that counts as drained", async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 20, maxLength: 120 }), async (steps) => {
      const model = new Model(3);
      model.swap();
      for (const { act, thread: index, pick } of steps) {
        const thread = model.threads[index] as ModelThread;
        const lease = thread.leases[pick % Math.max(1, thread.leases.length)];
        const arriving = 1 + pick % 8;
        if (act === "swap" && pick < 500) model.swap();
        else if (act === "claim") model.claim(thread);
        else if (act === "settle") {
          // Everything that is under way arrives, or nothing would be drained before the end.
          for (const one of model.threads) {
            while (one.inbox.length > 0) one.receive();
            while (one.outbox.length > 0) model.deliver(one);
          }
        } else if (act === "receive") {
          for (let count = 0; count < arriving; count++) thread.receive();
        } else if (act === "deliver") {
          for (let count = 0; count < arriving; count++) model.deliver(thread);
        } else if (act === "end" && pick < 100) model.end(thread);
        else if (act === "kind" && lease !== undefined) lease.kind = "tunnel";
        else if (act === "release" && lease !== undefined) {
          thread.leases.splice(thread.leases.indexOf(lease), 1);
          lease.release();
        } else if (act === "cut") {
          for (const { target } of model.shared.values()) {
            if (target.retired) { for (const open of target.open()) open.cut?.("deadline"); }
          }
        }
        // As many turns as the promises of a drain take.
        for (let turn = 0; turn < 10; turn++) await Promise.resolve();
        model.check();
      }
      // Everything arrives, everything is released: every retired target is drained.
      const last = model.current;
      model.current = undefined;
      if (last !== undefined) model.retire(last);
      for (const thread of model.threads) {
        while (thread.inbox.length > 0) thread.receive();
        for (const lease of thread.leases.splice(0)) lease.release();
        while (thread.outbox.length > 0) model.deliver(thread);
      }
      await new Promise((resolve) => setTimeout(resolve, 0));
      assert.is(model.drained.size, model.shared.size);
      for (const { target } of model.shared.values()) assert.is(target.leases, 0);
    }),
    { seed: 20261130, numRuns: 300 },
  );
});

test.run();
