/**
 * `baton events`: the journal of a running Baton, one JSON object a line.
 */

import { ADMIN_OPTIONS, adminClient } from "./admin_client.ts";
import { EXIT, type Verb } from "./verb.ts";

export const events: Verb = {
  name: "events",
  usage: "[--since <number>] [--follow] [--admin <url>] [--config <file>]",
  summary: "Print rollout and recovery events",
  options: [...ADMIN_OPTIONS, "since"],
  flags: ["follow"],
  async run(runtime, given) {
    const client = await adminClient(runtime, given);
    const since = given.whole("since", 0, Number.MAX_SAFE_INTEGER) ?? 0;
    const path = `/api/v1/events?since=${since}&follow=${given.flag("follow")}`;
    const response = await client.fetch(path, { headers: { accept: "application/x-ndjson" } });
    if (!response.ok || response.body === null) throw new Error(`${response.status} from ${path}`);
    let rest = "";
    const chunks = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await chunks.read();
      if (done) return EXIT.ok;
      const lines = (rest + value).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) if (line !== "") runtime.print("stdout", line);
    }
  },
};
