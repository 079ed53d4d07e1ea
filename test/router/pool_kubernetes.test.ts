/** A pool whose workers are the endpoints of a Service, against an API server as documented. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { podsOf } from "../../src/host/pool_kubernetes.ts";
import { createLog, silentLog } from "../../src/observe/log.ts";
import { FakeKube, READY, type Slice, slice } from "../replica/support/fake_kube.ts";
import { startBatonProcess } from "../support/baton_process.ts";
import { startMockWorker } from "../support/mock_worker.ts";
import { inScratch, until } from "../support/scratch.ts";
import { MODEL, tokens, worldOf } from "./pool_world.ts";

const PORTS = [{ name: "http", port: 8000 }, { name: "kv", port: 5557 }];
const WORKERS = { port: "http", kvEventsPort: "kv", replayPort: "replay" };

function pod(name: string | undefined, address: string, conditions: object = READY) {
  return {
    addresses: [address],
    conditions,
    ...(name === undefined ? {} : { targetRef: { kind: "Pod", name } }),
  };
}

const pods = (slices: Slice[]) => podsOf(slices as never, WORKERS, silentLog);

test("a pod is named by its name, has the ports that its slice names, and is there once", () => {
  const found = pods([
    slice("s", [pod("engine-0", "10.0.0.1"), pod(undefined, "10.0.0.2")], { ports: PORTS }),
    slice("t", [pod("engine-0", "10.0.0.1")], { ports: PORTS }),
    slice("six", [pod("engine-0", "fd00::1")], { ports: PORTS, addressType: "IPv6" }),
  ]);
  assert.equal(found, [
    {
      id: "engine-0",
      address: "10.0.0.1",
      port: 8000,
      kvEventsPort: 5557,
      replayPort: undefined,
      ready: true,
    },
    {
      id: "10.0.0.2",
      address: "10.0.0.2",
      port: 8000,
      kvEventsPort: 5557,
      replayPort: undefined,
      ready: true,
    },
  ]);
});

test("a pod that is not ready is listed, one that terminates is not", () => {
  const conditions = [
    READY,
    { ready: false, serving: false },
    { ready: true, serving: true, terminating: true },
    {},
  ];
  const endpoints = conditions.map((one, n) => pod(`engine-${n}`, `10.0.0.${n}`, one));
  assert.equal(
    pods([slice("s", endpoints, { ports: PORTS })]).map(({ id, ready }) => [id, ready]),
    [["engine-0", true], ["engine-1", false], ["engine-3", true]],
  );
});

test("slices without the port, of names, or without anything are no harm", () => {
  const said: string[] = [];
  const log = createLog({ write: (line) => said.push(line), now: () => 0 });
  const odd = [
    slice("s", [pod("a", "10.0.0.1")], { ports: [{ name: "other", port: 1 }] }),
    slice("t", [pod("b", "a.example")], { ports: PORTS, addressType: "FQDN" }),
    slice("u", null, { ports: null }),
  ];
  assert.equal(podsOf(odd as never, WORKERS, log), []);
  assert.match(said.join(), /worker_slice_refused/);
});

test("pods join, are left out while they are not ready, and leave; the rest goes on", async () => {
  await inScratch(async (folder) => {
    const kube = new FakeKube();
    await kube.start();
    const silent = { stored: () => {}, removed: () => {} };
    const workers = await Promise.all(
      ["a", "b"].map((id) => startMockWorker({ id, model: MODEL, events: silent })),
    );
    const show = (...shown: [n: number, conditions: object][]) => {
      for (const n of [0, 1]) {
        const found = shown.find(([at]) => at === n);
        const port = Number(new URL(workers[n]?.url ?? "").port);
        const endpoints = found === undefined ? [] : [pod(`engine-${n}`, "127.0.0.1", found[1])];
        kube.set(slice(`s${n}`, endpoints, {
          service: "engines",
          ports: [{ name: "http", port }],
        }));
      }
    };
    show([0, READY]);
    const baton = await startBatonProcess(folder, {
      services: {
        chat: {
          mount: "/v1",
          pool: {
            model: MODEL,
            workers: {
              kubernetes: {
                namespace: "ns",
                service: "engines",
                port: "http",
                apiServer: kube.url,
                tokenFile: `${folder}/none`,
                caFile: `${folder}/none`,
              },
            },
          },
        },
      },
      shutdown: { announceMs: 0 },
    });
    const { ask, pool, stats } = worldOf(baton, workers);
    const names = async () => (await pool()).map(({ worker }) => worker).sort();
    try {
      // Held until the first listing is there.
      assert.is((await ask({ prompt: tokens(0, 32) })).status, 200);
      assert.equal(await names(), ["engine-0"]);
      await until(() => kube.watchers === 1, "a watch");
      show([0, READY], [1, READY]);
      await until(async () => (await names()).length === 2, "the second pod");
      show([0, { ready: false, serving: false }], [1, READY]);
      await until(async () => !(await pool()).every(({ ready }) => ready), "one is not ready");
      const before = stats()[0]?.requests;
      for (let n = 0; n < 5; n += 1) {
        assert.is((await ask({ prompt: tokens(n * 1_000, 32) })).status, 200);
      }
      assert.equal(stats().map(({ requests }) => requests), [before, 5]);
      show([1, READY]);
      await until(async () => (await names()).join() === "engine-1", "one pod");
    } finally {
      await baton.stop();
      await kube.stop();
      await Promise.all(workers.map((worker) => worker.close()));
    }
  });
});

test("T8: a replica is not ready before the first listing of its workers, and knows their lanes then", async () => {
  await inScratch(async (folder) => {
    const kube = new FakeKube();
    await kube.start();
    await kube.stop();
    const endpoints = [pod("engine-0", "127.0.0.1"), pod("engine-1", "127.0.0.2")];
    kube.set(slice("s", endpoints, { service: "engines", ports: PORTS }));
    const kubernetes = {
      namespace: "ns",
      service: "engines",
      port: "http",
      apiServer: kube.url,
      tokenFile: `${folder}/none`,
      caFile: `${folder}/none`,
    };
    const baton = await startBatonProcess(folder, {
      listen: { peer: "127.0.0.1:0" },
      services: { chat: { mount: "/v1", pool: { model: MODEL, workers: { kubernetes } } } },
      // A peer that nobody is.
      replica: { peers: ["http://127.0.0.1:9"] },
      shutdown: { announceMs: 0 },
    });
    const recovery = async () => await (await fetch(`${baton.admin}/api/v1/recovery`)).json();
    try {
      await until(
        () => baton.log.some(({ event }) => event === "kube_watch_failed"),
        "a failed listing",
      );
      assert.is((await recovery()).state, "listing");
      assert.is((await fetch(`${baton.admin}/ready`)).status, 503);
      await kube.start();
      await until(async () => (await fetch(`${baton.admin}/ready`)).status === 200, "readiness");
      const { lanes } = await recovery();
      assert.is(Object.values(lanes as Record<string, number>).reduce((a, b) => a + b, 0), 2);
    } finally {
      await baton.stop();
      await kube.stop();
    }
  });
});

test.run();
