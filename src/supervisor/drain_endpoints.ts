/** A child's own part of a drain: the request to drain, and how much it says is in flight. */

import type { Runtime } from "../runtime/runtime.ts";
import { childRequest, readBounded } from "./child_http.ts";
import { isAbsent } from "./readiness.ts";

const ASK_TIMEOUT_MS = 2_000;
const STATUS_TIMEOUT_MS = 2_000;
const MAX_STATUS_BYTES = 65_536;

type ChildRuntime = Pick<Runtime, "http" | "clock">;

/** POSTs the request to drain; the status of the answer. Throws on a transport error or time-out. */
export function requestDrain(runtime: ChildRuntime, port: number, path: string): Promise<number> {
  const request = { port, path, method: "POST", timeoutMs: ASK_TIMEOUT_MS } as const;
  return childRequest(runtime, request, (response) => response.status);
}

/** The child's count, or "absent" for a child that has no such path. Throws when it cannot be read. */
export function drainStatus(
  runtime: ChildRuntime,
  port: number,
  path: string,
): Promise<number | "absent"> {
  return childRequest(runtime, { port, path, timeoutMs: STATUS_TIMEOUT_MS }, async (response) => {
    if (isAbsent(response.status)) return "absent";
    if (response.status !== 200) throw new Error(`drain status answered ${response.status}`);
    return readInflight(await readBounded(response, MAX_STATUS_BYTES));
  });
}

/** The child's count: the first of `inflight`, `active`, `count`. Throws if there is none. */
export function readInflight(body: string): number {
  const value: unknown = JSON.parse(body);
  if (typeof value === "object" && value !== null) {
    const fields = value as Record<string, unknown>;
    for (const name of ["inflight", "active", "count"]) {
      const count = fields[name];
      if (count === undefined || count === null) continue;
      if (typeof count === "number" && Number.isSafeInteger(count)) return count;
      throw new Error(`drain status: ${name} is not a whole number`);
    }
  }
  throw new Error("drain status without inflight, active or count");
}
