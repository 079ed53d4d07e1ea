/** docs/lifecycle.md: its example is the file it names, and that file does what the page says. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import http from "node:http";
import process from "node:process";
import { fileURLToPath } from "node:url";
import * as exported from "baton/lifecycle";
import { basePort } from "../support/baton_process.ts";
import { until } from "../support/scratch.ts";

const root = fileURLToPath(new URL("../../", import.meta.url));
const example = `${root}docs/examples/lifecycle.ts`;
const page = readFileSync(`${root}docs/lifecycle.md`, "utf8");

test("the page shows the example as it is", () => {
  const block = /```ts\n([\s\S]*?)```/.exec(page)?.[1];
  assert.is(block, readFileSync(example, "utf8"));
});

test("the functions that the page names are exported", () => {
  assert.type(exported.createLifecycle, "function");
  assert.type(exported.shutDownHost, "function");
  const lifecycle = exported.createLifecycle();
  for (const [, name] of page.matchAll(/\| `lifecycle\.(\w+)/g)) {
    assert.ok((name ?? "") in lifecycle, name);
  }
});

test("the example drains: the stream ends complete, late requests get 503, the process ends", async () => {
  const [port, adminPort] = [basePort(), basePort()];
  const onDeno = "Deno" in globalThis;
  const args = onDeno ? ["run", "-A", "--no-check", "--quiet", example] : [example];
  const child = spawn(process.execPath, args, {
    cwd: root,
    env: { ...process.env, PORT: String(port), ADMIN_PORT: String(adminPort) },
    stdio: "inherit",
  });
  const exited = new Promise<number | null>((resolve) => child.on("close", resolve));
  try {
    const base = `http://127.0.0.1:${port}`;
    const ready = async () => {
      try {
        return await (await fetch(`http://127.0.0.1:${adminPort}/ready`)).json();
      } catch {
        return {};
      }
    };
    await until(async () => (await ready()).ready === true, "readiness");
    const count = await new Promise<http.IncomingMessage>((resolve) => {
      http.get(`${base}/count`, resolve);
    });
    let text = "";
    count.on("data", (chunk) => (text += chunk));
    const ended = new Promise<boolean>((resolve) =>
      count.on("close", () => resolve(count.complete))
    );
    await until(() => text !== "", "the first line");
    process.kill(child.pid ?? 0, "SIGTERM");
    await until(async () => (await ready()).draining === true, "the drain");
    const late = await fetch(`${base}/`);
    assert.is(late.status, 503);
    await late.body?.cancel();
    assert.ok(await ended, "the stream came to its proper end");
    assert.is(text, "1\n2\n3\n4\n5\n");
    assert.is(await exited, 0);
  } finally {
    if (child.exitCode === null) process.kill(child.pid ?? 0, "SIGKILL");
  }
});

test.run();
