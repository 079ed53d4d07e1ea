/** Small decisions: the normalised path, cutting a mount off, whose word counts. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { normalisePath, stripMount } from "../../src/proxy/path.ts";
import { parseIp } from "../../src/config/ip_range.ts";
import { TrustedPeers } from "../../src/proxy/trust.ts";

test("normalising resolves dots, escapes, slashes and backslashes once", () => {
  const cases: [string, string][] = [
    ["/", "/"],
    ["/a/b?c=/../d", "/a/b"],
    ["//", "/"],
    ["/a//b", "/a/b"],
    ["/a/./b/", "/a/b/"],
    ["/a/../../b", "/b"],
    ["/a/..", "/"],
    ["/%2e%2E/a", "/a"],
    ["/a%2fb", "/a/b"],
    ["/a\\..\\b", "/b"],
    ["/a%5Cb", "/a/b"],
    ["/%252e", "/%2e"],
    ["/%zz", "/%zz"],
    ["/a/...", "/a/..."],
    ["/.well-known/x", "/.well-known/x"],
    ["/%C3%A9", "/\xc3\xa9"],
  ];
  for (const [target, path] of cases) assert.is(normalisePath(target), path, target);
});

test("a mount is cut off the raw target only where the raw bytes spell it and stay inside", () => {
  assert.is(stripMount("/v1/x?q", "/v1"), "/x?q");
  assert.is(stripMount("/v1", "/v1"), "/");
  assert.is(stripMount("/v1?q", "/v1"), "/?q");
  assert.is(stripMount("/v1/", "/v1"), "/");
  assert.is(stripMount("/v1/a/../b%2f", "/v1"), "/a/../b%2f");
  assert.is(stripMount("/x//y", "/"), "/x//y");
  assert.is(stripMount("/%761/x", "/v1"), undefined);
  assert.is(stripMount("/v10/x", "/v1"), undefined);
  assert.is(stripMount("//v1/x", "/v1"), undefined);
  assert.is(stripMount("/v1/../v2", "/v1"), undefined);
  assert.is(stripMount("/v1/%2e%2e/v2", "/v1"), undefined);
});

test("trust goes by address and by range, in both families, whatever the spelling", () => {
  const trusted = new TrustedPeers(["10.0.0.0/8", "192.168.1.7", "fd00::/8", "::1", "unix"]);
  for (
    const peer of [
      "10.1.2.3",
      "::ffff:10.9.9.9",
      "192.168.1.7",
      "fd12::1%eth0",
      "0:0:0:0:0:0:0:1",
      "",
    ]
  ) {
    assert.ok(trusted.has(peer), peer);
  }
  for (const peer of ["11.0.0.1", "192.168.1.8", "fe80::1", "::2", "nonsense"]) {
    assert.not.ok(trusted.has(peer), peer);
  }
  assert.not.ok(new TrustedPeers([]).has(""));
  assert.ok(new TrustedPeers(["0.0.0.0/0"]).has("1.2.3.4"));
  assert.ok(new TrustedPeers(["10.1.2.0/23"]).has("10.1.3.255"));
  for (const entry of ["10.0.0.0/33", "x", "10.0.0", "1::2::3", "10.0.0.0/-1", "300.1.1.1", "/8"]) {
    assert.throws(() => new TrustedPeers([entry]), new RegExp(entry.replace(/[./]/g, "\\$&")));
  }
  assert.is(parseIp("::ffff:1.2.3.4")?.length, 4);
  assert.is(parseIp("1:2:3:4:5:6:7:8")?.length, 16);
  assert.is(parseIp("1:2:3:4:5:6:7"), undefined);
});

test.run();
