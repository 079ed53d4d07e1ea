import { test } from "uvu";
import * as assert from "uvu/assert";
import { Target } from "../../src/proxy/target.ts";

const target = () =>
  new Target({
    service: "shard",
    version: "v1",
    generation: 1,
    address: { kind: "tcp", host: "127.0.0.1", port: 1 },
  });

/** True once the promise has settled, without waiting for it. */
async function settled(promise: Promise<unknown>): Promise<boolean> {
  const pending = Symbol();
  return await Promise.race([promise, Promise.resolve(pending)]) !== pending;
}

test("a retired target gives no more leases", () => {
  const one = target();
  assert.ok(one.claim("a", 0));
  one.retire();
  assert.is(one.claim("b", 0), undefined);
  assert.is(one.leases, 1);
});

test("an idle target is drained the moment it is retired", async () => {
  assert.ok(await settled(target().retire()));
});

test("a target drains with its last lease, whatever the order of release", async () => {
  const one = target();
  const leases = ["a", "b", "c"].map((id) => one.claim(id, 0));
  const drained = one.retire();
  leases[1]?.release();
  leases[2]?.release();
  assert.not(await settled(drained));
  leases[0]?.release();
  assert.ok(await settled(drained));
});

test("a lease that is released twice counts once", () => {
  const one = target();
  const first = one.claim("a", 0);
  one.claim("b", 0);
  first?.release();
  first?.release();
  assert.is(one.leases, 1);
  assert.ok(first?.released);
});

test("retiring twice gives the same completion, and tells the listeners once", () => {
  const one = target();
  let told = 0;
  one.onRetire(() => told++);
  assert.is(one.retire(), one.retire());
  assert.is(told, 1);
  one.onRetire(() => told++);
  assert.is(told, 2);
});

test("leases are counted by kind, also after a lease turned into a stream", () => {
  const one = target();
  const lease = one.claim("a", 5);
  one.claim("b", 6, "tunnel");
  if (lease !== undefined) lease.kind = "stream";
  assert.is(one.count("request"), 0);
  assert.is(one.count("stream"), 1);
  assert.is(one.count("tunnel"), 1);
  assert.equal(one.open().map((open) => open.requestId), ["a", "b"]);
});

test.run();
