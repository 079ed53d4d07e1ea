/**
 * `baton drain`: asks a running Baton to drain, e.g. from a preStop hook.
 */

import { ADMIN_OPTIONS, adminClient } from "./admin_client.ts";
import { EXIT, pause, type Verb } from "./verb.ts";

export const drain: Verb = {
  name: "drain",
  usage: "[--wait] [--timeout-s <n>] [--admin <url>] [--config <file>]",
  summary: "Ask a running Baton to drain; --wait until nothing is in flight",
  options: [...ADMIN_OPTIONS, "timeout-s"],
  flags: ["wait"],
  async run(runtime, given) {
    const client = await adminClient(runtime, given);
    const { clock } = runtime;
    const until = clock.monotonic() + (given.whole("timeout-s", 1, 86_400) ?? 900) * 1000;
    let status = await client.json("POST", "/drain") as { inflight: number };
    while (given.flag("wait") && status.inflight > 0) {
      if (clock.monotonic() >= until) {
        runtime.print("stderr", `${status.inflight} still in flight`);
        return EXIT.failed;
      }
      await pause(runtime, 500);
      status = await client.json("GET", "/drain/status") as { inflight: number };
    }
    runtime.print("stdout", JSON.stringify(status));
    return EXIT.ok;
  },
};
