/** Baton as a process: the start, the signals, and a roll-out that is driven by the command line. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import http from "node:http";
import { writeFile } from "node:fs/promises";
import { basePort, runBaton, runVerb, startBatonProcess } from "../support/baton_process.ts";
import { childScript } from "../support/builds.ts";
import { inScratch, until } from "../support/scratch.ts";

/** An upstream whose `/slow` answers only when it is told to. */
async function upstream() {
  const held: http.ServerResponse[] = [];
  const server = http.createServer((request, response) => {
    if (request.url !== "/slow") return void response.end(`up ${request.url}`);
    response.write("first ");
    held.push(response);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as { port: number };
  return {
    url: `http://127.0.0.1:${port}`,
    held,
    release: () => held.splice(0).forEach((response) => response.end("last")),
    close: () => {
      server.closeAllConnections();
      server.close();
    },
  };
}

const plain = (url: string, more: Record<string, unknown> = {}) => ({
  services: { plain: { mount: "/", upstream: url } },
  shutdown: { announceMs: 0, budgetMs: 60_000 },
  ...more,
});

/** The status of a POST whose target is sent as it is written. */
function rawStatus(base: string, path: string): Promise<number | undefined> {
  const { hostname, port } = new URL(base);
  return new Promise((resolve, reject) => {
    const request = http.request(
      { hostname, port, path, method: "POST", agent: false },
      (answer) => {
        answer.resume();
        resolve(answer.statusCode);
      },
    );
    request.on("error", reject);
    request.end();
  });
}

const json = async (url: string) => await (await fetch(url)).json();

test("an upstream is served, and the lifecycle paths are the admin listener's alone", async () => {
  const up = await upstream();
  await inScratch(async (folder) => {
    const baton = await startBatonProcess(folder, plain(up.url));
    try {
      assert.is(await (await fetch(`${baton.traffic}/a?b=1`)).text(), "up /a?b=1");
      assert.is((await fetch(`${baton.traffic}/readyz`)).status, 200);
      assert.equal(await json(`${baton.traffic}/healthz`), []);
      for (
        const path of ["/ready", "/drain", "/drain/status", "/Drain/", "/drain;x", "/x/..;/drain"]
      ) {
        assert.is((await fetch(baton.traffic + path, { method: "POST" })).status, 404, path);
      }
      assert.is((await json(`${baton.admin}/ready`)).ready, true);
      assert.match(await (await fetch(`${baton.admin}/metrics`)).text(), "baton_ready 1");
    } finally {
      assert.is(await baton.stop(), 0);
    }
    assert.equal(baton.noise, []);
  });
  up.close();
});

test("SIGTERM: nothing is let in any more, what was let in ends, and the exit code is 0", async () => {
  const up = await upstream();
  await inScratch(async (folder) => {
    const baton = await startBatonProcess(folder, plain(up.url));
    const slow = fetch(`${baton.traffic}/slow`).then((response) => response.text());
    await until(() => up.held.length === 1, "the slow request");
    baton.signal("SIGTERM");
    await until(async () => (await json(`${baton.admin}/ready`)).draining, "the drain");
    const refused = await fetch(`${baton.traffic}/late`);
    assert.is(refused.status, 503);
    assert.is((await refused.json()).error.code, "draining");
    assert.equal(await json(`${baton.traffic}/healthz`), [], "it still tells how it is");
    const status = await json(`${baton.admin}/drain/status`);
    assert.is(status.inflight, 1);
    assert.is(status.targets[0].leases, 1);
    // case 245: another SIGTERM changes nothing
    baton.signal("SIGTERM");
    assert.is((await json(`${baton.admin}/drain/status`)).inflight, 1);
    up.release();
    assert.is(await slow, "first last");
    assert.is(await baton.exited, 0);
    const report = baton.log.find((line) => line.event === "host_stopped");
    assert.is(report?.cut, 0);
    assert.is(report?.forced, false);
  });
  up.close();
});

test("case 245: SIGINT after SIGTERM ends it at once; what was cut is counted, the exit code is 3", async () => {
  const up = await upstream();
  await inScratch(async (folder) => {
    const baton = await startBatonProcess(folder, plain(up.url));
    const slow = fetch(`${baton.traffic}/slow`).then((response) => response.text());
    const ended = slow.then(() => "complete", () => "cut");
    await until(() => up.held.length === 1, "the slow request");
    baton.signal("SIGTERM");
    await until(() => baton.log.some((line) => line.to === "draining"), "the drain");
    baton.signal("SIGINT");
    assert.is(await baton.exited, 3);
    assert.is(await ended, "cut");
    const report = baton.log.find((line) => line.event === "host_stopped");
    assert.is(report?.cut, 1);
    assert.is(report?.forced, true);
  });
  up.close();
});

test("while it announces, readiness fails and requests are still answered", async () => {
  const up = await upstream();
  await inScratch(async (folder) => {
    const config = plain(up.url, { shutdown: { announceMs: 5000, budgetMs: 60_000 } });
    const baton = await startBatonProcess(folder, config);
    baton.signal("SIGTERM");
    await until(async () => (await fetch(`${baton.traffic}/readyz`)).status === 503, "not ready");
    assert.is(await (await fetch(`${baton.traffic}/x`)).text(), "up /x");
    baton.signal("SIGINT");
    await baton.exited;
  });
  up.close();
});

test("POST /drain closes admission and leaves the process up until SIGTERM", async () => {
  const up = await upstream();
  await inScratch(async (folder) => {
    const baton = await startBatonProcess(folder, plain(up.url));
    const drained = await runVerb(["drain", "--wait", "--admin", baton.admin]);
    assert.is(drained.code, 0, drained.stderr);
    assert.is(JSON.parse(drained.stdout).draining, true);
    assert.is((await fetch(`${baton.traffic}/x`)).status, 503);
    assert.is((await json(`${baton.admin}/ready`)).draining, true);
    assert.is(await baton.stop(), 0);
  });
  up.close();
});

test("a configuration that is wrong ends the start with exit code 2 and every problem", async () => {
  await inScratch(async (folder) => {
    const file = `${folder}/bad.json`;
    await writeFile(file, '{"stateDir":1,"log":{"level":"x"}}');
    for (const verb of ["serve", "check"]) {
      const { code, stderr } = await runBaton([verb, "--config", file]);
      assert.is(code, 2);
      assert.match(stderr, "stateDir = 1: allowed is text");
      assert.match(stderr, 'log.level = "x": allowed is');
    }
  });
});

test("a port that is taken ends the start with exit code 1 and names the listener", async () => {
  const up = await upstream();
  await inScratch(async (folder) => {
    const address = up.url.slice("http://".length);
    const file = `${folder}/taken.json`;
    await writeFile(
      file,
      JSON.stringify({
        ...plain(up.url),
        stateDir: `${folder}/state`,
        listen: { traffic: address, admin: "127.0.0.1:0" },
      }),
    );
    const { code, stderr } = await runBaton(["serve", "--config", file]);
    assert.is(code, 1);
    assert.match(stderr, `listen.traffic = ${address}: `);
  });
  up.close();
});

test("a state folder whose programs another Baton runs ends the start with exit code 1", async () => {
  await inScratch(async (folder) => {
    const versions = { oracle: `file:${folder}/versions.json`, killGraceMs: 1000 };
    const config = { services: { shard: { mount: "/", versions } }, shutdown: { announceMs: 0 } };
    const baton = await startBatonProcess(folder, config);
    try {
      const { code, stderr } = await runBaton([
        ...["serve", "--config", `${folder}/baton.json`],
        ...["--traffic", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"],
      ]);
      assert.is(code, 1);
      assert.match(stderr, /^baton serve: .*in use/m);
    } finally {
      assert.is(await baton.stop(), 0);
    }
  });
});

test("status --watch and events --follow see a restart of Baton through, and say so", async () => {
  const up = await upstream();
  await inScratch(async (folder) => {
    const socket = `unix:${folder}/admin`;
    const config = plain(up.url, { listen: { admin: socket } });
    const first = await startBatonProcess(folder, config);
    const enough = new AbortController();
    const seen = { watch: ["", ""], follow: ["", ""] };
    const watch = runBaton(["status", "--watch", "--json", "--admin", socket], {
      signal: enough.signal,
      onOutput: (...output) => (seen.watch = output),
    });
    const follow = runBaton(["events", "--follow", "--admin", socket], {
      signal: enough.signal,
      onOutput: (...output) => (seen.follow = output),
    });
    const stdout = (of: keyof typeof seen) => seen[of][0] ?? "";
    await until(() => stdout("watch") !== "" && stdout("follow") !== "", "the first answers");
    const held = fetch(`${first.traffic}/slow`).then((response) => response.text());
    await until(() => up.held.length === 1, "the slow request");
    first.signal("SIGTERM");
    await until(() => stdout("watch").includes('"draining":true'), "the drain, as it is watched");
    up.release();
    await held;
    assert.is(await first.exited, 0);
    await until(
      () => [seen.watch, seen.follow].every(([, stderr]) => stderr?.includes("; asking again\n")),
      "both say that nobody answers",
    );
    const before = stdout("watch").length;
    const second = await startBatonProcess(folder, config);
    await until(() => stdout("watch").slice(before).includes('"ready":true'), "the new status");
    await until(() => stdout("follow").split('"to":"serving"').length === 3, "the new events");
    enough.abort();
    await watch;
    const events = (await follow).stdout.trim().split("\n").map((line) => JSON.parse(line));
    const ids = events.map(({ id }) => id);
    assert.equal(ids, [...new Set(ids)].sort((a, b) => a - b), "each event once, in order");
    assert.ok(events.some(({ kind }) => kind === "host_stopped"));
    assert.is(await second.stop(), 0);
  });
  up.close();
});

test("a roll-out by the command line: publish, swap under requests, status, logs, events", async () => {
  await inScratch(async (folder) => {
    const build = async (id: string): Promise<string> => {
      const path = `${folder}/${id}.sh`;
      await writeFile(path, childScript({ id, binaryName: "app" }));
      return path;
    };
    const versions = {
      oracle: `file:${folder}/versions.json`,
      binaryName: "app",
      basePort: basePort(),
      bakeMs: 200,
      drainPollMs: 20,
      killGraceMs: 5000,
    };
    const config = {
      services: { shard: { mount: "/devshard", versions } },
      shutdown: { announceMs: 0, budgetMs: 60_000 },
    };
    const baton = await startBatonProcess(folder, config);
    const cli = async (...args: string[]) => {
      const configured = ["publish", "logs"].includes(args[0] ?? "");
      const all = [
        ...args,
        ...configured ? ["--config", `${folder}/baton.json`] : ["--admin", baton.admin],
      ];
      const finished = await runVerb(all);
      assert.is(finished.code, 0, `${args.join(" ")}: ${finished.stderr}`);
      return finished.stdout;
    };
    try {
      assert.is((await fetch(`${baton.traffic}/readyz`)).status, 503);
      const early = await fetch(`${baton.traffic}/devshard/v1/work`);
      assert.is(early.status, 503);
      assert.is((await early.json()).error.code, "not_ready");
      await cli("publish", "v1", await build("one"));
      await until(async () => (await fetch(`${baton.traffic}/readyz`)).status === 200, "ready");
      for (const path of ["drain", "drain/status", "Drain", "%64rain", "x/../drain", "drain;x"]) {
        const answer = await rawStatus(baton.traffic, `/devshard/v1/${path}`);
        assert.is(answer, 404, `a client must not reach the child's ${path}`);
      }
      const seen = new Map<string, number>();
      let failed = 0;
      let going = true;
      const load = (async () => {
        while (going) {
          const response = await fetch(`${baton.traffic}/devshard/v1/work`);
          const text = await response.text();
          if (response.status !== 200) failed += 1;
          const id = /one|two/.exec(text)?.[0] ?? "neither";
          seen.set(id, (seen.get(id) ?? 0) + 1);
        }
      })();
      await until(() => (seen.get("one") ?? 0) > 5, "answers of the first build");
      await cli("publish", "v1", await build("two"));
      await until(() => (seen.get("two") ?? 0) > 5, "answers of the second build");
      going = false;
      await load;
      assert.is(failed, 0);
      assert.is(seen.get("neither"), undefined);

      const [version] = (await json(`${baton.admin}/api/v1/versions`)).versions;
      assert.is(version.service, "shard");
      assert.is(version.name, "v1");
      assert.match(await cli("status"), /v1 .*ready|versions/);
      assert.match(await cli("logs", "v1", "--lines", "5"), "v1#");
      const kinds = (await cli("events")).trimEnd().split("\n").map((line) =>
        JSON.parse(line).kind
      );
      assert.ok(kinds.includes("generation_moved"), kinds.join(" "));
      assert.is(JSON.parse(await cli("pause", "v1", "--reason", "test")).done, "pause");
      assert.is(JSON.parse(await cli("resume", "v1")).done, "resume");
      const health = await json(`${baton.traffic}/healthz`);
      assert.is(health[0].name, "v1");
    } finally {
      assert.is(await baton.stop(), 0);
    }
    assert.equal(baton.noise, []);
  });
});

for (const workers of [1, 2]) {
  test(`a request that comes before the first child of a restart waits for it (${workers})`, async () => {
    await inScratch(async (folder) => {
      const program = `${folder}/one.sh`;
      await writeFile(program, childScript({ id: "one", binaryName: "app" }));
      const config = {
        services: {
          shard: {
            mount: "/devshard",
            versions: {
              oracle: `file:${folder}/versions.json`,
              binaryName: "app",
              basePort: basePort(),
              killGraceMs: 5000,
            },
          },
        },
        shutdown: { announceMs: 0, budgetMs: 60_000 },
        traffic: { workers },
      };
      const first = await startBatonProcess(folder, config);
      try {
        const { code } = await runVerb([
          "publish",
          "v1",
          program,
          "--config",
          `${folder}/baton.json`,
        ]);
        assert.is(code, 0);
        await until(
          async () => (await fetch(`${first.traffic}/readyz`)).status === 200,
          "the first is ready",
        );
      } finally {
        first.signal("SIGKILL");
        await first.exited;
      }
      const second = await startBatonProcess(folder, config);
      try {
        const [answer, unknown] = await Promise.all([
          fetch(`${second.traffic}/devshard/v1/work`),
          fetch(`${second.traffic}/elsewhere`),
        ]);
        assert.is(answer.status, 200, await answer.text());
        // What no service may hope for does not wait.
        assert.is(unknown.status, 503);
      } finally {
        assert.is(await second.stop(), 0);
      }
    });
  });
}

test.run();
