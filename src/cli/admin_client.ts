/**
 * The admin API as the verbs use it: `baton status` asks the Baton that the same configuration
 * describes, or the one at `--admin`.
 */

import { messageOf } from "../errors.ts";
import { loadConfig } from "../config/load.ts";
import { readSecret } from "../config/secret.ts";
import type { Address, FetchInit, Runtime } from "../runtime/runtime.ts";
import { type Arguments, UsageError } from "./arguments.ts";

/** The options that every verb takes which asks a running Baton. */
export const ADMIN_OPTIONS = ["config", "admin"] as const;

export interface AdminClient {
  /** The address that is asked, for messages. */
  readonly url: string;
  /** The answer's JSON. Throws an Error with the server's message unless the answer is 2xx. */
  json(method: "GET" | "POST", path: string, body?: unknown): Promise<unknown>;
  /** What `/ready` says, whether it is ready or not. Throws as `json` does. */
  readiness(): Promise<unknown>;
  /** The answer itself, whatever its status. */
  fetch(path: string, init?: RequestInit): Promise<Response>;
}

/**
 * Finds the admin listener: `--admin` or `BATON_ADMIN_URL`, else `listen.admin` of the configuration;
 * the token is `BATON_ADMIN_TOKEN`, else what `admin.token` refers to.
 */
export async function adminClient(runtime: Runtime, given: Arguments): Promise<AdminClient> {
  const environment = runtime.env();
  const url = given.option("admin")?.trim() ?? trimmed(environment.BATON_ADMIN_URL);
  let token = trimmed(environment.BATON_ADMIN_TOKEN);
  let base = url?.replace(/\/+$/, "");
  let unixPath: string | undefined;
  if (base === undefined) {
    const path = given.option("config");
    const { config } = await loadConfig(runtime, path === undefined ? {} : { path });
    ({ base, unixPath } = reach(config.listen.admin));
    const secret = config.admin.token;
    if (token === undefined && secret !== undefined) token = await readSecret(runtime, secret);
  } else if (base.startsWith("unix:")) {
    ({ base, unixPath } = reach({ kind: "unix", path: base.slice("unix:".length) }));
  } else if (!/^https?:\/\//i.test(base) || !URL.canParse(base)) {
    const name = given.option("admin") === undefined ? "BATON_ADMIN_URL" : "--admin";
    throw new UsageError(`${name} = ${base}: give a URL as http://127.0.0.1:8081, or unix:/path`);
  }
  const ask = async (path: string, init: RequestInit = {}): Promise<Response> => {
    const headers = new Headers(init.headers);
    if (token !== undefined) headers.set("authorization", `Bearer ${token}`);
    const full: FetchInit = { ...init, headers, ...(unixPath === undefined ? {} : { unixPath }) };
    try {
      return await runtime.http.fetch(`${base}${path}`, full);
    } catch (error) {
      const why = messageOf(error);
      throw new Error(`no answer from ${url ?? unixPath ?? base}: ${why}`, { cause: error });
    }
  };
  const shown = unixPath === undefined ? base : `unix:${unixPath}`;
  const read = async (
    response: Response,
    path: string,
    isMeant: (answer: object) => boolean,
  ): Promise<unknown> => {
    const answer: unknown = await response.json().catch(() => undefined);
    if (typeof answer === "object" && answer !== null && isMeant(answer)) return answer;
    const { error } = (answer ?? {}) as { error?: { message?: string } };
    throw new Error(
      error?.message === undefined
        ? `${shown} answered ${path} with ${response.status}: is that the admin listener of a Baton?`
        : `${response.status}: ${error.message}`,
    );
  };
  return {
    url: shown,
    fetch: ask,
    readiness: async () =>
      await read(await ask("/ready"), "/ready", (answer) => "conditions" in answer),
    json: async (method, path, body) => {
      const response = await ask(path, {
        method,
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      });
      return await read(response, path, () => response.ok);
    },
  };
}

/** Where a listener of this machine's configuration is called. */
export function reach(
  address: Address,
  scheme: "http" | "https" = "http",
): { base: string; unixPath: string | undefined } {
  if (address.kind === "unix") return { base: `${scheme}://localhost`, unixPath: address.path };
  // A listener on all addresses is asked on the loopback one.
  const any = address.host === "0.0.0.0" || address.host === "::";
  const host = any ? "127.0.0.1" : address.host.includes(":") ? `[${address.host}]` : address.host;
  return { base: `${scheme}://${host}:${address.port}`, unixPath: undefined };
}

function trimmed(value: string | undefined): string | undefined {
  const text = value?.trim() ?? "";
  return text === "" ? undefined : text;
}
