/** The environment's proxies: which address goes by which, and real calls by way of a real one. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { writeFile } from "node:fs/promises";
import http from "node:http";
import https from "node:https";
import { type AddressInfo, connect } from "node:net";
import { defaultVersionsConfig } from "../../src/config/versions.ts";
import { createLog } from "../../src/observe/log.ts";
import { ConnectFailed, type Runtime } from "../../src/runtime/runtime.ts";
import { Installs } from "../../src/supervisor/installs.ts";
import { proxyFor, throughProxies } from "../../src/supervisor/proxies.ts";
import { authority, serverCert, serverKey } from "../runtime/certificates.ts";
import { makeBuild } from "../support/builds.ts";
import { runVerb } from "../support/baton_process.ts";
import { runtime } from "../support/runtime.ts";
import { inScratch, rejection } from "../support/scratch.ts";

const BOTH = { HTTP_PROXY: "http://proxy:3128", HTTPS_PROXY: "http://secure:3128" };

function via(url: string, env: Record<string, string>): string | undefined {
  return proxyFor(new URL(url), env);
}

test("the scheme of the address chooses, lower case goes first, empty is unset", () => {
  assert.is(via("http://a.example/x", BOTH), "http://proxy:3128");
  assert.is(via("https://a.example/x", BOTH), "http://secure:3128");
  assert.is(via("https://a.example/", { HTTP_PROXY: "http://proxy:1" }), undefined);
  assert.is(via("http://a.example/", { ...BOTH, http_proxy: "other:80" }), "http://other:80");
  assert.is(via("http://a.example/", { ...BOTH, http_proxy: " " }), undefined);
  assert.is(via("http://a.example/", {}), undefined);
});

test("loopback is never proxied", () => {
  for (const host of ["localhost", "127.0.0.1", "127.9.9.9", "[::1]", "x.localhost"]) {
    assert.is(via(`http://${host}:8080/`, BOTH), undefined, host);
  }
});

test("NO_PROXY has domains, addresses, ranges, ports and a star", () => {
  const excepted = (url: string, list: string) =>
    via(url, { ...BOTH, NO_PROXY: list }) === undefined;
  for (const entry of ["example.com", ".example.com", "*.example.com", "EXAMPLE.com:443", "x,*"]) {
    assert.ok(excepted("https://a.example.com/", entry), entry);
    assert.not(excepted("https://notexample.com/", entry.replace(",*", "")), entry);
  }
  assert.ok(excepted("https://example.com./", "example.com"));
  assert.not(excepted("https://example.com/", "example.com:8443"));
  assert.ok(excepted("https://example.com:8443/", "other, example.com:8443"));
  assert.ok(excepted("http://10.1.2.3/", "10.0.0.0/8"));
  assert.not(excepted("http://11.1.2.3/", "10.0.0.0/8"));
  assert.ok(excepted("http://[fd00::1]/", "fd00::/8"));
  assert.ok(excepted("http://[fd00::1]:80/", "[fd00::1]:80"));
  assert.not(excepted("http://[fd00::1]:81/", "[fd00::1]:80"));
  assert.not(excepted("http://a.example/", ""));
});

test("what is no HTTP proxy is an error that does not print it", () => {
  for (const proxy of ["socks5://user:secret@proxy:1080", "http://user:secret@:x"]) {
    try {
      via("http://a.example/", { HTTP_PROXY: proxy });
      assert.unreachable();
    } catch (error) {
      assert.is((error as Error).message, "HTTP_PROXY is not the URL of an HTTP proxy");
    }
  }
});

interface Proxy {
  readonly url: string;
  /** `<method> <target> <proxy-authorization>` of each request. */
  readonly asked: string[];
}

/** A proxy that sends everything to one server on loopback, whatever host is asked for. */
async function withProxy(
  origin: http.Server | https.Server,
  action: (proxy: Proxy, port: number) => Promise<void>,
): Promise<void> {
  const asked: string[] = [];
  const listening = async (server: http.Server | https.Server): Promise<number> => {
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", () => resolve()));
    return (server.address() as AddressInfo).port;
  };
  const port = await listening(origin);
  const note = ({ method, url, headers }: http.IncomingMessage): void => {
    asked.push(`${method} ${url} ${headers["proxy-authorization"] ?? "-"}`);
  };
  const proxy = http.createServer((request, response) => {
    note(request);
    const { pathname, search } = new URL(request.url ?? "");
    const { headers } = request;
    http.get({ port, path: pathname + search, headers }, (answer) => {
      response.writeHead(answer.statusCode ?? 500, answer.headers);
      answer.pipe(response);
    });
  });
  proxy.on("connect", (request, socket, head) => {
    note(request);
    if (request.url?.startsWith("refused.")) {
      socket.end("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n");
      return;
    }
    const onward = connect(port, "127.0.0.1", () => {
      socket.write("HTTP/1.1 200 OK\r\n\r\n");
      onward.write(head);
      onward.pipe(socket).pipe(onward);
    });
    for (const side of [onward, socket]) side.on("error", () => {});
  });
  const url = `http://user:pass@127.0.0.1:${await listening(proxy)}`;
  try {
    await action({ url, asked }, port);
  } finally {
    for (const server of [proxy, origin]) {
      server.closeAllConnections();
      server.close();
    }
  }
}

const CREDENTIALS = `Basic ${btoa("user:pass")}`;

test("https goes in a tunnel; the proxy sees the host and nothing else", async () => {
  const origin = https.createServer(
    { cert: serverCert, key: serverKey },
    (request, response) => response.end(`${request.url} ${request.headers.authorization ?? ""}`),
  );
  await withProxy(origin, async (proxy, port) => {
    const tls = { ca: authority };
    const answer = await runtime.http.fetch(`https://localhost:${port}/a?b=1`, {
      proxy: proxy.url,
      tls,
      headers: { authorization: "Bearer x" },
    });
    assert.is(answer.status, 200);
    assert.is(await answer.text(), "/a?b=1 Bearer x");
    assert.equal(proxy.asked, [`CONNECT localhost:${port} ${CREDENTIALS}`]);
    const refused = runtime.http.fetch("https://refused.test/", { proxy: proxy.url, tls });
    assert.instance(await rejection(refused), ConnectFailed);
  });
});

test("a proxy that is not there is a failure to connect", async () => {
  for (const url of ["http://a.test/", "https://a.test/"]) {
    const error = await rejection(runtime.http.fetch(url, { proxy: "http://127.0.0.1:1" }));
    assert.instance(error, ConnectFailed);
  }
});

test("artifacts come by way of the proxy, whole and verified; loopback does not", async () => {
  const build = await makeBuild({ id: "one" });
  const origin = http.createServer((request, response) => {
    response.setHeader("x-host", request.headers.host ?? "");
    response.end(build.bytes);
  });
  await withProxy(origin, (proxy, port) =>
    inScratch(async (folder) => {
      const machine: Runtime = { ...runtime, env: () => ({ HTTP_PROXY: proxy.url }) };
      const outward = { ...runtime, http: throughProxies(machine) };
      const installs = new Installs({
        runtime: outward,
        log: createLog({ write: () => {}, now: () => 0 }),
        binDir: `${folder}/bin`,
        config: defaultVersionsConfig({
          oracle: "file:none",
          binaryName: "child",
          allowInsecure: true,
        }),
      });
      const url = "http://artifacts.test/builds/one.zip?sign=1";
      const install = await installs.ensure({ name: "v1", url, sha256: build.sha256 });
      assert.is(install.sha256, build.sha256);
      assert.equal(proxy.asked, [`GET ${url} ${CREDENTIALS}`]);
      const direct = await outward.http.fetch(`http://127.0.0.1:${port}/x`);
      assert.is(direct.headers.get("x-host"), `127.0.0.1:${port}`);
      await direct.body?.cancel();
      assert.is(proxy.asked.length, 1);
    }));
});

test("baton check names the proxy of an oracle, without its password", async () => {
  await inScratch(async (folder) => {
    const versions = { oracle: "https://releases.example.com/list.json", binaryName: "app" };
    const config = { services: { app: { mount: "/app", versions } } };
    await writeFile(`${folder}/baton.json`, JSON.stringify(config));
    const env = { HTTPS_PROXY: "http://user:secret@proxy.example.com:3128" };
    const checked = await runVerb(["check", "--config", `${folder}/baton.json`], env);
    assert.is(checked.code, 0, checked.stderr);
    assert.match(checked.stdout, "through the proxy http://proxy.example.com:3128/\n");
    assert.not.match(checked.stdout, "secret");
  });
});

test.run();
