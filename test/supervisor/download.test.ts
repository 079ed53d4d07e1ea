import { readdir, readFile, utimes, writeFile } from "node:fs/promises";
import type { Socket } from "node:net";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Files } from "../../src/runtime/runtime.ts";
import { download, type DownloadOptions } from "../../src/supervisor/download.ts";
import { RolloutFailure } from "../../src/supervisor/failure.ts";
import { noise, sha256 } from "../support/artifacts.ts";
import { head, type RawRequest, type RawServer, rawServer, reply } from "../support/raw_http.ts";
import { runtime } from "../support/runtime.ts";
import { inScratch, rejection, until } from "../support/scratch.ts";

const BODY = noise(300_000);
const SHA = sha256(BODY);

/** Waits between two tries are cut short; time-outs are what they are. */
const hurried: typeof runtime = {
  ...runtime,
  clock: {
    now: () => runtime.clock.now(),
    monotonic: () => runtime.clock.monotonic(),
    after: (delayMs, action) =>
      runtime.clock.after([200, 400, 800].includes(delayMs) ? 1 : delayMs, action),
  },
};

interface Case {
  readonly folder: string;
  readonly server: RawServer;
  /** Downloads, and returns what was brought. */
  run(options?: Partial<DownloadOptions>): Promise<Uint8Array>;
  left(): Promise<string[]>;
}

async function serving(
  answer: (socket: Socket, request: RawRequest) => void,
  action: (one: Case) => Promise<void>,
): Promise<void> {
  const server = await rawServer(answer);
  try {
    await inScratch(async (folder) => {
      await action({
        folder,
        server,
        left: () => readdir(folder),
        run: async (options = {}) => {
          const path = await download({
            runtime: hurried,
            url: `${server.url}/v1.zip`,
            sha256: SHA,
            folder,
            maxDownloadBytes: 1_000_000,
            downloadTimeoutMs: 20_000,
            downloadStallMs: 10_000,
            allowInsecure: false,
            ...options,
          });
          const bytes = new Uint8Array(await readFile(path));
          await runtime.files.remove(path);
          return bytes;
        },
      });
    });
  } finally {
    await server.close();
  }
}

async function failing(
  one: Case,
  failureClass: RolloutFailure["class"],
  message: RegExp,
  options: Partial<DownloadOptions> = {},
): Promise<void> {
  const error = await rejection(one.run(options));
  assert.instance(error, RolloutFailure, error.stack);
  assert.is((error as RolloutFailure).class, failureClass, error.message);
  assert.match(error.message, message);
}

/** Answers with the bytes that were asked for, as a good server does. */
function ranged(socket: Socket, request: RawRequest, body = BODY, until = body.length): void {
  const start = Number(/^bytes=(\d+)-$/.exec(request.headers.range ?? "")?.[1] ?? 0);
  if (start > 0 && start >= body.length) {
    return void socket.end(
      head(416, { "content-range": `bytes */${body.length}`, "content-length": "0" }),
    );
  }
  socket.write(
    start === 0 ? head(200, { "content-length": String(body.length), etag: '"e"' }) : head(206, {
      "content-length": String(body.length - start),
      "content-range": `bytes ${start}-${body.length - 1}/${body.length}`,
      etag: '"e"',
    }),
  );
  socket.end(body.subarray(start, Math.max(start, until)));
}

test("case 216: a whole download, hashed as it comes, with progress", async () => {
  await serving((socket, request) => ranged(socket, request), async (one) => {
    const progress: [number, number | undefined][] = [];
    const bytes = await one.run({ onProgress: (done, total) => progress.push([done, total]) });
    assert.equal(bytes, BODY);
    assert.equal(progress.at(-1), [BODY.length, BODY.length]);
    assert.is(one.server.requests[0]?.headers["accept-encoding"], "identity");
    assert.equal(await one.left(), []);
  });
});

test("case 217: other bytes than those listed", async () => {
  await serving((socket) => reply(socket, 200, noise(300_000, 2)), async (one) => {
    await failing(one, "hash", /sha256 is .*, listed is /);
    assert.equal(await one.left(), [], "nothing is kept of a wrong artifact");
    assert.is(one.server.requests.length, 1);
  });
});

test("case 219: 404 is not the build's fault: it may be published in a minute", async () => {
  await serving((socket) => reply(socket, 404, "not here"), async (one) => {
    await failing(one, "transient", /answered 404/);
    assert.is(one.server.requests.length, 1);
    const url = `${one.server.url}/x.zip?signature=secret`;
    const error = await rejection(one.run({ url }));
    assert.match(error.message, "/x.zip answered 404");
    assert.not.match(error.message, "secret");
  });
});

test("a transfer that is cut at any tenth goes on where it stopped", async () => {
  for (let part = 1; part < 10; part += 1) {
    const cut = Math.floor(BODY.length * part / 10);
    await serving(
      (socket, request) => ranged(socket, request, BODY, request.number === 1 ? cut : BODY.length),
      async (one) => {
        assert.equal(await one.run(), BODY, `cut at ${cut}`);
        assert.is(one.server.requests.length, 2);
        const [, second] = one.server.requests;
        const start = Number(/^bytes=(\d+)-$/.exec(second?.headers.range ?? "")?.[1] ?? 0);
        // What was read but not yet handed over when the line broke is asked for again.
        assert.ok(start >= cut - 140_000 && start <= cut, `${start} of ${cut}`);
        assert.is(second?.headers["if-range"], start > 0 ? '"e"' : undefined);
      },
    );
  }
});

test("without ranges a cut transfer starts over", async () => {
  await serving((socket, request) => {
    socket.write(head(200, { "content-length": String(BODY.length) }));
    socket.end(request.number < 3 ? BODY.subarray(0, 100_000) : BODY);
  }, async (one) => {
    assert.equal(await one.run(), BODY);
    assert.is(one.server.requests.length, 3);
  });
});

test("an artifact that changes between two connections is not sewn together", async () => {
  const other = noise(300_000, 3);
  await serving((socket, request) => {
    // The first connection brings half of another file; ranges are then served without looking at
    // If-Range, so what is continued cannot be right.
    if (request.number === 1) ranged(socket, request, other, 150_000);
    else ranged(socket, request);
  }, async (one) => {
    assert.equal(await one.run(), BODY);
    assert.is(one.server.requests.length, 3, "cut, continued, and once more from the start");
  });
});

test("a range that was not asked for is not taken", async () => {
  await serving((socket, request) => {
    if (request.number === 1) {
      socket.write(head(200, { "content-length": String(BODY.length) }));
      return void socket.write(BODY.subarray(0, 100_000));
    }
    if (request.headers.range === undefined) return ranged(socket, request);
    socket.write(
      head(206, { "content-length": "10", "content-range": `bytes 0-9/${BODY.length}` }),
    );
    socket.end(BODY.subarray(0, 10));
  }, async (one) => {
    assert.equal(await one.run({ downloadStallMs: 150 }), BODY);
    assert.equal(one.server.requests.map((request) => request.headers.range), [
      undefined,
      "bytes=100000-",
      undefined,
    ]);
  });
});

test("a length that is too long is a cut; the same again and again is transient", async () => {
  await serving((socket) => {
    socket.write(head(200, { "content-length": String(BODY.length + 5) }));
    socket.end(BODY);
  }, async (one) => {
    await failing(one, "transient", /broke|ended after/);
  });
});

test("a length that is too short brings other bytes", async () => {
  await serving((socket) => {
    socket.write(head(200, { "content-length": "1000" }));
    socket.end(BODY);
  }, async (one) => {
    await failing(one, "hash", /1000 bytes/);
  });
});

test("a body whose end nothing marks may have been cut: that is no wrong hash", async () => {
  await serving((socket) => {
    socket.write(head(200, {}));
    socket.end(BODY.subarray(0, 200_000));
  }, async (one) => {
    await failing(one, "transient", /200000 bytes/);
    assert.equal(await one.left(), []);
  });
  await serving((socket) => {
    socket.write(head(200, {}));
    socket.end(BODY);
  }, async (one) => assert.equal(await one.run(), BODY));
});

test("a chunked body without its last chunk is a cut", async () => {
  await serving((socket, request) => {
    if (request.number > 1) return ranged(socket, request);
    socket.write(head(200, { "transfer-encoding": "chunked" }));
    socket.write("186a0\r\n");
    socket.write(BODY.subarray(0, 100_000));
    socket.end("\r\n");
  }, async (one) => {
    assert.equal(await one.run(), BODY);
    assert.is(one.server.requests.length, 2);
  });
});

test("a server that stalls is left after a while, and asked again", async () => {
  await serving((socket, request) => {
    if (request.number > 1) return ranged(socket, request);
    socket.write(head(200, { "content-length": String(BODY.length) }));
    socket.write(BODY.subarray(0, 50_000));
  }, async (one) => {
    assert.equal(await one.run({ downloadStallMs: 150 }), BODY);
    assert.is(one.server.requests[1]?.headers.range, "bytes=50000-");
  });
});

test("a server that never answers, and one that trickles for ever, are given up", async () => {
  await serving(() => {}, async (one) => {
    await failing(one, "transient", /no byte for 50 ms/, { downloadStallMs: 50 });
  });
  await serving((socket) => {
    socket.write(head(200, { "content-length": String(BODY.length) }));
    const trickle = setInterval(() => socket.write(BODY.subarray(0, 10)), 10);
    socket.on("close", () => clearInterval(trickle));
  }, async (one) => {
    await failing(one, "transient", /not downloaded within 300 ms/, { downloadTimeoutMs: 300 });
  });
});

test("an answer of a busy server is tried again, a few times", async () => {
  await serving(
    (socket, request) => request.number < 3 ? reply(socket, 503, "") : ranged(socket, request),
    async (one) => assert.equal(await one.run(), BODY),
  );
  await serving((socket) => reply(socket, 500, ""), async (one) => {
    await failing(one, "transient", /answered 500/);
    assert.is(one.server.requests.length, 3);
  });
});

test("what is larger than is taken is refused by its length, and by its bytes", async () => {
  await serving((socket) => {
    socket.write(head(200, { "content-length": "5000000000" }));
  }, async (one) => {
    await failing(one, "download", /larger than the 1000000 bytes/);
    assert.equal(await one.left(), []);
  });
  await serving((socket) => {
    socket.write(head(200, {}));
    socket.end(noise(1_500_000));
  }, async (one) => {
    await failing(one, "download", /larger than the 1000000 bytes/);
    assert.equal(await one.left(), []);
  });
});

test("redirects are followed a few times, and only to where one may go", async () => {
  await serving((socket, request) => {
    if (request.target === "/moved") ranged(socket, request);
    else socket.end(head(302, { location: "/moved", "content-length": "0" }));
  }, async (one) => assert.equal(await one.run(), BODY));
  await serving(
    (socket) => socket.end(head(301, { location: "/v1.zip", "content-length": "0" })),
    async (one) => {
      await failing(one, "download", /more than 5 redirects/);
      assert.is(one.server.requests.length, 6);
    },
  );
  for (const location of ["http://files.test/x", "file:///etc/passwd", "ftp://x/y"]) {
    await serving(
      (socket) => socket.end(head(307, { location, "content-length": "0" })),
      (one) => failing(one, "download", /not encrypted|not http/),
    );
  }
});

test("plain http from another host is refused unless it is allowed", async () => {
  await serving(() => {}, async (one) => {
    await failing(one, "download", /not encrypted/, { url: "http://files.test/x.zip" });
    assert.is(one.server.requests.length, 0);
  });
});

test("called off, it keeps what it has, and the next run goes on from there", async () => {
  let whole = false;
  await serving((socket, request) => {
    if (whole) return ranged(socket, request);
    socket.write(head(200, { "content-length": String(BODY.length) }));
    socket.write(BODY.subarray(0, 120_000));
  }, async (one) => {
    const abort = new AbortController();
    let got = 0;
    const run = one.run({ signal: abort.signal, onProgress: (bytes) => got = bytes });
    run.catch(() => {});
    await until(() => got === 120_000, "the first bytes");
    abort.abort(new Error("no longer listed"));
    assert.match((await rejection(run)).message, "no longer listed");
    assert.equal(await one.left(), [`.${SHA}.part`]);
    whole = true;
    assert.equal(await one.run(), BODY);
    assert.is(one.server.requests[1]?.headers.range, "bytes=120000-");
    assert.equal(await one.left(), []);
  });
});

test("a leftover that is already whole is only checked; one that is wrong is started over", async () => {
  await serving((socket, request) => ranged(socket, request), async (one) => {
    await writeFile(join(one.folder, `.${SHA}.part`), BODY);
    assert.equal(await one.run(), BODY);
    assert.is(one.server.requests.length, 1, "one question, answered 416");
    await writeFile(join(one.folder, `.${SHA}.part`), noise(1_000, 9));
    assert.equal(await one.run(), BODY);
    assert.is(one.server.requests.at(-1)?.headers.range, undefined);
    await writeFile(join(one.folder, `.${SHA}.part`), noise(400_000, 9));
    assert.equal(await one.run(), BODY);
  });
});

test("what a process that died left is taken over once it is surely dead", async () => {
  await serving((socket, request) => ranged(socket, request), async (one) => {
    const left = join(one.folder, `.${SHA}.0000.part`);
    await writeFile(left, BODY.subarray(0, 70_000));
    assert.equal(await one.run(), BODY);
    assert.is(one.server.requests[0]?.headers.range, undefined, "it may still be alive");
    assert.equal(await one.left(), [`.${SHA}.0000.part`]);
    await utimes(left, new Date(1e12), new Date(1e12));
    assert.equal(await one.run(), BODY);
    assert.is(one.server.requests[1]?.headers.range, "bytes=70000-");
    assert.equal(await one.left(), []);
  });
});

test("several at once in one folder do not mix their bytes", async () => {
  await serving(
    (socket, request) => ranged(socket, request, BODY, request.number <= 5 ? 90_000 : BODY.length),
    async (one) => {
      await writeFile(join(one.folder, `.${SHA}.part`), BODY.subarray(0, 1_000));
      const all = await Promise.all(Array.from({ length: 5 }, () => one.run()));
      for (const bytes of all) assert.equal(bytes, BODY);
      assert.equal(await one.left(), []);
    },
  );
});

test("a full disk is transient, and nothing of the download stays on it", async () => {
  const files: Files = {
    ...runtime.files,
    openWrite: async (path, options) => {
      const writer = await runtime.files.openWrite(path, options);
      let left = 100_000;
      return {
        close: () => writer.close(),
        sync: () => writer.sync(),
        write: async (bytes) => {
          left -= bytes.length;
          if (left < 0) throw new Error("ENOSPC: no space left on device");
          await writer.write(bytes);
        },
      };
    },
  };
  await serving((socket, request) => ranged(socket, request), async (one) => {
    await failing(one, "transient", /disk: ENOSPC/, { runtime: { ...runtime, files } });
    assert.equal(await one.left(), []);
    assert.is(one.server.requests.length, 1);
  });
});

test("a local artifact is copied and checked in the same way", async () => {
  await serving(() => {}, async (one) => {
    const source = join(one.folder, "v1.zip");
    await writeFile(source, BODY);
    assert.equal(await one.run({ url: `file:${source}` }), BODY);
    await failing(one, "hash", /listed is/, { url: `file:${source}`, sha256: "0".repeat(64) });
    await failing(one, "transient", /no such file/, { url: `file:${source}x` });
    await failing(one, "download", /larger/, { url: `file:${source}`, maxDownloadBytes: 10 });
    assert.equal(await one.left(), ["v1.zip"]);
  });
});

test("a connection that is refused is tried a few times and is transient", async () => {
  await serving(() => {}, async (one) => {
    await one.server.close();
    await failing(one, "transient", /127\.0\.0\.1/);
  });
});

test.run();
