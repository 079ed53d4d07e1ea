/** Peers by EndpointSlices, against an API server of ours that behaves as the documented one. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { createLog, type Log, silentLog } from "../../src/observe/log.ts";
import {
  kubernetesDiscovery,
  PeerServiceMissing,
  peersOf,
} from "../../src/replica/kubernetes_discovery.ts";
import { type Discovery, isCandidate, peerUrl } from "../../src/replica/peer_view.ts";
import * as certificates from "../runtime/certificates.ts";
import { runtime } from "../support/runtime.ts";
import { inScratch } from "../support/scratch.ts";
import { FakeKube, READY, type Slice, slice } from "./support/fake_kube.ts";
import {
  closeAll,
  contentOf,
  laneKey,
  sourceReplica,
  store,
  testReplica,
  until,
} from "./support/replica.ts";

const OPTIONS = { port: "peer", scheme: "http" };

function views(slices: Slice[], self: string | undefined = "10.0.0.9") {
  return peersOf(slices as never, OPTIONS, self, silentLog);
}

const urls = (peers: readonly { url: string }[]): string[] => peers.map(({ url }) => url);
const candidates = (discovery: Discovery): string[] =>
  urls(discovery.current().filter(isCandidate));

test("kv 1: two endpoints that are not terminating are both members", () => {
  const found = views([
    slice("s", [
      { addresses: ["10.0.0.1"], conditions: READY },
      { addresses: ["10.0.0.2"], conditions: READY },
    ]),
  ]);
  assert.equal(urls(found), ["http://10.0.0.1:8082", "http://10.0.0.2:8082"]);
  assert.ok(found.every(isCandidate));
});

test("kv 2, 3, 4, 20: terminating endpoints stay members, serving or not, and are no candidates", () => {
  for (const serving of [true, false]) {
    const conditions = { ready: false, serving, terminating: true };
    const found = views([slice("s", [{ addresses: ["10.0.0.1"], conditions }])]);
    assert.is(found.length, 1);
    assert.is(isCandidate(found[0] as never), false);
  }
});

test("kv 5: a dual-stack sibling in two slices is one member, of our own family", () => {
  const slices = [
    slice("four", [{ addresses: ["10.0.0.1"], conditions: READY }]),
    slice("six", [{ addresses: ["fd00::1"], conditions: READY }], { addressType: "IPv6" }),
  ];
  assert.equal(urls(views(slices, "10.0.0.9")), ["http://10.0.0.1:8082"]);
  assert.equal(urls(views(slices, "fd00::9")), ["http://[fd00::1]:8082"]);
  assert.equal(urls(views(slices, undefined)), ["http://10.0.0.1:8082"]);
});

test("kv 6: slices of names are refused, and that is said", () => {
  const said: string[] = [];
  const log = createLog({ write: (line) => said.push(line), now: () => 0 });
  const fqdn = slice("s", [{ addresses: ["a.example"], conditions: READY }], {
    addressType: "FQDN",
  });
  assert.equal(peersOf([fqdn] as never, OPTIONS, "10.0.0.9", log), []);
  assert.match(said.join(), /peer_slice_refused/);
});

test("kv 7, 24: IPv4 without brackets, IPv6 with", () => {
  assert.is(peerUrl("http", "10.0.0.1", 80), "http://10.0.0.1:80");
  assert.is(peerUrl("https", "fd00::1", 8082), "https://[fd00::1]:8082");
});

test("kv 18, 19, 21, 22: who is a candidate", () => {
  const cases: [Slice["endpoints"], boolean][] = [
    [[{ addresses: ["10.0.0.1"], conditions: READY }], true],
    [[{ addresses: ["10.0.0.1"], conditions: { ready: false, serving: false } }], false],
    // publishNotReadyAddresses makes a cold replica ready.
    [[{ addresses: ["10.0.0.1"], conditions: { ready: true, serving: false } }], false],
    [[{ addresses: ["10.0.0.1"], conditions: { ready: true } }], true],
    [[{ addresses: ["10.0.0.1"], conditions: { ready: true, serving: null } }], true],
    [[{ addresses: ["10.0.0.1"], conditions: { serving: true } }], true],
    [[{ addresses: ["10.0.0.1"], conditions: {} }], false],
    [[{ addresses: ["10.0.0.1"] }], false],
  ];
  for (const [endpoints, wanted] of cases) {
    const [found] = views([slice("s", endpoints)]);
    assert.is(found && isCandidate(found), wanted, JSON.stringify(endpoints));
  }
});

test("kv 23: members whose slice lacks the port stay members and cannot be asked", () => {
  const found = views([
    slice("s", [{ addresses: ["10.0.0.1"], conditions: READY }], {
      ports: [{ name: "http", port: 80 }],
    }),
  ]);
  assert.is(found.length, 1);
  assert.is(isCandidate(found[0] as never), false);
});

test("odd slices (no endpoints, null ports, no addresses) are no harm", () => {
  assert.equal(views([slice("s", null), slice("t", [{ addresses: [] }], { ports: null })]), []);
});

interface Rig {
  readonly kube: FakeKube;
  readonly tokenFile: string;
  discovery(
    more?: { self?: string; service?: string; caFile?: string; isHasty?: boolean; log?: Log },
  ): Discovery;
}

/** Waits a hundredth of what it is asked to. */
const hasty: typeof runtime.clock = {
  ...runtime.clock,
  after: (ms, action) => runtime.clock.after(ms / 100, action),
};

async function rig(
  use: (rig: Rig) => Promise<void>,
  tls?: { cert: string; key: string },
): Promise<void> {
  await inScratch(async (folder) => {
    const kube = new FakeKube(tls);
    await kube.start();
    const tokenFile = `${folder}/token`;
    await runtime.files.writeAtomic(tokenFile, "first\n");
    const made: Discovery[] = [];
    try {
      await use({
        kube,
        tokenFile,
        discovery: (more = {}) => {
          const discovery = kubernetesDiscovery({
            runtime: more.isHasty === true ? { ...runtime, clock: hasty } : runtime,
            log: more.log ?? silentLog,
            peers: {
              namespace: "ns",
              service: more.service ?? "peers",
              port: "peer",
              scheme: "http",
              apiServer: kube.url,
              tokenFile,
              caFile: more.caFile ?? `${folder}/none`,
            },
            self: more.self ?? "10.0.0.9",
          });
          made.push(discovery);
          return discovery;
        },
      });
    } finally {
      for (const discovery of made) discovery.stop();
      await kube.stop();
    }
  });
}

const one = (address: string, conditions: object = READY) => ({ addresses: [address], conditions });

test("kv 8: a first list with ourselves and A, then an update with B: exactly A, then exactly B", async () => {
  await rig(async ({ kube, discovery }) => {
    kube.set(slice("s", [one("10.0.0.9"), one("10.0.0.1")]));
    kube.set(slice("other", [one("10.9.9.9")], { service: "another" }));
    const peers = discovery();
    await peers.start();
    assert.equal(urls(peers.current()), ["http://10.0.0.1:8082"]);
    await until(() => kube.watchers === 1, "a watch");
    kube.set(slice("s", [one("10.0.0.9"), one("10.0.0.2")]));
    await until(() => urls(peers.current()).join() === "http://10.0.0.2:8082", "B");
  });
});

test("kv 25: serving, draining, not serving, gone: a member until the end", async () => {
  await rig(async ({ kube, discovery }) => {
    kube.set(slice("s", [one("10.0.0.1")]));
    const peers = discovery();
    await peers.start();
    await until(() => kube.watchers === 1, "a watch");
    assert.equal(candidates(peers), ["http://10.0.0.1:8082"]);
    const phases = [
      { ready: false, serving: true, terminating: true },
      { ready: false, serving: false, terminating: true },
    ];
    for (const phase of phases) {
      kube.set(slice("s", [one("10.0.0.1", phase)]));
      await until(
        () => peers.current()[0]?.serving === phase.serving && candidates(peers).length === 0,
        "a phase",
      );
      assert.is(peers.current().length, 1);
    }
    kube.set(slice("s", []));
    await until(() => peers.current().length === 0, "none");
  });
});

test("peers over several slices, of which one is deleted", async () => {
  await rig(async ({ kube, discovery }) => {
    kube.set(slice("a", [one("10.0.0.1")]));
    kube.set(slice("b", [one("10.0.0.2")]));
    const peers = discovery();
    await peers.start();
    assert.is(peers.current().length, 2);
    await until(() => kube.watchers === 1, "a watch");
    kube.delete("a");
    await until(() => urls(peers.current()).join() === "http://10.0.0.2:8082", "the other slice");
  });
});

test("an update that changes nothing that matters is no change", async () => {
  await rig(async ({ kube, discovery }) => {
    kube.set(slice("s", [one("10.0.0.1")]));
    const peers = discovery();
    await peers.start();
    await until(() => kube.watchers === 1, "a watch");
    let changes = 0;
    peers.onChange(() => (changes += 1));
    for (let time = 0; time < 5; time += 1) kube.set(slice("s", [one("10.0.0.1")]));
    kube.set(slice("s", [one("10.0.0.1"), one("10.0.0.2")]));
    await until(() => peers.current().length === 2, "B");
    assert.is(changes, 1);
  });
});

test("a long list comes in pages, and counts only when all of it is there", async () => {
  await rig(async ({ kube, discovery }) => {
    kube.pageSize = 3;
    for (let at = 1; at <= 10; at += 1) kube.set(slice(`s${at}`, [one(`10.0.0.${at + 20}`)]));
    // In the middle of the pages the version expires, once: everything is listed anew.
    let times = 0;
    kube.onNextPage = () => {
      if (times++ === 1) kube.compact();
    };
    const peers = discovery();
    let least = Infinity;
    peers.onChange(() => (least = Math.min(least, peers.current().length)));
    await peers.start();
    assert.is(peers.current().length, 10);
    assert.is(least, 10);
  });
});

test("a watch that ends goes on from the last version, bookmarks counted, without a new list", async () => {
  await rig(async ({ kube, discovery }) => {
    kube.set(slice("s", [one("10.0.0.1")]));
    const peers = discovery();
    await peers.start();
    await until(() => kube.watchers === 1, "a watch");
    kube.compact();
    kube.bookmark();
    // What the bookmark said is all that is left of the history.
    const lists = () => kube.requests.filter(({ query }) => !query.has("watch")).length;
    const before = lists();
    kube.endWatches();
    kube.set(slice("s", [one("10.0.0.2")]));
    await until(() => urls(peers.current()).join() === "http://10.0.0.2:8082", "B");
    assert.is(lists(), before);
  });
});

test("410 Gone, as a status and as an event, means to list again; nobody is lost in between", async () => {
  await rig(async ({ kube, discovery }) => {
    kube.set(slice("s", [one("10.0.0.1")]));
    const peers = discovery();
    await peers.start();
    await until(() => kube.watchers === 1, "a watch");
    let least = 1;
    peers.onChange(() => (least = Math.min(least, peers.current().length)));
    kube.endWatches();
    kube.set(slice("s", [one("10.0.0.2")]));
    kube.compact();
    await until(() => urls(peers.current()).join() === "http://10.0.0.2:8082", "B");
    await until(() => kube.watchers === 1, "a watch");
    kube.set(slice("t", [one("10.0.0.3")]));
    await until(() => peers.current().length === 2, "C");
    const lists = () => kube.requests.filter(({ query }) => !query.has("watch")).length;
    const before = lists();
    kube.sendError(410);
    await until(() => lists() > before, "another list");
    assert.is(least, 1);
  });
});

test("an event that is cut in the middle comes again", async () => {
  await rig(async ({ kube, discovery }) => {
    kube.set(slice("s", [one("10.0.0.1")]));
    const peers = discovery();
    await peers.start();
    await until(() => kube.watchers === 1, "a watch");
    const next = slice("s", [one("10.0.0.2")]);
    kube.cutWatches(next);
    kube.set(next);
    await until(() => urls(peers.current()).join() === "http://10.0.0.2:8082", "B");
  });
});

test("an event that comes byte by byte is one event", async () => {
  await rig(async ({ kube, discovery }) => {
    kube.set(slice("s", [one("10.0.0.1")]));
    const peers = discovery();
    await peers.start();
    await until(() => kube.watchers === 1, "a watch");
    await kube.drip(slice("s", [one("10.0.0.2")]));
    await until(() => urls(peers.current()).join() === "http://10.0.0.2:8082", "B");
  });
});

test("garbage in a watch is survived", async () => {
  await rig(async ({ kube, discovery }) => {
    kube.set(slice("s", [one("10.0.0.1")]));
    const peers = discovery();
    await peers.start();
    await until(() => kube.watchers === 1, "a watch");
    kube.write("<html>504 Gateway Timeout</html>\n");
    kube.set(slice("s", [one("10.0.0.2")]));
    await until(() => urls(peers.current()).join() === "http://10.0.0.2:8082", "B");
    await until(() => kube.watchers === 1, "a watch");
    kube.write('{"type":"MODIFIED"}\n{"object":{}}\nnull\n');
    kube.set(slice("s", [one("10.0.0.3")]));
    await until(() => urls(peers.current()).join() === "http://10.0.0.3:8082", "C");
  });
});

test("an API server that restarts: what was known stays, and what changed meanwhile is found", async () => {
  await rig(async ({ kube, discovery }) => {
    kube.set(slice("s", [one("10.0.0.1")]));
    const peers = discovery();
    await peers.start();
    await until(() => kube.watchers === 1, "a watch");
    await kube.stop();
    await new Promise((resolve) => setTimeout(resolve, 100));
    assert.equal(urls(peers.current()), ["http://10.0.0.1:8082"]);
    kube.set(slice("s", [one("10.0.0.2")]));
    kube.compact();
    await kube.start();
    await until(() => urls(peers.current()).join() === "http://10.0.0.2:8082", "B");
  });
});

test("an API server that fails at first delays the listing, and the start waits for it", async () => {
  await rig(async ({ kube, discovery }) => {
    kube.failures = [500, 429, 403];
    kube.set(slice("s", [one("10.0.0.1")]));
    const peers = discovery();
    await peers.start();
    assert.equal(urls(peers.current()), ["http://10.0.0.1:8082"]);
    assert.ok(kube.requests.length >= 4);
  });
});

test("the token is read again for every request", async () => {
  await rig(async ({ kube, discovery, tokenFile }) => {
    kube.token = "second";
    kube.set(slice("s", [one("10.0.0.1")]));
    const peers = discovery();
    const started = peers.start();
    await until(() => kube.requests.length >= 1, "a refused request");
    await runtime.files.writeAtomic(tokenFile, "second\n");
    await started;
    assert.is(kube.requests[0]?.token, "Bearer first");
    assert.is(kube.requests.at(-1)?.token, "Bearer second");
  });
});

test("the API server's certificate is checked against the cluster's authority", async () => {
  const tls = { cert: certificates.serverCert, key: certificates.serverKey };
  await rig(async ({ kube, discovery, tokenFile }) => {
    kube.set(slice("s", [one("10.0.0.1")]));
    const caFile = `${tokenFile}.ca`;
    await runtime.files.writeAtomic(caFile, certificates.authority);
    const trusting = discovery({ caFile });
    await trusting.start();
    assert.equal(urls(trusting.current()), ["http://10.0.0.1:8082"]);
    await until(() => kube.watchers === 1, "a watch");
    const before = kube.requests.length;
    let isListed = false;
    void discovery().start().then(() => (isListed = true));
    await new Promise((resolve) => setTimeout(resolve, 300));
    assert.is(isListed, false, "without the authority nothing is believed");
    assert.is(kube.requests.length, before, "and no token is shown");
  }, tls);
});

test("a server that ends every watch at once is not asked in a loop", async () => {
  await rig(async ({ kube, discovery }) => {
    kube.isImpatient = true;
    kube.set(slice("s", [one("10.0.0.1")]));
    await discovery().start();
    const [before, beganMs] = [kube.requests.length, performance.now()];
    await new Promise((resolve) => setTimeout(resolve, 500));
    const most = 4 + (performance.now() - beganMs - 500) / 100;
    assert.ok(kube.requests.length - before <= most, `${kube.requests.length - before} requests`);
  });
});

test("a list or an error that stops in the middle of its answer is asked for again", async () => {
  await rig(async ({ kube, discovery }) => {
    kube.stalls = [200, 500];
    kube.set(slice("s", [one("10.0.0.1")]));
    const peers = discovery({ isHasty: true });
    await peers.start();
    assert.equal(urls(peers.current()), ["http://10.0.0.1:8082"]);
    assert.equal(kube.stalls, []);
  });
});

test("a list whose pages have no end is given up, and asked for again later", async () => {
  await rig(async ({ kube, discovery }) => {
    kube.isEndless = true;
    kube.set(slice("s", [one("10.0.0.1")]));
    const peers = discovery({ isHasty: true });
    const listed = peers.start();
    const firsts = (): number =>
      kube.requests.filter(({ query }) => query.get("continue") === null).length;
    await until(() => firsts() > 1, "another list");
    kube.isEndless = false;
    await listed;
    assert.equal(urls(peers.current()), ["http://10.0.0.1:8082"]);
  });
});

test("watch after watch leaves nothing behind", async () => {
  const listeners = new Map<AbortSignal, number>();
  const { addEventListener, removeEventListener } = AbortSignal.prototype;
  const count = (signal: AbortSignal, change: number): void => {
    listeners.set(signal, (listeners.get(signal) ?? 0) + change);
  };
  AbortSignal.prototype.addEventListener = function (...rest: [string, never]) {
    count(this, 1);
    addEventListener.apply(this, rest);
  };
  AbortSignal.prototype.removeEventListener = function (...rest: [string, never]) {
    count(this, -1);
    removeEventListener.apply(this, rest);
  };
  try {
    await rig(async ({ kube, discovery }) => {
      kube.isImpatient = true;
      kube.set(slice("s", [one("10.0.0.1")]));
      await discovery({ isHasty: true }).start();
      await until(() => kube.requests.length > 20, "twenty watches");
      const most = Math.max(...listeners.values());
      assert.ok(most < 5, `${most} listeners wait for one signal`);
    });
  } finally {
    Object.assign(AbortSignal.prototype, { addEventListener, removeEventListener });
  }
});

test("watches that bring something and then break are not waited for longer and longer", async () => {
  const pauses: number[] = [];
  const log = createLog({
    write: (line) => {
      const { event, retryMs } = JSON.parse(line) as { event: string; retryMs: number };
      if (event === "kube_watch_failed") pauses.push(retryMs);
    },
    now: () => 0,
  });
  await rig(async ({ kube, discovery }) => {
    await discovery({ isHasty: true, log }).start();
    for (let times = 1; times <= 4; times += 1) {
      await until(() => kube.watchers === 1, "a watch");
      kube.set(slice("s", [one(`10.0.0.${times}`)]));
      kube.write("no event\n");
      await until(() => pauses.length === times && kube.watchers === 0, "it breaks");
    }
  });
  assert.equal(pauses, [500, 500, 500, 500]);
});

test("kv 30: no such Service: the listing fails at once, and says which one", async () => {
  await rig(async ({ kube, discovery }) => {
    kube.services.clear();
    let error: unknown;
    await discovery({ service: "peers" }).start().catch((caught: unknown) => (error = caught));
    assert.instance(error, PeerServiceMissing);
    assert.match((error as Error).message, /"peers" in namespace "ns"/);
  });
});

test("not being allowed to look at Services is no proof that there is none", async () => {
  await rig(async ({ kube, discovery }) => {
    kube.servicesAllowed = false;
    const peers = discovery();
    await peers.start();
    assert.equal(peers.current(), []);
  });
});

test("a replica finds its peer by EndpointSlices and recovers from it", async () => {
  await rig(async ({ kube, discovery }) => {
    const source = await sourceReplica({ lanes: [laneKey("0")] });
    const lane = source.store.lane(laneKey("0"));
    if (lane === undefined) throw new Error("no lane");
    store(lane, 0, 1n, 0, 50);
    const { port } = new URL(source.url);
    const ports = [{ name: "peer", port: Number(port) }];
    kube.set(slice("s", [one("127.0.0.1"), one("127.0.0.7")], { ports }));
    const joiner = await testReplica({
      lanes: [laneKey("0")],
      discovery: discovery({ self: "127.0.0.7" }),
    });
    joiner.recovery.start();
    assert.is(await joiner.recovery.done, "recovered");
    const ours = joiner.store.lane(laneKey("0"));
    assert.equal(ours && contentOf(ours), contentOf(lane));
    await joiner.close();
    await source.close();
  });
});

test("a replica that is there before the peers' Service says so, and recovers once it is there", async () => {
  await rig(async ({ kube, discovery }) => {
    kube.services.clear();
    const source = await sourceReplica({ lanes: [laneKey("0")] });
    const lane = source.store.lane(laneKey("0"));
    if (lane === undefined) throw new Error("no lane");
    store(lane, 0, 1n, 0, 50);
    const joiner = await testReplica({
      lanes: [laneKey("0")],
      discovery: discovery({ self: "127.0.0.7" }),
    });
    joiner.recovery.start();
    await until(() => /no Service "peers"/.test(joiner.recovery.status().reason), "the reason");
    assert.is(joiner.recovery.status().state, "listing");
    kube.services.add("peers");
    const ports = [{ name: "peer", port: Number(new URL(source.url).port) }];
    kube.set(slice("s", [one("127.0.0.1")], { ports }));
    assert.is(await joiner.recovery.done, "recovered");
    const ours = joiner.store.lane(laneKey("0"));
    assert.equal(ours && contentOf(ours), contentOf(lane));
    await joiner.close();
    await source.close();
  });
});

test.after(closeAll);
test.run();
