import { test } from "uvu";
import * as assert from "uvu/assert";
import { Monitor } from "../../src/supervisor/monitor.ts";
import { runtime } from "../support/runtime.ts";
import { until } from "./harness.ts";

async function serve(answer: () => Response | Promise<Response>) {
  const server = await runtime.http.serve(
    { address: { kind: "tcp", host: "127.0.0.1", port: 0 } },
    () => answer(),
  );
  if (server.address.kind !== "tcp") throw new Error("not TCP");
  const target = { port: server.address.port, readyPath: "/ready", healthPath: "/healthz" };
  return { target, close: () => server.destroy() };
}

test("case 101: once a monitor is stopped and awaited, no answer changes anything", async () => {
  let release: (response: Response) => void = () => {};
  let asked = 0;
  const server = await serve(() => {
    asked += 1;
    return new Promise<Response>((resolve) => (release = resolve));
  });
  const results: boolean[] = [];
  const monitor = new Monitor(runtime, server.target, {
    intervalMs: 5,
    timeoutMs: 10_000,
    onResult: (ready) => results.push(ready),
  });
  await until(() => asked === 1);
  const stopped = monitor.stop();
  release(new Response("ok"));
  await stopped;
  assert.equal(results, []);
  await server.close();
});

test("case 123: the monitor looks at the status only, whatever the body says", async () => {
  const server = await serve(() =>
    new Response(JSON.stringify({ ready: true, recovery_complete: true }), { status: 503 })
  );
  const results: boolean[] = [];
  const monitor = new Monitor(runtime, server.target, {
    intervalMs: 5,
    timeoutMs: 2_000,
    onResult: (ready) => results.push(ready),
  });
  await until(() => results.length >= 2);
  await monitor.stop();
  assert.not(results.includes(true));
  await server.close();
});

test.run();
