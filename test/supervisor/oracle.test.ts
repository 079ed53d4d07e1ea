import { mkdir, readFile, rename, stat, symlink, unlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Socket } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { defaultVersionsConfig, type VersionsConfig } from "../../src/config/versions.ts";
import { createLog, silentLog } from "../../src/observe/log.ts";
import { CatalogStore } from "../../src/supervisor/catalog_store.ts";
import { parseCatalog } from "../../src/supervisor/catalog.ts";
import { createOracle, type Oracle, type OracleReport } from "../../src/supervisor/oracle.ts";
import { head, rawServer, reply } from "../support/raw_http.ts";
import { runtime } from "../support/runtime.ts";
import { inScratch, rejection, until } from "../support/scratch.ts";
import { VirtualClock } from "../support/virtual_clock.ts";

const A = "a".repeat(64);
const B = "b".repeat(64);

function list(...names: string[]): string {
  return JSON.stringify({
    versions: names.map((name) => ({ name, binary: `https://f.test/${name}.zip`, sha256: A })),
  });
}

function follow(
  config: Partial<VersionsConfig> & { oracle: string },
  catalogFile?: string,
): Oracle {
  return createOracle({
    runtime,
    log: silentLog,
    config: defaultVersionsConfig({ pollIntervalMs: 60_000, ...config }),
    ...(catalogFile === undefined ? {} : { catalogFile }),
  });
}

/** Each report as one line. */
function line(report: OracleReport): string {
  return report.kind === "error"
    ? `error: ${report.error.message}`
    : `${report.source}${report.changed ? "!" : ""}: ${
      report.versions.map((v) => v.name).join(",")
    }`;
}

async function collecting(
  oracle: Oracle,
  action: (lines: string[], oracle: Oracle) => void | Promise<void>,
): Promise<void> {
  const lines: string[] = [];
  try {
    await oracle.start((report) => lines.push(line(report)));
    await action(lines, oracle);
  } finally {
    oracle.stop();
  }
}

test("case 193: the first poll is at once, with GET, and is reported", async () => {
  const server = await rawServer((socket) => reply(socket, 200, list("v1", "v2")));
  await collecting(follow({ oracle: `${server.url}/versions` }), (lines) => {
    assert.equal(lines, ["oracle!: v1,v2"]);
    assert.is(server.requests[0]?.target, "/versions");
  });
  await server.close();
});

test("case 194: an answer that is not 200 is an error", async () => {
  for (const status of [500, 204, 304, 404]) {
    const server = await rawServer((socket) =>
      socket.end(
        head(status, {
          location: "/x",
          ...(status === 204 || status === 304 ? {} : { "content-length": "0" }),
        }),
      )
    );
    await collecting(follow({ oracle: server.url }), (lines) => {
      assert.equal(lines, [`error: answered ${status}`]);
    });
    await server.close();
  }
});

test("case 263: while the oracle answers 500 nothing changes, and the list is there when it does again", async () => {
  let status = 200;
  const server = await rawServer((socket) =>
    reply(socket, status, status === 200 ? list("v1") : "")
  );
  await collecting(follow({ oracle: server.url }), async (lines, oracle) => {
    status = 500;
    for (let cycle = 0; cycle < 3; cycle += 1) await oracle.pollNow();
    status = 200;
    await oracle.pollNow();
    const failed = "error: answered 500";
    assert.equal(lines, ["oracle!: v1", failed, failed, failed, "oracle: v1"]);
  });
  await server.close();
});

test("every kind of broken answer is an error, and the next good one is taken", async () => {
  const big = list(...Array.from({ length: 40 }, (_, index) => `v${index}`));
  const answers: [string, (socket: Socket) => void][] = [
    ["oracle!: v1", (socket) => reply(socket, 200, list("v1"))],
    ["error: ", (socket) => reply(socket, 200, "")],
    ["error: ", (socket) => reply(socket, 200, '{"versions":[')],
    ["error: ", (socket) => reply(socket, 200, list("v1", "../escape"))],
    ["error: the answer is longer than 2000 bytes", (socket) => reply(socket, 200, big)],
    ["error: ", (socket) => reply(socket, 200, new Uint8Array([0x22, 0xff, 0xfe, 0x22]))],
    ["error: ", (socket) => socket.destroy()],
    ["error: ", (socket) => socket.end("garbage\r\n\r\n")],
    [
      "error: ",
      (socket) => {
        socket.write(head(200, { "content-length": "5000" }));
        socket.end(list("v1"));
      },
    ],
    ["oracle: v1", (socket) => reply(socket, 200, list("v1"))],
    ["oracle!: v1,v2", (socket) => reply(socket, 200, list("v1", "v2"))],
  ];
  const server = await rawServer((socket, request) => answers[request.number - 1]?.[1](socket));
  await collecting(follow({ oracle: server.url, maxOracleBytes: 2_000 }), async (lines, oracle) => {
    for (const [index, [expected]] of answers.entries()) {
      if (index > 0) await oracle.pollNow();
      assert.ok(lines[index]?.startsWith(expected), `${index}: ${lines[index]} for ${expected}`);
    }
  });
  await server.close();
});

test("an answer that trickles or never comes is given up in time", async () => {
  let trickle: ReturnType<typeof setInterval> | undefined;
  const server = await rawServer((socket, request) => {
    if (request.number === 1) return;
    socket.write(head(200, { "content-length": "100000" }));
    trickle = setInterval(() => socket.write(" "), 20);
  });
  await collecting(follow({ oracle: server.url, oracleTimeoutMs: 150 }), async (lines, oracle) => {
    await oracle.pollNow();
    assert.equal(lines, ["error: no answer within 150 ms", "error: no answer within 150 ms"]);
  });
  clearInterval(trickle);
  await server.close();
});

test("redirects are followed, each to where one may go", async () => {
  let location = "/moved";
  const server = await rawServer((socket, request) =>
    request.target === "/moved"
      ? reply(socket, 200, list("v1"))
      : socket.end(head(302, { location, "content-length": "0" }))
  );
  await collecting(follow({ oracle: `${server.url}/start` }), async (lines, oracle) => {
    assert.equal(lines, ["oracle!: v1"]);
    for (const bad of ["http://oracle.test/v", "file:///etc/passwd", "/start"]) {
      location = bad;
      await oracle.pollNow();
      assert.match(lines.at(-1) ?? "", /^error: .*(not encrypted|not http|redirects)/);
    }
  });
  await server.close();
});

test("an unchanged list is asked for by its tag, and 304 reports it again", async () => {
  const server = await rawServer((socket, request) => {
    if (request.headers["if-none-match"] === '"one"') socket.end(head(304, { etag: '"one"' }));
    else reply(socket, 200, list("v1"), { etag: '"one"' });
  });
  await collecting(follow({ oracle: server.url }), async (lines, oracle) => {
    await oracle.pollNow();
    assert.equal(lines, ["oracle!: v1", "oracle: v1"]);
    assert.is(server.requests[1]?.headers["if-none-match"], '"one"');
  });
  await server.close();
});

test("the tag of a list that was refused is not kept", async () => {
  const server = await rawServer((socket, request) =>
    reply(socket, 200, request.number === 1 ? list("../x") : list("v1"), { etag: '"same"' })
  );
  await collecting(follow({ oracle: server.url }), async (lines, oracle) => {
    await oracle.pollNow();
    assert.is(server.requests[1]?.headers["if-none-match"], undefined);
    assert.is(lines[1], "oracle!: v1");
  });
  await server.close();
});

test("polls go on at their interval, each varied at random (M9)", async () => {
  const clock = new VirtualClock();
  const delays: number[] = [];
  const numbers = [0, 0.5, 0.999];
  let polls = 0;
  const oracle = createOracle({
    runtime: {
      ...runtime,
      clock: {
        now: () => clock.now(),
        monotonic: () => clock.monotonic(),
        after: (delayMs, action) => {
          if (delayMs > 1_000 && delayMs !== 9_000) delays.push(Math.round(delayMs));
          return clock.after(delayMs, action);
        },
      },
      random: { ...runtime.random, number: () => numbers[delays.length] ?? 0.5 },
      http: {
        ...runtime.http,
        fetch: () => {
          polls += 1;
          return Promise.resolve(new Response(list("v1")));
        },
      },
    },
    log: silentLog,
    config: defaultVersionsConfig({
      oracle: "https://oracle.test/",
      pollIntervalMs: 30_000,
      pollJitter: 0.1,
      oracleTimeoutMs: 9_000,
    }),
  });
  await oracle.start(() => {});
  await clock.advance(27_000);
  await clock.advance(30_000);
  await clock.advance(0);
  assert.is(polls, 3);
  assert.equal(delays, [27_000, 30_000, 32_994]);
  oracle.stop();
  await clock.advance(100_000);
  assert.is(polls, 3, "no poll after the end");
  assert.is(clock.pending, 0, "no timer is left");
});

test("a plain http oracle is taken on loopback or when allowed, and else refused", () => {
  assert.throws(() => follow({ oracle: "http://oracle.test/v" }), /not encrypted/);
  for (const host of ["127.0.0.1", "127.9.9.9", "localhost", "a.localhost", "[::1]"]) {
    follow({ oracle: `http://${host}:9/v` });
  }
  for (const host of ["127.0.0.1.evil.test", "localhost.evil.test", "[::2]", "128.0.0.1"]) {
    assert.throws(() => follow({ oracle: `http://${host}:9/v` }), /not encrypted/, host);
  }
  follow({ oracle: "http://oracle.test/v", allowInsecure: true });
  follow({ oracle: "https://oracle.test/v" });
});

test("a file oracle is followed: replaced, written in place, torn, gone, and back", async () => {
  await inScratch(async (folder) => {
    const path = join(folder, "versions.json");
    const replace = async (text: string) => {
      await writeFile(`${path}.new`, text);
      await rename(`${path}.new`, path);
    };
    await collecting(follow({ oracle: `file:${path}` }), async (lines) => {
      const last = () => lines.at(-1) ?? "";
      assert.match(last(), "error: ");
      await replace(list("v1"));
      await until(() => last().endsWith(": v1"), "v1");
      await writeFile(path, list("v1", "v2"));
      await until(() => last().endsWith(": v1,v2"), "v1,v2");
      await writeFile(path, list("v1", "v2", "v3").slice(0, -20));
      await until(() => last().startsWith("error: not JSON"), "the torn file");
      await unlink(path);
      await until(() => last().includes("no such file"), "the missing file");
      await replace(list("v1", "v2", "v3"));
      await until(() => last().endsWith(": v1,v2,v3"), "v1,v2,v3");
      assert.not(
        lines.some((one) => /: (v1,v2,v3,|$)/.test(one)),
        "nothing half was ever reported",
      );
    });
  });
});

test("a file oracle behind a link that is swapped is followed", async () => {
  await inScratch(async (folder) => {
    for (const name of ["one", "two"]) {
      await mkdir(join(folder, name));
      await writeFile(join(folder, name, "versions.json"), list(name));
    }
    await symlink(join(folder, "one", "versions.json"), join(folder, "versions.json"));
    await collecting(follow({ oracle: `file://${folder}/versions.json` }), async (lines) => {
      assert.is(lines.at(-1), "oracle!: one");
      await symlink(join(folder, "two", "versions.json"), join(folder, "new"));
      await rename(join(folder, "new"), join(folder, "versions.json"));
      await until(() => lines.at(-1)?.endsWith(": two") === true, "two");
    });
  });
});

test("a file that is too long is an error", async () => {
  await inScratch(async (folder) => {
    await writeFile(join(folder, "v.json"), " ".repeat(5_000) + list("v1"));
    await collecting(
      follow({ oracle: `file:${folder}/v.json`, maxOracleBytes: 1_000 }),
      (lines) => {
        assert.equal(lines, ["error: the answer is longer than 1000 bytes"]);
      },
    );
  });
});

test("polls that are asked for together are one poll, and reports come one at a time", async () => {
  const server = await rawServer((socket) => reply(socket, 200, list("v1")));
  await collecting(follow({ oracle: server.url }), async (lines, oracle) => {
    await Promise.all([oracle.pollNow(), oracle.pollNow(), oracle.pollNow()]);
    assert.is(server.requests.length, 2);
    assert.is(lines.length, 2);
  });
  await server.close();
});

test("no report comes after stop, not even of a poll under way", async () => {
  const server = await rawServer(() => {});
  const reports: OracleReport[] = [];
  const oracle = follow({ oracle: server.url });
  const started = oracle.start((report) => reports.push(report));
  await until(() => server.requests.length === 1, "the poll");
  oracle.stop();
  await started;
  await oracle.pollNow();
  assert.is(reports.length, 0);
  await server.close();
});

test("an error that goes on is one warning, not one a poll", async () => {
  const events: string[] = [];
  const log = createLog({
    write: (text) => {
      const { level, event } = JSON.parse(text) as { level: string; event: string };
      events.push(`${level} ${event}`);
    },
    now: () => 0,
    level: "info",
  });
  await inScratch(async (folder) => {
    const oracle = createOracle({
      runtime,
      log,
      config: defaultVersionsConfig({ oracle: `file:${folder}/none.json` }),
    });
    await oracle.start(() => {});
    await oracle.pollNow();
    await oracle.pollNow();
    oracle.stop();
  });
  assert.equal(events, ["warn oracle_error"]);
});

// ------------------------------------------------------------------------ the list that is kept

function revisioned(revision: number, ...versions: [string, string][]): string {
  return JSON.stringify({
    schema: 1,
    initialized: true,
    revision,
    versions: versions.map(([name, sha256]) => ({ name, binary: "https://f.test/x.zip", sha256 })),
  });
}

test("case 205: revisions 7 and 8 are accepted, and a new start has the second", async () => {
  await inScratch(async (folder) => {
    const path = join(folder, "state", "catalog.json");
    const open = () =>
      CatalogStore.open({ files: runtime.files, log: silentLog, oracle: "https://o.test/", path });
    const store = await open();
    assert.is(store.current, undefined);
    const first = parseCatalog(revisioned(7, ["v1", A], ["v2", A]), "https://o.test/");
    const second = parseCatalog(revisioned(8, ["v2", B], ["v3", A], ["v1", A]), "https://o.test/");
    assert.is(await store.accept(first), true);
    assert.is(await store.accept(second), true);
    const again = await open();
    assert.equal(again.current, second);
    assert.is((await stat(path)).mode & 0o777, 0o600);
    for (const regressed of [first, parseCatalog(revisioned(8, ["v1", A]), "https://o.test/")]) {
      assert.match(
        (await rejection(again.accept(regressed))).message,
        /regressed|changed in place/,
      );
      assert.equal(again.current, second, "what was accepted is kept");
    }
  });
});

test("case 210: a truncated file is set aside, reported, and does not stop the start", async () => {
  await inScratch(async (folder) => {
    const path = join(folder, "catalog.json");
    const events: string[] = [];
    const log = createLog({
      write: (text) => events.push((JSON.parse(text) as { event: string }).event),
      now: () => 0,
    });
    const open = () => CatalogStore.open({ files: runtime.files, log, oracle: "x", path });
    await (await open()).accept(parseCatalog(revisioned(7, ["v1", A]), "https://o.test/"));
    const whole = await readFile(path, "utf8");
    for (
      const torn of [
        "",
        whole.slice(0, 40),
        whole.replace(A, "../x"),
        whole.replace('"v1"', '"../v1"'),
      ]
    ) {
      events.length = 0;
      await writeFile(path, torn);
      assert.is((await open()).current, undefined);
      assert.equal(events, ["state_corrupt"]);
      assert.is(await readFile(`${path}.corrupt`, "utf8"), torn, "kept for whoever looks into it");
    }
  });
});

test("case 211: a disk that refuses leaves the memory where it was", async () => {
  await inScratch(async (folder) => {
    const path = join(folder, "catalog.json");
    const store = await CatalogStore.open({
      files: runtime.files,
      log: silentLog,
      oracle: "x",
      path,
    });
    const first = parseCatalog(revisioned(7, ["v1", A]), "https://o.test/");
    await store.accept(first);
    await unlink(path);
    await mkdir(join(path, "in-the-way"), { recursive: true });
    await rejection(store.accept(parseCatalog(revisioned(8, ["v1", B]), "https://o.test/")));
    assert.equal(store.current, first);
  });
});

test("a start while the oracle is away serves the last known list; an older one is refused (B45)", async () => {
  await inScratch(async (folder) => {
    const catalogFile = join(folder, "catalog.json");
    let answer = revisioned(7, ["v1", A]);
    const server = await rawServer((socket) =>
      answer === "" ? socket.destroy() : reply(socket, 200, answer)
    );
    const config = { oracle: server.url };
    await collecting(follow(config, catalogFile), (lines) => {
      assert.equal(lines, ["oracle!: v1"]);
    });
    answer = "";
    await collecting(follow(config, catalogFile), async (lines, oracle) => {
      assert.is(lines[0], "disk!: v1");
      assert.match(lines[1] ?? "", "error: ");
      answer = revisioned(6, ["v1", A], ["v2", A]);
      await oracle.pollNow();
      assert.match(lines[2] ?? "", "error: revision regressed from 7 to 6");
      answer = revisioned(8, ["v1", A], ["v2", A]);
      await oracle.pollNow();
      assert.is(lines[3], "oracle!: v1,v2");
    });
    await server.close();
  });
});

test("an empty list is told, but does not replace the one that is kept unless that is wanted", async () => {
  await inScratch(async (folder) => {
    for (const allowEmpty of [false, true]) {
      const catalogFile = join(folder, `${allowEmpty}.json`);
      let answer = list("v1");
      const server = await rawServer((socket) => reply(socket, 200, answer, { etag: '"same"' }));
      const config = { oracle: server.url, allowEmpty };
      await collecting(follow(config, catalogFile), async (lines, oracle) => {
        answer = '{"versions":[]}';
        await oracle.pollNow();
        assert.is(lines[1], allowEmpty ? "oracle!: " : "oracle: ");
      });
      await collecting(follow(config, catalogFile), (lines) => {
        assert.is(lines[0], allowEmpty ? "disk!: " : "disk!: v1");
      });
      await server.close();
    }
  });
});

test("what was kept of one oracle does not bind another, but serves until that answers", async () => {
  await inScratch(async (folder) => {
    const catalogFile = join(folder, "catalog.json");
    const one = await rawServer((socket) => reply(socket, 200, revisioned(900, ["v1", A])));
    const two = await rawServer((socket) => reply(socket, 200, list("v2")));
    await collecting(follow({ oracle: one.url }, catalogFile), () => Promise.resolve());
    await collecting(follow({ oracle: two.url }, catalogFile), (lines) => {
      assert.equal(lines, ["disk!: v1", "oracle!: v2"]);
    });
    await one.close();
    await two.close();
  });
});

test.run();
