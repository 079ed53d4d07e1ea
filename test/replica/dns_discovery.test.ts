/** Peers by DNS, and by a list. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { silentLog } from "../../src/observe/log.ts";
import { createDiscovery, staticDiscovery } from "../../src/replica/discovery.ts";
import { dnsDiscovery } from "../../src/replica/dns_discovery.ts";
import { type Dns, DnsFailed, NameUnknown } from "../../src/runtime/runtime.ts";
import { runtime } from "../support/runtime.ts";
import { seeded, settle, SimClock } from "./support/sim_clock.ts";

class FakeDns implements Dns {
  records = new Map<string, string[]>();
  srv = new Map<string, { host: string; port: number; priority: number }[]>();
  failing = false;
  lookups = 0;

  addresses(name: string): Promise<string[]> {
    this.lookups += 1;
    if (this.failing) return Promise.reject(new DnsFailed("SERVFAIL"));
    const found = this.records.get(name);
    return found === undefined ? Promise.reject(new NameUnknown(name)) : Promise.resolve(found);
  }

  services(name: string) {
    if (this.failing) return Promise.reject(new DnsFailed("timeout"));
    const found = this.srv.get(name);
    return found === undefined ? Promise.reject(new NameUnknown(name)) : Promise.resolve(found);
  }
}

function rig(name: string, self?: string) {
  const clock = new SimClock();
  const dns = new FakeDns();
  const random = { ...runtime.random, number: seeded(1) };
  const discovery = dnsDiscovery({
    runtime: { clock, dns, random },
    log: silentLog,
    peers: { dns: name, port: 8082, scheme: "http", refreshMs: 10_000 },
    self,
  });
  const urls = () => discovery.current().map(({ url }) => url);
  return { clock, dns, discovery, urls };
}

test("A and AAAA records are the peers, and changes are found", async () => {
  const { clock, dns, discovery, urls } = rig("peers");
  dns.records.set("peers", ["10.0.0.2", "10.0.0.1", "fd00::1"]);
  let changes = 0;
  discovery.onChange(() => (changes += 1));
  await discovery.start();
  assert.equal(urls(), ["http://10.0.0.1:8082", "http://10.0.0.2:8082", "http://[fd00::1]:8082"]);
  assert.ok(discovery.current().every(({ serving }) => serving === undefined));
  await clock.run(() => false, 35_000);
  assert.is(changes, 1, "the same answer is no change");
  dns.records.set("peers", ["10.0.0.3"]);
  await clock.run(() => false, 11_000);
  assert.equal(urls(), ["http://10.0.0.3:8082"]);
  discovery.stop();
});

test("with our own address known, only its family, and never ourselves", async () => {
  for (
    const [self, wanted] of [
      ["10.0.0.1", ["http://10.0.0.2:8082"]],
      ["fd00::2", ["http://[fd00::1]:8082"]],
    ] as const
  ) {
    const { dns, discovery, urls } = rig("peers", self);
    dns.records.set("peers", ["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"]);
    await discovery.start();
    assert.equal(urls(), wanted);
    discovery.stop();
  }
});

test("no such name means no peers; a failure means that nothing is known", async () => {
  const { clock, dns, discovery, urls } = rig("peers");
  await discovery.start();
  assert.equal(urls(), []);
  dns.records.set("peers", ["10.0.0.1"]);
  await clock.run(() => false, 11_000);
  assert.equal(urls(), ["http://10.0.0.1:8082"]);
  dns.failing = true;
  await clock.run(() => false, 60_000);
  assert.equal(urls(), ["http://10.0.0.1:8082"], "kept while the name server is silent");
  discovery.stop();
});

test("the first listing waits for an answer", async () => {
  const { clock, dns, discovery, urls } = rig("peers");
  dns.failing = true;
  let isListed = false;
  void discovery.start().then(() => (isListed = true));
  await clock.run(() => false, 25_000);
  assert.is(isListed, false);
  dns.failing = false;
  dns.records.set("peers", ["10.0.0.1"]);
  await clock.run(() => isListed, 11_000);
  assert.is(isListed, true);
  assert.equal(urls(), ["http://10.0.0.1:8082"]);
  discovery.stop();
});

test("SRV records give hosts and ports", async () => {
  const { dns, discovery, urls } = rig("_peer._tcp.baton");
  dns.srv.set("_peer._tcp.baton", [
    { host: "a.baton", port: 9001, priority: 0 },
    { host: "b.baton", port: 9002, priority: 0 },
  ]);
  dns.records.set("a.baton", ["10.0.0.1"]);
  dns.records.set("b.baton", ["10.0.0.2"]);
  await discovery.start();
  assert.equal(urls(), ["http://10.0.0.1:9001", "http://10.0.0.2:9002"]);
  discovery.stop();
});

test("a host among SRV records that does not resolve costs only itself", async () => {
  const { dns, discovery, urls } = rig("_peer._tcp.baton");
  dns.srv.set("_peer._tcp.baton", [
    { host: "gone.baton", port: 9001, priority: 0 },
    { host: "b.baton", port: 9002, priority: 0 },
  ]);
  dns.records.set("b.baton", ["10.0.0.2"]);
  await discovery.start();
  assert.equal(urls(), ["http://10.0.0.2:9002"]);
  discovery.stop();
});

test("stopped, nothing is looked up any more", async () => {
  const { clock, dns, discovery } = rig("peers");
  dns.records.set("peers", ["10.0.0.1"]);
  await discovery.start();
  await settle();
  discovery.stop();
  const before = dns.lookups;
  await clock.run(() => false, 60_000);
  assert.is(dns.lookups, before);
});

test("a list is taken as it is, without ourselves and without doubles", () => {
  const list = [
    "http://10.0.0.1:8082",
    "http://10.0.0.2:8082/",
    "http://10.0.0.2:8082",
    "http://[fd00::1]:8082",
  ];
  const of = (self?: string) => staticDiscovery(list, self).current().map(({ url }) => url);
  assert.equal(of(), ["http://10.0.0.1:8082", "http://10.0.0.2:8082", "http://[fd00::1]:8082"]);
  assert.equal(of("10.0.0.2"), ["http://10.0.0.1:8082", "http://[fd00::1]:8082"]);
  assert.equal(of("10.0.0.2:8082"), ["http://10.0.0.1:8082", "http://[fd00::1]:8082"]);
  assert.equal(of("fd00::1"), ["http://10.0.0.1:8082", "http://10.0.0.2:8082"]);
});

test("kv 8: our own address comes from POD_IP where the configuration has none", () => {
  const discovery = createDiscovery({
    runtime: { ...runtime, env: () => ({ POD_IP: "10.0.0.1" }) },
    log: silentLog,
    config: { peers: ["http://10.0.0.1:8082", "http://10.0.0.2:8082"] },
  });
  assert.equal(discovery.current().map(({ url }) => url), ["http://10.0.0.2:8082"]);
});

test.run();
