/**
 * `baton status`: one screen about a running Baton.
 */

import type { Runtime } from "../runtime/runtime.ts";
import { ADMIN_OPTIONS, type AdminClient, adminClient } from "./admin_client.ts";
import { statusText, type StatusView } from "./status_text.ts";
import { EXIT, type Verb } from "./verb.ts";

export const status: Verb = {
  name: "status",
  usage: "[--watch] [--json] [--admin <url>] [--config <file>]",
  summary: "Show readiness, versions, workers, peers and recovery; --watch repeats it",
  options: ADMIN_OPTIONS,
  flags: ["watch", "json"],
  async run(runtime, given) {
    const client = await adminClient(runtime, given);
    for (;;) {
      const view = await ask(client);
      const text = given.flag("json") ? JSON.stringify(view) : statusText(view);
      if (!given.flag("watch")) {
        runtime.print("stdout", text);
        return view.ready.ready ? EXIT.ok : EXIT.failed;
      }
      // Clear the screen and go to its top, then the new text.
      runtime.print("stdout", given.flag("json") ? text : `\u001b[2J\u001b[H${text}`);
      await pause(runtime, 1000);
    }
  },
};

async function ask(client: AdminClient): Promise<StatusView> {
  const get = (path: string): Promise<unknown> => client.json("GET", path);
  const [ready, drain, versions, workers, peers, recovery] = await Promise.all([
    // 503 is an answer too: it says what is missing.
    client.fetch("/ready").then((response) => response.json() as Promise<unknown>),
    get("/drain/status"),
    get("/api/v1/versions"),
    get("/api/v1/workers"),
    get("/api/v1/peers"),
    get("/api/v1/recovery"),
  ]);
  return { url: client.url, ready, drain, versions, workers, peers, recovery } as StatusView;
}

function pause(runtime: Runtime, ms: number): Promise<void> {
  return new Promise((resolve) => runtime.clock.after(ms, resolve));
}
