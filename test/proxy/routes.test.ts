import { test } from "uvu";
import * as assert from "uvu/assert";
import { isUnder, Routes, type Service } from "../../src/proxy/routes.ts";

const service = (name: string, ...mounts: string[]): Service => ({
  name,
  mounts,
  handle: () => {},
});

test("the longest mount wins, whatever the order of the services", () => {
  const routes = new Routes();
  routes.replace([service("root", "/"), service("deep", "/a/b"), service("flat", "/a")]);
  assert.is(routes.match("/a/b/c")?.service.name, "deep");
  assert.is(routes.match("/a/bc")?.service.name, "flat");
  assert.is(routes.match("/ab")?.service.name, "root");
});

test("a service with two mounts is found by either, and the route says which", () => {
  const routes = new Routes();
  routes.replace([service("shard", "/", "/devshard")]);
  assert.is(routes.match("/devshard/v1")?.mount, "/devshard");
  assert.is(routes.match("/v1")?.mount, "/");
});

test("a path outside every mount has no route", () => {
  const routes = new Routes();
  routes.replace([service("a", "/a")]);
  assert.is(routes.match("/b"), undefined);
});

test("two services at one mount are refused and the old table stays", () => {
  const routes = new Routes();
  routes.replace([service("a", "/a")]);
  assert.throws(
    () => routes.replace([service("b", "/b"), service("c", "/b")]),
    /two services are mounted at \/b/,
  );
  assert.is(routes.match("/a")?.service.name, "a");
});

test("a mount is matched by whole segments", () => {
  assert.ok(isUnder("/v1", "/v1"));
  assert.ok(isUnder("/v1/x", "/v1"));
  assert.not(isUnder("/v10", "/v1"));
  assert.ok(isUnder("/anything", "/"));
});

test.run();
