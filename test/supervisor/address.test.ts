import { test } from "uvu";
import * as assert from "uvu/assert";
import { isLoopbackHost } from "../../src/config/values.ts";
import {
  assertSecure,
  fileUrlPath,
  InsecureAddress,
  printableUrl,
} from "../../src/supervisor/address.ts";

test("a file address is a URL with two slashes, and a path as it stands without", () => {
  assert.is(fileUrlPath("file:///srv/my%20list.json"), "/srv/my list.json");
  assert.is(fileUrlPath("file://localhost/srv/x"), "/srv/x");
  assert.is(fileUrlPath("file:/srv/my%20list.json"), "/srv/my%20list.json");
  assert.is(fileUrlPath("file:./versions.json"), "./versions.json");
  assert.is(fileUrlPath("file:versions.json"), "versions.json");
  assert.throws(() => fileUrlPath("file://elsewhere/srv/x"), /another host/);
});

test("loopback is what leads to this machine, and nothing that looks like it", () => {
  for (
    const host of [
      "localhost",
      "LOCALHOST",
      "localhost.",
      "a.localhost",
      "127.0.0.1",
      "127.1.2.3",
      "[::1]",
    ]
  ) {
    assert.ok(isLoopbackHost(host), host);
  }
  for (
    const host of [
      "localhost.test",
      "xlocalhost",
      "127.0.0.1.test",
      "128.0.0.1",
      "[::2]",
      "0.0.0.0",
      "",
    ]
  ) {
    assert.not(isLoopbackHost(host), host);
  }
});

test("every spelling of a loopback address is the same to a URL", () => {
  for (const url of ["http://127.1/", "http://0x7f.1/", "http://2130706433/"]) {
    assert.ok(isLoopbackHost(new URL(url).hostname), url);
  }
});

test("https always, http where allowed, nothing else", () => {
  assertSecure(new URL("https://x.test/"), false);
  assertSecure(new URL("http://x.test/"), true);
  assertSecure(new URL("http://127.0.0.1/"), false);
  assert.throws(
    () => assertSecure(new URL("http://x.test/"), false),
    (e: unknown) => e instanceof InsecureAddress,
  );
  assert.throws(() => assertSecure(new URL("ftp://x.test/"), true), /ftp: is not/);
});

test("what is printed of an address holds no secret", () => {
  assert.is(printableUrl("https://user:pass@x.test/a/b?sig=secret#f"), "https://x.test/a/b");
  assert.is(printableUrl(new URL("http://x.test:81/a")), "http://x.test:81/a");
  assert.is(printableUrl("file:/srv/x"), "file:/srv/x");
  assert.is(printableUrl("nonsense"), "nonsense");
});

test.run();
