import { test } from "uvu";
import * as assert from "uvu/assert";
import { createDns, type Resolver } from "../../src/runtime/dns.ts";
import { DnsFailed, NameUnknown } from "../../src/runtime/runtime.ts";
import { runtime } from "../support/runtime.ts";
import { rejection } from "./support.ts";

function failing(code: string): Promise<never> {
  return Promise.reject(Object.assign(new Error(`no: ${code}`), { code }));
}

function resolverOf(lookup: () => Promise<{ address: string }[]>, srv: string): Resolver {
  return { lookup, resolveSrv: () => failing(srv) };
}

test("a local name has addresses, and an address is its own", async () => {
  const local = await runtime.dns.addresses("localhost");
  assert.ok(local.includes("127.0.0.1") || local.includes("::1"));
  assert.equal(await runtime.dns.addresses("127.0.0.1"), ["127.0.0.1"]);
  assert.equal(await runtime.dns.addresses("::1"), ["::1"]);
});

test("a name that cannot exist is unknown, without asking anybody", async () => {
  for (const name of ["", `${"x".repeat(64)}.invalid`]) {
    assert.instance(await rejection(runtime.dns.addresses(name)), NameUnknown);
  }
});

test("addresses are told once each", async () => {
  const found = ["10.0.0.1", "10.0.0.2", "10.0.0.1", "fd00::1"].map((address) => ({ address }));
  const dns = createDns(resolverOf(() => Promise.resolve(found), "ENOTFOUND"));
  assert.equal(await dns.addresses("a"), ["10.0.0.1", "10.0.0.2", "fd00::1"]);
});

test("only the server's own word makes a name unknown; everything else is a failure", async () => {
  const kinds: [string, typeof NameUnknown | typeof DnsFailed][] = [
    ["ENOTFOUND", NameUnknown],
    ["ENODATA", NameUnknown],
    ["EAI_AGAIN", DnsFailed],
    ["ESERVFAIL", DnsFailed],
    ["EREFUSED", DnsFailed],
    ["ETIMEOUT", DnsFailed],
    ["ECONNREFUSED", DnsFailed],
    ["UNHEARD_OF", DnsFailed],
  ];
  for (const [code, kind] of kinds) {
    const dns = createDns(resolverOf(() => failing(code), code));
    assert.instance(await rejection(dns.addresses("a")), kind, code);
    assert.instance(await rejection(dns.services("a")), kind, code);
  }
});

test("services that are said to be missing while the servers fail are not unknown", async () => {
  const unsure = createDns(resolverOf(() => failing("EAI_AGAIN"), "ENOTFOUND"));
  assert.instance(await rejection(unsure.services("a")), DnsFailed);
  const sure = createDns(resolverOf(() => Promise.resolve([{ address: "10.0.0.1" }]), "ENODATA"));
  assert.instance(await rejection(sure.services("a")), NameUnknown);
});

test("services are told with host, port and priority", async () => {
  const dns = createDns({
    lookup: () => failing("ENOTFOUND"),
    resolveSrv: () => Promise.resolve([{ name: "b.test", port: 80, priority: 1 }]),
  });
  assert.equal(await dns.services("a"), [{ host: "b.test", port: 80, priority: 1 }]);
});

test.run();
