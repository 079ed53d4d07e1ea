/**
 * `baton dump`: fetches a replica's dump, or verifies one.
 */

import { loadConfig } from "../config/load.ts";
import { readSecret } from "../config/secret.ts";
import type { FetchInit, Runtime } from "../runtime/runtime.ts";
import { readTlsFiles } from "../host/listeners.ts";
import { byteLines } from "../streams/byte_lines.ts";
import { printReport, verifyDump } from "../replica/verify_dump.ts";
import { reach } from "./admin_client.ts";
import { type Arguments, UsageError } from "./arguments.ts";
import { EXIT, type Verb } from "./verb.ts";

/** Lines of Baton's dumps are short; that of another program may be all in one. */
const MAX_LINE_BYTES = 256 * 1024 * 1024;

export const dump: Verb = {
  name: "dump",
  usage: "[<peer url>] [--out <file>] [--dynamo] | --verify <file or url> [--json]",
  summary: "Print a replica's dump of its index, or verify one",
  options: ["config", "out", "verify"],
  flags: ["dynamo", "json"],
  plain: [0, 1],
  async run(runtime, given) {
    const verify = given.option("verify");
    if (verify !== undefined) return await verifyIt(runtime, given, verify);
    const response = await ask(runtime, given, given.plain[0], given.flag("dynamo"));
    const out = given.option("out");
    if (out === undefined) await toOutput(runtime, response);
    else await toFile(runtime, response, out);
    return EXIT.ok;
  },
};

async function verifyIt(runtime: Runtime, given: Arguments, what: string): Promise<number> {
  const isUrl = /^https?:\/\//.test(what);
  const input = isUrl
    ? (await ask(runtime, given, what, false)).body
    : await runtime.files.stream(what);
  if (input === null) throw new Error(`${what} has no body`);
  const report = await verifyDump(input, runtime);
  const lines = given.flag("json") ? [JSON.stringify(report)] : printReport(report);
  for (const line of lines) runtime.print("stdout", line);
  return report.error === undefined ? EXIT.ok : EXIT.failed;
}

/** Asks the given peer, or the peer listener that the configuration describes. */
async function ask(
  runtime: Runtime,
  given: Arguments,
  url: string | undefined,
  isDynamo: boolean,
): Promise<Response> {
  let token = runtime.env().BATON_PEER_TOKEN?.trim() ?? "";
  let base = url;
  let unixPath: string | undefined;
  const path = given.option("config");
  const loaded = await loadConfig(runtime, path === undefined ? {} : { path }).catch((error) => {
    // With a URL on the command line a configuration is only a place where a token and certificates may be.
    if (base === undefined || path !== undefined) throw error;
    return undefined;
  });
  const { token: secret, tls } = loaded?.config.replica ?? {};
  if (token === "" && secret !== undefined) token = await readSecret(runtime, secret);
  if (base === undefined) {
    const address = loaded?.config.listen.peer;
    if (address === undefined) {
      throw new UsageError("give a peer's URL: the configuration has no peer listener");
    }
    const isTls = tls?.cert !== undefined && tls.key !== undefined;
    ({ base, unixPath } = reach(address, isTls ? "https" : "http"));
  }
  if (!/^https?:\/\//i.test(base)) throw new UsageError(`${base} is no http or https URL`);
  const target = new URL(base);
  if (target.pathname === "/") target.pathname = "/dump";
  const isHttps = target.protocol === "https:";
  const init: FetchInit = {
    headers: {
      "accept": isDynamo ? "application/json" : "application/x-ndjson",
      "accept-encoding": "identity",
      ...(token === "" ? {} : { authorization: `Bearer ${token}` }),
    },
    ...(isHttps && tls !== undefined ? { tls: await readTlsFiles(runtime, tls) } : {}),
    ...(unixPath === undefined ? {} : { unixPath }),
  };
  const response = await runtime.http.fetch(target, init);
  if (response.status === 200) return response;
  const text = (await response.text()).slice(0, 500).trim();
  throw new Error(`${target} answered ${response.status}: ${text}`);
}

async function toOutput(runtime: Runtime, response: Response): Promise<void> {
  if (response.body === null) return;
  const decoder = new TextDecoder();
  const limits = { maxLineBytes: MAX_LINE_BYTES };
  for await (const lines of byteLines(response.body, limits)) {
    for (const line of lines) runtime.print("stdout", decoder.decode(line));
  }
}

async function toFile(runtime: Runtime, response: Response, path: string): Promise<void> {
  const writer = await runtime.files.openWrite(path);
  try {
    if (response.body !== null) {
      for await (const chunk of response.body) await writer.write(chunk);
    }
    await writer.sync();
  } finally {
    await writer.close();
  }
}
