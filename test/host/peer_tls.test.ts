/** https between replicas: with an authority, callers need a certificate of it. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { parseConfig } from "../../src/config/load.ts";
import { printAddress } from "../../src/config/values.ts";
import { startBaton } from "../../src/host/baton.ts";
import { silentLog } from "../../src/observe/log.ts";
import { runVerb } from "../support/baton_process.ts";
import { runtime } from "../support/runtime.ts";
import { inScratch, rejection, until } from "../support/scratch.ts";

/** An authority and one certificate of it for 127.0.0.1. */
function certificates(folder: string): { ca: string; cert: string; key: string } {
  const openssl = (...args: string[]) =>
    execFileSync("openssl", args, { cwd: folder, stdio: ["ignore", "ignore", "ignore"] });
  const ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
  openssl(
    "req",
    "-x509",
    ...ec,
    "-keyout",
    "ca.key",
    "-out",
    "ca.pem",
    "-subj",
    "/CN=ca",
    "-days",
    "2",
  );
  openssl("req", ...ec, "-keyout", "own.key", "-out", "own.csr", "-subj", "/CN=baton");
  execFileSync("sh", ["-c", "printf 'subjectAltName=IP:127.0.0.1\\n' > own.ext"], { cwd: folder });
  openssl(
    ...["x509", "-req", "-in", "own.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"],
    ...["-out", "own.pem", "-days", "2", "-extfile", "own.ext"],
  );
  const path = (name: string) => `${folder}/${name}`;
  return { ca: path("ca.pem"), cert: path("own.pem"), key: path("own.key") };
}

async function start(
  folder: string,
  name: string,
  replica: Record<string, unknown>,
  peer = "127.0.0.1:0",
  services: Record<string, unknown> = {},
) {
  return await startBaton(runtime, silentLog, {
    config: parseConfig({
      listen: { traffic: "127.0.0.1:0", admin: "127.0.0.1:0", peer },
      stateDir: `${folder}/${name}`,
      shutdown: { announceMs: 0, budgetMs: 20_000 },
      replica,
      services,
    }),
    path: undefined,
    warnings: [],
  });
}

test("a replica recovers from a peer by mutual TLS, and nobody without a certificate is heard", async () => {
  await inScratch(async (folder) => {
    const tls = certificates(folder);
    const first = await start(folder, "first", { tls });
    const address = first.addresses.peer;
    const url = `https://${address === undefined ? "" : printAddress(address)}`;
    await until(() => first.lifecycle.ready, "the first replica");

    const ca = readFileSync(tls.ca, "utf8");
    const own = { ca, cert: readFileSync(tls.cert, "utf8"), key: readFileSync(tls.key, "utf8") };
    const answer = await runtime.http.fetch(`${url}/ready`, { tls: own });
    assert.is(answer.status, 200);
    await answer.body?.cancel();
    await rejection(runtime.http.fetch(`${url}/ready`, { tls: { ca } }));

    const second = await start(folder, "second", { tls, peers: [url] });
    await until(() => second.lifecycle.ready, "the second replica");
    const { conditions } = second.lifecycle.readyStatus();
    assert.is(conditions.find((one) => one.name === "recovery")?.reason, "recovered");
    await second.shutDown();
    await first.shutDown();
  });
});

test("files that change are read again: by the listener, and by a joiner that is turned away", async () => {
  await inScratch(async (folder) => {
    const made = (name: string) => {
      mkdirSync(`${folder}/${name}`);
      return certificates(`${folder}/${name}`);
    };
    const [own, others] = [made("one"), made("two")];
    const texts = ({ ca, cert, key }: typeof own) => ({
      ca: readFileSync(ca, "utf8"),
      cert: readFileSync(cert, "utf8"),
      key: readFileSync(key, "utf8"),
    });
    const next = texts(made("next"));
    const renew = ({ ca, cert, key }: typeof own): void => {
      for (const [path, text] of [[ca, next.ca], [cert, next.cert], [key, next.key]] as const) {
        writeFileSync(`${path}.new`, text);
        renameSync(`${path}.new`, path);
      }
    };
    const first = await start(folder, "first", { tls: own });
    const address = first.addresses.peer;
    const url = `https://${address === undefined ? "" : printAddress(address)}`;
    await until(() => first.lifecycle.ready, "the first replica");
    const before = texts(own);
    const isHeard = (tls: typeof before) =>
      runtime.http.fetch(`${url}/ready`, { tls }).then(async (answer) => {
        await answer.body?.cancel();
        return true;
      }, () => false);
    assert.is(await isHeard(before), true);
    assert.is(await isHeard(next), false);

    // It knows neither the old authority nor the new one, and has a lane to wait for.
    const workers = [{ id: "0", url: "http://127.0.0.1:9" }];
    const services = { chat: { mount: "/v1", pool: { model: "m", blockSize: 16, workers } } };
    const replica = { tls: others, peers: [url], subscribeTimeoutMs: 0 };
    const second = await start(folder, "second", replica, "127.0.0.1:0", services);
    renew(own);
    await until(() => isHeard(next), "the new certificate and the new authority");
    assert.is(await isHeard(before), false);
    assert.is(second.lifecycle.ready, false);
    renew(others);
    await until(() => second.lifecycle.ready, "the second replica");
    const { conditions } = second.lifecycle.readyStatus();
    assert.is(conditions.find((one) => one.name === "recovery")?.reason, "recovered");
    assert.match(
      conditions.find((one) => one.name === "peer tls certificate")?.reason ?? "",
      /^valid until /,
    );
    await second.shutDown();
    await first.shutDown();
  });
});

test("baton dump calls a peer listener as its configuration has it: by mutual TLS, or a socket", async () => {
  await inScratch(async (folder) => {
    const config = (listen: string, replica: Record<string, unknown>): string => {
      const path = `${folder}/${Object.keys(replica).join("") || "plain"}.json`;
      writeFileSync(path, JSON.stringify({ listen: { peer: listen }, replica }));
      return path;
    };
    const whole = /^{"kind":"header".*\n{"kind":"trailer","lanes":0,"blocks":0}\n$/;
    const tls = certificates(folder);
    const baton = await start(folder, "first", { tls });
    const address = baton.addresses.peer === undefined ? "" : printAddress(baton.addresses.peer);
    const file = config(address, { tls });
    for (const args of [[], [`https://${address}`]]) {
      const dumped = await runVerb(["dump", ...args, "--config", file]);
      assert.is(dumped.code, 0, dumped.stderr);
      assert.match(dumped.stdout, whole);
    }
    const verified = await runVerb(["dump", "--verify", `https://${address}`, "--config", file]);
    assert.match(verified.stdout, /^whole: 0 lanes/m);
    const { ca } = tls;
    const unknown = config(address, { tls: { ca }, peers: [] });
    assert.is((await runVerb(["dump", `https://${address}`, "--config", unknown])).code, 1);
    await baton.shutDown();

    const local = await start(folder, "local", {}, `unix:${folder}/peer`);
    const dumped = await runVerb(["dump", "--config", config(`unix:${folder}/peer`, {})]);
    assert.is(dumped.code, 0, dumped.stderr);
    assert.match(dumped.stdout, whole);
    await local.shutDown();
  });
});

test("a certificate without its key is refused at the start", () => {
  const listen = { peer: "127.0.0.1:0" };
  assert.throws(
    () => parseConfig({ listen, replica: { tls: { cert: "a.pem" } } }),
    /replica\.tls: cert and key go together/,
  );
});

test("baton check looks into the files of TLS", async () => {
  await inScratch(async (folder) => {
    const tls = certificates(folder);
    const file = `${folder}/check.json`;
    const check = async (replica: Record<string, string>) => {
      const listen = { peer: "127.0.0.1:0" };
      writeFileSync(file, JSON.stringify({ listen, replica: { tls: replica } }));
      return await runVerb(["check", "--config", file]);
    };
    assert.is((await check(tls)).code, 0);
    for (
      const [files, said] of [
        [{ ca: `${folder}/none.pem` }, /replica\.tls\.ca: .*none\.pem: no such file/],
        [{ ca: tls.key }, /replica\.tls\.ca: .*own\.key has no certificate in it/],
        [{ ...tls, key: `${folder}/ca.key` }, /replica\.tls: /],
        [{ ...tls, cert: tls.key }, /replica\.tls: /],
      ] as const
    ) {
      const { code, stderr } = await check(files);
      assert.is(code, 2, stderr);
      assert.match(stderr, said);
    }
  });
});

test("mutual TLS guards a public peer address as a token does", () => {
  const listen = { peer: "0.0.0.0:8082" };
  const tls = { ca: "a", cert: "b", key: "c" };
  assert.ok(parseConfig({ listen, replica: { tls } }));
  assert.throws(() => parseConfig({ listen, replica: { tls: { cert: "b", key: "c" } } }));
});

test.run();
