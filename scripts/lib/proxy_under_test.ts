/**
 * Baton's traffic listener with one upstream, as the proxy and streams benches start it:
 * `proxy_under_test.ts <upstream port> [<certificate file> <key file>]`; prints the port that it
 * listens on.
 */

import { createMetrics } from "../../src/observe/metrics.ts";
import { silentLog } from "../../src/observe/log.ts";
import { Routes } from "../../src/proxy/routes.ts";
import { startTraffic } from "../../src/proxy/traffic.ts";
import { UpstreamService } from "../../src/proxy/upstream_service.ts";
import { loadRuntime } from "../../src/runtime/load.ts";

const runtime = await loadRuntime();
const [upstreamPort, certFile, keyFile] = runtime.args;
const text = async (path: string) => new TextDecoder().decode(await runtime.files.read(path));
const tls = certFile === undefined || keyFile === undefined ? {} : {
  tls: {
    pair: { cert: await text(certFile), key: await text(keyFile) },
    minVersion: "TLSv1.2" as const,
  },
};
const routes = new Routes();
routes.replace([
  new UpstreamService({
    name: "plain",
    mounts: ["/"],
    url: `http://127.0.0.1:${upstreamPort}`,
    clock: runtime.clock,
  }),
]);
const server = await startTraffic({
  runtime,
  log: silentLog,
  metrics: createMetrics(),
  routes,
  listen: { address: { kind: "tcp", host: "127.0.0.1", port: 0 } },
  ...tls,
  // The peers write no access log either.
  accessLog: false,
});
if (server.address.kind === "tcp") runtime.print("stdout", String(server.address.port));
