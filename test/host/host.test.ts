/** The composition root in this process: listeners, tokens, sockets, what a failed start leaves. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import http from "node:http";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import process from "node:process";
import { parseConfig } from "../../src/config/load.ts";
import { printAddress } from "../../src/config/values.ts";
import { type Baton, startBaton } from "../../src/host/baton.ts";
import { takeOwnership } from "../../src/host/owner.ts";
import { createLog } from "../../src/observe/log.ts";
import type { Runtime } from "../../src/runtime/runtime.ts";
import { fullWhile } from "../support/failing_files.ts";
import { runtime } from "../support/runtime.ts";
import { inScratch, rejection, until } from "../support/scratch.ts";

interface Started {
  readonly baton: Baton;
  readonly url: (listener: "traffic" | "admin" | "peer") => string;
  readonly log: Record<string, unknown>[];
}

async function start(
  folder: string,
  config: Record<string, unknown>,
  machine: Runtime = runtime,
): Promise<Started> {
  const listen = { traffic: "127.0.0.1:0", admin: "127.0.0.1:0", ...config.listen as object };
  const whole = {
    stateDir: `${folder}/state`,
    shutdown: { announceMs: 0, budgetMs: 20_000 },
    ...config,
    listen,
  };
  const log: Record<string, unknown>[] = [];
  const baton = await startBaton(
    machine,
    createLog({ write: (line) => log.push(JSON.parse(line)), now: () => runtime.clock.now() }),
    { config: parseConfig(whole), path: undefined, warnings: [] },
  );
  return {
    baton,
    log,
    url: (listener) => {
      const address = baton.addresses[listener];
      return address === undefined ? "" : `http://${printAddress(address)}`;
    },
  };
}

const upstream = (port: number, mount = "/") => ({ mount, upstream: `http://127.0.0.1:${port}` });

async function withUpstream(action: (port: number) => Promise<void>): Promise<void> {
  const server = http.createServer((request, response) => response.end(`up ${request.url}`));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", () => resolve()));
  try {
    await action((server.address() as { port: number }).port);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

test("the longest mount wins, what is mounted nowhere is 404 as JSON", async () => {
  await withUpstream((port) =>
    inScratch(async (folder) => {
      const services = { a: upstream(port, "/a"), ab: upstream(port, "/a/b") };
      const { baton, url, log } = await start(folder, { services });
      const get = async (path: string) => await (await fetch(url("traffic") + path)).text();
      assert.is(await get("/a/x"), "up /a/x");
      assert.is(await get("/a/b/x"), "up /a/b/x");
      const nowhere = await fetch(`${url("traffic")}/ax`);
      assert.is(nowhere.status, 404);
      assert.is((await nowhere.json()).error.code, "not_found");
      await baton.shutDown();
      const used = log.filter((line) => line.event === "request").map((line) => line.service);
      assert.equal(used, ["a", "ab", undefined]);
    })
  );
});

test("from the first moment of a drain answers end their connections", async () => {
  await withUpstream((port) =>
    inScratch(async (folder) => {
      const { baton, url } = await start(folder, {
        services: { a: upstream(port) },
        shutdown: { announceMs: 5000, budgetMs: 20_000 },
      });
      const connection = async () => {
        const answer = await fetch(`${url("traffic")}/`);
        assert.is(answer.status, 200);
        await answer.text();
        return answer.headers.get("connection");
      };
      assert.is.not(await connection(), "close");
      await (await fetch(`${url("admin")}/drain`, { method: "POST" })).body?.cancel();
      assert.is(baton.lifecycle.state, "announcing");
      assert.is(await connection(), "close");
      await baton.force();
    })
  );
});

test("an upstream that is down is 502 with its code", async () => {
  await inScratch(async (folder) => {
    const { baton, url } = await start(folder, { services: { a: upstream(1) } });
    const answer = await fetch(`${url("traffic")}/`);
    assert.is(answer.status, 502);
    assert.is((await answer.json()).error.code, "upstream_connect_failed");
    await baton.shutDown();
  });
});

test("with a token every admin call but the page needs it, and the peer has its own", async () => {
  await inScratch(async (folder) => {
    await writeFile(`${folder}/admin.token`, "first\n");
    await writeFile(`${folder}/peer.token`, "shared\n");
    const { baton, url } = await start(folder, {
      listen: { peer: "127.0.0.1:0" },
      admin: { token: { file: `${folder}/admin.token` } },
      replica: { token: { file: `${folder}/peer.token` } },
    });
    const status = async (where: string, token?: string) => {
      const headers = new Headers();
      if (token !== undefined) headers.set("authorization", `Bearer ${token}`);
      const answer = await fetch(where, { headers });
      await answer.body?.cancel();
      return answer.status;
    };
    const admin = `${url("admin")}/api/v1/versions`;
    assert.is(await status(admin), 401);
    assert.is(await status(admin, "shared"), 401);
    assert.is(await status(admin, "first"), 200);
    assert.is(await status(`${url("admin")}/ui/`), 200);
    await writeFile(`${folder}/admin.token`, "second\n");
    assert.is(await status(admin, "first"), 401, "rotated without a restart");
    assert.is(await status(admin, "second"), 200);

    await until(() => baton.lifecycle.ready, "the recovery");
    assert.is(await status(`${url("peer")}/ready`), 200);
    assert.is(await status(`${url("peer")}/dump`), 401);
    assert.is(await status(`${url("peer")}/dump`, "shared"), 200);
    assert.is(await status(`${url("peer")}/health`, "shared"), 200);
    assert.is(await status(`${url("peer")}/api/v1/versions`, "shared"), 404);
    await baton.shutDown();
  });
});

test("listeners may be unix sockets, also where a crash left the old ones", async () => {
  await withUpstream((port) =>
    inScratch(async (folder) => {
      const config = {
        listen: { traffic: `unix:${folder}/traffic.sock`, admin: `unix:${folder}/admin.sock` },
        services: { a: upstream(port) },
      };
      for (const round of ["first", "second"]) {
        const { baton } = await start(folder, config);
        const get = async (socket: string, path: string) =>
          await runtime.http.fetch(`http://localhost${path}`, { unixPath: `${folder}/${socket}` });
        assert.is(await (await get("traffic.sock", "/x")).text(), "up /x", round);
        assert.is((await (await get("admin.sock", "/ready")).json()).ready, true, round);
        await baton.shutDown();
        // As after a kill: the name is there and nobody answers.
        const left = http.createServer();
        await new Promise<void>((resolve) => left.listen(`${folder}/left.sock`, () => resolve()));
        await runtime.files.remove(`${folder}/admin.sock`);
        await runtime.files.rename(`${folder}/left.sock`, `${folder}/admin.sock`);
        await new Promise((resolve) => left.close(resolve));
      }
    })
  );
});

test("a start that fails leaves nothing listening and the folder free", async () => {
  await withUpstream((port) =>
    inScratch(async (folder) => {
      const taken = { traffic: `127.0.0.1:${port}` };
      const error = await rejection(
        start(folder, { listen: taken, services: { a: upstream(port) } }),
      );
      assert.match(error.message, `listen.traffic = 127.0.0.1:${port}: `);
      assert.is(await runtime.files.info(`${folder}/state/owner.json`), undefined);
      const { baton } = await start(folder, { services: { a: upstream(port) } });
      await baton.shutDown();
    })
  );
});

test("kv 39: a start that fails and a stop in the middle of a recovery leave the peer port free", async () => {
  // A peer whose dump never comes to its end.
  let asked = 0;
  let left = 0;
  const silent = http.createServer((_, response) => {
    asked += 1;
    response.on("close", () => (left += 1));
    response.writeHead(200, { "content-type": "application/x-ndjson" }).write(" ");
  });
  await new Promise<void>((resolve) => silent.listen(0, "127.0.0.1", () => resolve()));
  const { port } = silent.address() as { port: number };
  try {
    await inScratch(async (folder) => {
      const pool = { model: "m", blockSize: 16, workers: [{ id: "0", url: "http://127.0.0.1:9" }] };
      const config = {
        services: { chat: { mount: "/v1", pool } },
        replica: {
          peers: [`http://127.0.0.1:${port}`],
          subscribeTimeoutMs: 0,
          idleTimeoutMs: 120_000,
        },
      };
      const first = await start(folder, { ...config, listen: { peer: "127.0.0.1:0" } });
      const peer = new URL(first.url("peer")).host;
      await until(() => asked === 1, "the request");
      assert.is(first.baton.lifecycle.ready, false);
      await first.baton.shutDown();
      await until(() => left === 1, "the end of the transfer");
      // The admin and peer listeners come before the traffic listener, whose port is taken.
      const listen = { peer, traffic: `127.0.0.1:${port}` };
      const error = await rejection(start(folder, { ...config, listen }));
      assert.match(error.message, "listen.traffic");
      const again = await start(folder, { ...config, listen: { peer } });
      await until(() => asked === 2, "the request of the next one");
      await again.baton.shutDown();
    });
  } finally {
    silent.closeAllConnections();
    silent.close();
  }
});

test("a worker that posts its events in one endless request does not keep the host from going down", async () => {
  await inScratch(async (folder) => {
    const { baton, url } = await start(folder, { listen: { peer: "127.0.0.1:0" } });
    const { hostname, port } = new URL(url("peer"));
    let cut = false;
    const headers = { expect: "100-continue" };
    const post = http.request({ hostname, port, path: "/events", method: "POST", headers });
    post.on("error", () => (cut = true));
    post.on("close", () => (cut = true));
    // The answer to the expectation says that the request has arrived.
    const arrived = new Promise<void>((resolve) => post.on("continue", () => resolve()));
    post.flushHeaders();
    await arrived;
    post.write("\n");
    const report = await baton.shutDown();
    assert.is(report.forced, false);
    await until(() => cut, "the end of the request");
    post.destroy();
  });
});

test("a state folder that cannot be one ends the start and is named", async () => {
  await inScratch(async (folder) => {
    await writeFile(`${folder}/file`, "");
    const error = await rejection(start(folder, { stateDir: `${folder}/file` }));
    assert.match(error.message, `stateDir = ${folder}/file: `);
  });
});

test("a state folder has one owner; that of a process that is gone is taken", async () => {
  await inScratch(async (folder) => {
    const log = createLog({ write: () => {}, now: () => 0 });
    const first = await takeOwnership(runtime, log, folder);
    assert.is(first.other, undefined);
    const again = await takeOwnership(runtime, log, folder);
    assert.is(again.other, undefined, "our own is no other");
    const parent = process.ppid;
    const startTime = await runtime.processes.startTime(parent);
    await writeFile(`${folder}/owner.json`, JSON.stringify({ pid: parent, startTime }));
    assert.is((await takeOwnership(runtime, log, folder)).other, `process ${parent}`);
    for (const left of [`{"pid":${parent},"startTime":"1"}`, '{"pid":', "null", '{"pid":"x"}']) {
      await writeFile(`${folder}/owner.json`, left);
      const taken = await takeOwnership(runtime, log, folder);
      assert.is(taken.other, undefined, left);
      await taken.release();
      assert.is(await runtime.files.info(`${folder}/owner.json`), undefined);
    }
  });
});

test("a full disk does not stop a host: it serves, and its journal is in memory", async () => {
  for (const made of [true, false]) {
    await withUpstream((port) =>
      inScratch(async (folder) => {
        if (made) await mkdir(`${folder}/state`);
        const one = await start(
          folder,
          { services: { a: upstream(port) } },
          { ...runtime, files: fullWhile(runtime.files, () => true) },
        );
        try {
          assert.is(await (await fetch(`${one.url("traffic")}/x`)).text(), "up /x");
          assert.is((await fetch(`${one.url("admin")}/ready`)).status, 200);
          const events = await (await fetch(`${one.url("admin")}/api/v1/events`)).text();
          assert.match(events, /"kind":"host_state"/);
          const told = one.log.map((line) => line.event);
          assert.ok(told.includes(made ? "owner_not_recorded" : "state_folder_not_made"));
        } finally {
          await one.baton.shutDown();
        }
      })
    );
  }
});

test("what happened is in the journal after a restart", async () => {
  await withUpstream((port) =>
    inScratch(async (folder) => {
      const config = { services: { a: upstream(port) } };
      const first = await start(folder, config);
      await first.baton.shutDown();
      const second = await start(folder, config);
      const answer = await fetch(`${second.url("admin")}/api/v1/events`);
      const events = (await answer.text()).trimEnd().split("\n").map((line) => JSON.parse(line));
      const states = events.filter((event) => event.kind === "host_state").map(({ to }) => to);
      assert.equal(states, ["serving", "draining", "stopping", "stopped", "serving"]);
      assert.equal(events.map((event) => event.id), events.map((_, index) => index + 1));
      await second.baton.shutDown();
      assert.match(await readFile(`${folder}/state/events/events.ndjson`, "utf8"), "host_stopped");
    })
  );
});

test("a host without a service is ready at once and says so", async () => {
  await inScratch(async (folder) => {
    const { baton, url } = await start(folder, {});
    assert.ok(baton.lifecycle.ready);
    const metrics = await (await fetch(`${url("admin")}/metrics`)).text();
    assert.match(metrics, "baton_ready 1");
    assert.match(metrics, 'baton_host_state{state="serving"} 1');
    const forced = await baton.force();
    assert.is(forced.cut, 0);
    assert.is(await baton.shutDown(), forced, "going down happens once");
  });
});

test("the log of a start and an end has no secrets and no unknown shape", async () => {
  await inScratch(async (folder) => {
    await writeFile(`${folder}/token`, "s3cret-value");
    const { baton, log } = await start(folder, { admin: { token: { file: `${folder}/token` } } });
    await baton.shutDown();
    for (const line of log) {
      assert.match(String(line.event), /^[a-z][a-z0-9_]*$/);
      assert.not.match(JSON.stringify(line), "s3cret-value");
    }
    assert.ok(log.length >= 4);
  });
});

test.run();
