/** A lane that has a source is never seen without it, not even for a microtask. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { createKvStore } from "../../src/kv/create_kv_store.ts";
import type { Lane } from "../../src/kv/lane.ts";
import { KvWorkers } from "../../src/kv/workers.ts";
import { silentLog } from "../../src/observe/log.ts";
import { Target } from "../../src/proxy/target.ts";
import { PoolMembers } from "../../src/router/pool_members.ts";
import { runtime } from "../support/runtime.ts";
import { until } from "../support/until.ts";

const { clock, random, net } = runtime;
const KEY = { model: "m", group: "default", worker: "w", dpRank: 0 };
const HOLD = { maxBatches: 10, maxBytes: 1000 };
/** Nobody listens there, which makes no difference to what a lane is. */
const ENDPOINT = "tcp://127.0.0.1:1";

/** Looks at the lane after every microtask until it is there and a while after. */
async function statesFromTheFirst(find: () => Lane | undefined): Promise<Set<string>> {
  const seen = new Set<string>();
  let looks = 0;
  let isOver = false;
  const look = (): void => {
    const lane = find();
    if (lane !== undefined) {
      seen.add(lane.state);
      looks += 1;
    }
    if (looks < 200 && !isOver) queueMicrotask(look);
  };
  // Microtasks alone would never let the index be made.
  while (looks === 0) {
    queueMicrotask(look);
    await new Promise((resolve) => setTimeout(resolve, 0));
    isOver = looks > 0;
  }
  return seen;
}

test("a registered worker's lane, held for a recovery, waits for its subscription from the first moment on", async () => {
  const store = await createKvStore({ clock, random });
  const workers = new KvWorkers({ store, net, clock, random });
  store.holdAll(HOLD);
  const seen: string[] = [];
  store.onChange((change) => {
    if (change.kind === "opened") seen.push(change.lane.state);
  });
  const opened = workers.register({ ...KEY, blockSize: 4, endpoint: ENDPOINT });
  const states = await statesFromTheFirst(() => store.lane(KEY));
  await opened;
  assert.equal([...states], ["subscribing"], "buffering would be taken for a proof");
  await until(() => seen.length === 1);
  assert.equal(seen, ["subscribing"]);
  await workers.stop();
  store.closeAll();
});

test("a pool's worker too; and its lane is there when it has been added", async () => {
  const store = await createKvStore({ clock, random });
  const listeners = new KvWorkers({ store, net, clock, random });
  const members = new PoolMembers({
    model: "m",
    group: "default",
    blockSize: 4,
    store,
    listeners,
    clock,
    log: silentLog,
  });
  store.holdAll(HOLD);
  const target = new Target({
    service: "pool",
    version: "w",
    generation: 1,
    address: { kind: "tcp", host: "127.0.0.1", port: 1 },
  });
  const url = "http://127.0.0.1:1";
  const added = members.add({ id: "w", dpRank: 0, url, target, kvEvents: ENDPOINT });
  const states = await statesFromTheFirst(() => store.lane(KEY));
  await added;
  assert.ok(store.lane(KEY));
  assert.equal([...states], ["subscribing"]);
  members.remove("w");
  assert.is(store.lane(KEY), undefined);
  await listeners.stop();
});

test("who joins in the opening of a lane has his say before it is seen; of an open one at once", async () => {
  const store = await createKvStore({ clock, random });
  const said: string[] = [];
  const say = (who: string) => (lane: Lane): void => {
    said.push(`${who} ${store.lane(KEY) === lane}`);
  };
  const first = store.open(KEY, { blockSize: 4, prepare: say("first") });
  const second = store.open(KEY, { blockSize: 4, prepare: say("second") });
  const third = store.open(KEY, { blockSize: 4 });
  assert.is(await first, await second);
  assert.is(await first, await third);
  await store.open(KEY, { blockSize: 4, prepare: say("later") });
  assert.equal(said, ["first true", "second true", "later true"]);
  store.closeAll();
});

test("a worker that is taken off while its lane opens leaves none", async () => {
  const store = await createKvStore({ clock, random });
  const workers = new KvWorkers({ store, net, clock, random });
  const opened = workers.register({ ...KEY, blockSize: 4, endpoint: ENDPOINT });
  workers.unregister({ worker: "w", model: "m" });
  await opened;
  assert.is(store.lane(KEY), undefined);
  assert.equal(store.partitions().length, 0);
  await workers.stop();
});

test.run();
