/** Peers that are added at run time: what is taken, and that a recovery asks them. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { BatonError } from "../../src/errors.ts";
import { staticDiscovery } from "../../src/replica/discovery.ts";
import { joinedDiscovery } from "../../src/replica/joined_discovery.ts";
import { type Discovery, PeerSet, type PeerView } from "../../src/replica/peer_view.ts";
import { RegisteredPeers } from "../../src/replica/registered_peers.ts";
import { dumpOf, gate, Loop, status } from "./support/loop.ts";
import { closeAll, laneKey, sourceReplica, store, testReplica, until } from "./support/replica.ts";
import { keyOf, makeCut } from "./support/shelf.ts";

test.after(closeAll);

const CUT = makeCut(keyOf("0"), 100);

const refused = (code: string) => (error: unknown): boolean =>
  error instanceof BatonError && error.code === code;

function listed(...peers: PeerView[]): Discovery & { readonly set: PeerSet; stopped: boolean } {
  const set = new PeerSet();
  set.replace(peers);
  const discovery = {
    set,
    stopped: false,
    start: () => Promise.resolve(),
    stop: () => void (discovery.stopped = true),
    current: () => set.current,
    onChange: (listener: () => void) => set.onChange(listener),
  };
  return discovery;
}

const urls = (discovery: Discovery): string[] => discovery.current().map(({ url }) => url);

test("only the address of a peer's listener is taken: no path, query, credentials or other scheme", () => {
  const peers = new RegisteredPeers();
  for (
    const url of [
      "",
      "10.0.0.2:8082",
      "ftp://10.0.0.2",
      "file:///etc/passwd",
      "unix:/run/x.sock",
      "http://10.0.0.2:8082/admin",
      "http://10.0.0.2:8082/?x=1",
      "http://10.0.0.2:8082/#x",
      "http://user:pass@10.0.0.2:8082",
      "http://user@10.0.0.2:8082",
      "http://10.0.0.2:99999",
      "http://",
      "javascript:alert(1)",
    ]
  ) {
    assert.throws(() => peers.add(url), refused("bad_request"), url);
  }
  peers.add("HTTP://Peer-1:8082/");
  peers.add("http://peer-1:8082");
  peers.add("http://[fd00::2]:8082");
  assert.equal(peers.list(), ["http://peer-1:8082", "http://[fd00::2]:8082"]);
});

test("where peers are called by https, no token goes to an http peer", () => {
  const peers = new RegisteredPeers({ httpsOnly: true });
  assert.throws(() => peers.add("http://peer-1:8082"), refused("bad_request"));
  peers.add("https://peer-1:8082");
  assert.equal(urls(peers), ["https://peer-1:8082"]);
});

test("there is an end to how many are taken; one that is taken off makes room", () => {
  const peers = new RegisteredPeers({ maxPeers: 2 });
  peers.add("http://a:1");
  peers.add("http://b:1");
  peers.add("http://b:1");
  assert.throws(() => peers.add("http://c:1"), refused("conflict"));
  assert.is(peers.remove("http://a:1/"), true);
  assert.is(peers.remove("http://a:1"), false);
  assert.is(peers.remove("no url"), false);
  peers.add("http://c:1");
  assert.equal(urls(peers), ["http://b:1", "http://c:1"]);
});

test("joined lists have every peer once, tell of changes of each, and stop together", async () => {
  const first = listed({ url: "http://a:1", serving: true, terminating: false });
  const second = new RegisteredPeers();
  const joined = joinedDiscovery([first, second]);
  await joined.start();
  let changes = 0;
  const forget = joined.onChange(() => changes += 1);
  second.add("http://b:1");
  second.add("http://a:1");
  assert.equal(urls(joined), ["http://a:1", "http://b:1"]);
  assert.is(changes, 1, "a peer that is listed already is no change");
  first.set.replace([]);
  assert.equal(urls(joined), ["http://a:1", "http://b:1"]);
  second.remove("http://b:1");
  assert.equal(urls(joined), ["http://a:1"]);
  forget();
  second.remove("http://a:1");
  assert.is(changes, 3);
  joined.stop();
  assert.ok(first.stopped);
});

test("who registers a peer cannot make a source of one that the first list says is leaving", () => {
  const leaving = { url: "http://a:1", serving: true, terminating: true };
  const first = listed(leaving);
  const second = new RegisteredPeers();
  const joined = joinedDiscovery([first, second]);
  second.add("http://a:1");
  assert.equal(joined.current(), [leaving]);
});

test("a peer that is registered while a recovery waits is asked at once", async () => {
  const registered = new RegisteredPeers();
  const configured = staticDiscovery(["http://broken:8082"], undefined);
  const loop = new Loop({ discovery: joinedDiscovery([configured, registered]) });
  loop.answer("broken", status(500));
  loop.answer("late", dumpOf([CUT]));
  loop.start();
  await loop.pass(10_000);
  assert.is(loop.ended, undefined);
  registered.add("http://late:8082");
  await loop.pass(100);
  assert.is(loop.ended, "recovered");
  assert.is(loop.store.lane(CUT.key)?.blocks, 100);
});

test("a peer that is deregistered before its turn is not asked; one that gives just now may finish", async () => {
  const registered = new RegisteredPeers();
  const loop = new Loop({
    discovery: joinedDiscovery([staticDiscovery([], undefined), registered]),
  });
  const held = gate(dumpOf([CUT]));
  for (const name of ["a", "b"]) {
    registered.add(`http://${name}:8082`);
    loop.answer(name, held.answer);
  }
  loop.start();
  await loop.pass(10);
  for (const name of ["a", "b"]) registered.remove(`http://${name}:8082`);
  held.open();
  assert.is(await loop.run(), "recovered");
  assert.is(loop.asked.length, 1);
});

test("registered peers alone are enough to recover from; without any, recovery is off", async () => {
  const registered = new RegisteredPeers();
  const make = () =>
    new Loop({
      config: { peers: [] },
      discovery: joinedDiscovery([staticDiscovery([], undefined), registered]),
    });
  const alone = make();
  alone.start();
  assert.is(await alone.run(), "recovery_disabled");
  registered.add("http://a:8082");
  const loop = make();
  loop.answer("a", dumpOf([CUT]));
  loop.start();
  assert.is(await loop.run(), "recovered");
});

test("a registered peer that redirects is not followed, and ourselves among them are no harm", async () => {
  const source = await sourceReplica({ lanes: [laneKey("0")] });
  const lane = source.store.lane(laneKey("0"));
  assert.ok(lane);
  store(lane, 0, 1n, 0, 10);
  let followed = 0;
  const elsewhere = await testReplica({
    wrap: () => () => {
      followed += 1;
      return new Response("secret");
    },
  });
  const redirecting = await testReplica({
    wrap: () => () => new Response(null, { status: 302, headers: { location: elsewhere.url } }),
  });
  const registered = new RegisteredPeers();
  const joiner = await testReplica({ discovery: registered, lanes: [laneKey("0")] });
  for (const { url } of [redirecting, joiner, source]) registered.add(url);
  joiner.recovery.start();
  assert.is(await joiner.recovery.done, "recovered");
  await until(() => joiner.store.lane(laneKey("0"))?.blocks === 10, "the lane");
  assert.is(followed, 0);
});

test.run();
