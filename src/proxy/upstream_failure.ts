/**
 * What a client is told when a target failed before any byte of its answer went out.
 */

import { BatonError, type ErrorCode } from "../errors.ts";

const MESSAGES: Partial<Record<ErrorCode, string>> = {
  upstream_connect_failed: "takes no connection",
  upstream_reset: "ended the connection before it had answered",
  upstream_bad_response: "answered with something that is no HTTP answer",
  upstream_timeout: "did not answer in time",
};

/** The error for a failed forward; `reason` is that of its outcome, `what` names the target. */
export function upstreamFailure(reason: string | undefined, what: string): BatonError {
  for (const [code, message] of Object.entries(MESSAGES)) {
    if (code === reason) return new BatonError(code as ErrorCode, `${what} ${message}`);
  }
  return new BatonError("upstream_reset", `${what} ${MESSAGES.upstream_reset}`);
}
