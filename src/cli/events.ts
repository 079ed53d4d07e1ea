/**
 * `baton events`: the journal of a running Baton, one JSON object a line.
 */

import { messageOf } from "../errors.ts";
import type { Runtime } from "../runtime/runtime.ts";
import { ADMIN_OPTIONS, type AdminClient, adminClient } from "./admin_client.ts";
import { EXIT, pause, type Verb } from "./verb.ts";

export const events: Verb = {
  name: "events",
  usage: "[--since <number>] [--follow] [--admin <url>] [--config <file>]",
  summary: "Print rollout and recovery events; --follow goes on with what comes",
  options: [...ADMIN_OPTIONS, "since"],
  flags: ["follow"],
  async run(runtime, given) {
    const client = await adminClient(runtime, given);
    const since = given.whole("since", 0, Number.MAX_SAFE_INTEGER) ?? 0;
    const lines = given.flag("follow")
      ? follow(runtime, client, since)
      : read(await open(client, since, false));
    for await (const line of lines) runtime.print("stdout", line);
    return EXIT.ok;
  },
};

/** All lines from a number on, for ever: where a stream ends, the next one goes on. */
async function* follow(
  runtime: Runtime,
  client: AdminClient,
  since: number,
): AsyncGenerator<string> {
  let last = since;
  // Whoever is not there at first may be elsewhere; later it is a restart.
  let response: Response | undefined = await open(client, since, true);
  for (let said: string | undefined;;) {
    let message = "the stream ended";
    try {
      response ??= await open(client, last, true);
      said = undefined;
      for await (const line of read(response)) {
        last = (JSON.parse(line) as { id?: number }).id ?? last;
        yield line;
      }
    } catch (error) {
      message = messageOf(error);
    }
    response = undefined;
    if (message !== said) runtime.print("stderr", `baton events: ${message}; asking again`);
    said = message;
    await pause(runtime, 1000);
  }
}

async function open(client: AdminClient, since: number, isFollowed: boolean): Promise<Response> {
  const path = `/api/v1/events?since=${since}&follow=${isFollowed}`;
  const response = await client.fetch(path, { headers: { accept: "application/x-ndjson" } });
  if (response.ok) return response;
  await response.body?.cancel();
  throw new Error(`${response.status} from ${path}`);
}

async function* read(response: Response): AsyncGenerator<string> {
  let rest = "";
  for await (const text of response.body?.pipeThrough(new TextDecoderStream()) ?? []) {
    const lines = (rest + text).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) if (line !== "") yield line;
  }
}
