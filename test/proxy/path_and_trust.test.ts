/** Small decisions: the normalised path, cutting a mount off, whose word counts. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { normalisePath, pathGuard, segmentBehind, stripMount } from "../../src/proxy/path.ts";
import { parseIp } from "../../src/config/ip_range.ts";
import { TrustedPeers } from "../../src/proxy/trust.ts";

test("normalising resolves dots, escapes, slashes, backslashes and parameters once", () => {
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
    ["/a;x=1/b;y", "/a/b"],
    ["/a/..;x/b", "/b"],
    ["/a;%2f..", "/a"],
    ["/a%3b/b", "/a;/b"],
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
  assert.is(stripMount("/v1/..;/v2", "/v1"), undefined);
  assert.is(stripMount("/v1;x/y", "/v1"), undefined);
  assert.is(stripMount("/v1/a;x/y", "/v1"), "/a;x/y");
});

test("the segment behind a mount names a version", () => {
  assert.is(segmentBehind("/v1/x", "/"), "v1");
  assert.is(segmentBehind("/v1", "/"), "v1");
  assert.is(segmentBehind("/devshard/v1/x", "/devshard"), "v1");
  assert.is(segmentBehind("/devshard", "/devshard"), "");
  assert.is(segmentBehind("/", "/"), "");
});

test("a guarded path is known in every spelling that some server takes for it", () => {
  const isGuarded = pathGuard(["/drain", "/drain/status"]);
  const spellings = [
    "/drain",
    "/drain?x",
    "/DRAIN/",
    "//drain",
    "/./drain",
    "/x/../drain",
    "/%64rain",
    "/drain%2fstatus",
    // Path parameters.
    "/drain;x",
    "/drain/;x=1/status;y",
    "/x/..;/drain",
    "/drain;x%2fy",
    // Who folds slashes, takes escaped ones for slashes, or reads `..;`, goes up further than others.
    "/drain//..",
    "/drain//%2e%2e",
    "/drain/a%2fb/..",
    "/drain/\\/..",
    "/drain/..;/..",
    // Endings, and what ends a text elsewhere.
    "/drain.json",
    "/drain%2e",
    "/drain%00x",
    "/drain%0a",
    "/drain/status%20",
  ];
  for (const target of spellings) assert.ok(isGuarded(target), target);
  const others = [
    "/",
    "/drainage",
    "/drain/x",
    "/x/drain",
    "/status",
    "/x?/drain",
    "/%3f/drain",
    "/drain.d/x",
    "/to/https://host/drain",
  ];
  for (const target of others) assert.not(isGuarded(target), target);
  assert.not(pathGuard([])("/drain"));
  assert.ok(pathGuard(["/a.b/(c)+"])("/a.b/(C)+;d"));
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
