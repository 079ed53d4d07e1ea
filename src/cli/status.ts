/**
 * `baton status`: one screen about a running Baton.
 */

import { messageOf } from "../errors.ts";
import type { Runtime } from "../runtime/runtime.ts";
import { ADMIN_OPTIONS, type AdminClient, adminClient } from "./admin_client.ts";
import { statusText, type StatusView } from "./status_text.ts";
import { EXIT, pause, type Verb } from "./verb.ts";

export const status: Verb = {
  name: "status",
  usage: "[--watch] [--json] [--admin <url>] [--config <file>]",
  summary: "Show readiness, versions, workers, peers and recovery; --watch repeats it",
  options: ADMIN_OPTIONS,
  flags: ["watch", "json"],
  async run(runtime, given) {
    const client = await adminClient(runtime, given);
    const isJson = given.flag("json");
    let view = await ask(client);
    if (!given.flag("watch")) {
      runtime.print("stdout", isJson ? JSON.stringify(view) : statusText(view));
      return view.ready.ready ? EXIT.ok : EXIT.failed;
    }
    for (;;) {
      // Clear the screen and go to its top, then the new text.
      const text = isJson ? JSON.stringify(view) : `\u001b[2J\u001b[H${statusText(view)}`;
      runtime.print("stdout", text);
      view = await askAgain(runtime, client);
    }
  },
};

async function ask(client: AdminClient): Promise<StatusView> {
  const get = (path: string): Promise<unknown> => client.json("GET", path);
  const ready = await client.readiness();
  const [drain, versions, workers, peers, recovery] = await Promise.all([
    get("/drain/status"),
    get("/api/v1/versions"),
    get("/api/v1/workers"),
    get("/api/v1/peers"),
    get("/api/v1/recovery"),
  ]);
  return { url: client.url, ready, drain, versions, workers, peers, recovery } as StatusView;
}

/** The next answer, a second later or whenever one comes: who watches sees a restart through. */
async function askAgain(runtime: Runtime, client: AdminClient): Promise<StatusView> {
  let said: string | undefined;
  for (;;) {
    await pause(runtime, 1000);
    try {
      return await ask(client);
    } catch (error) {
      const message = messageOf(error);
      if (message !== said) runtime.print("stderr", `baton status: ${message}; asking again`);
      said = message;
    }
  }
}
