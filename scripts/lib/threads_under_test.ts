/**
 * Baton's traffic listener in several threads with one upstream, as the threads bench starts it:
 * `threads_under_test.ts <upstream port> <threads>`; prints the port that it listens on.
 */

import { createMetrics } from "../../src/observe/metrics.ts";
import { silentLog } from "../../src/observe/log.ts";
import { UpstreamService } from "../../src/proxy/upstream_service.ts";
import { loadRuntime } from "../../src/runtime/load.ts";
import { startThreadedTraffic } from "../../src/threads/threaded_traffic.ts";

const runtime = await loadRuntime();
const [port, threads] = runtime.args.map(Number);
const service = new UpstreamService({
  name: "plain",
  mounts: ["/"],
  url: `http://127.0.0.1:${port}`,
  clock: runtime.clock,
});
const server = await startThreadedTraffic({
  runtime,
  log: silentLog,
  metrics: createMetrics(),
  threads: threads ?? 1,
  settings: {
    listen: { address: { kind: "tcp", host: "127.0.0.1", port: 0 } },
    logLevel: "error",
    accessLog: false,
  },
  services: [{
    service,
    byVersion: false,
    direct: () => [["", service.target]],
    onChange: () => () => {},
  }],
  timeouts: () => undefined,
  appFetch: () => new Response(null, { status: 404 }),
  gate: () => ({ accepting: true, draining: false }),
});
if (server.address.kind === "tcp") runtime.print("stdout", String(server.address.port));
