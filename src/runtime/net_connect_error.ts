import { errorCode, errorText } from "./error_code.ts";
import { type Address, ConnectFailed } from "./runtime.ts";

/** The contract's error for a connection that was not made. */
export function connectFailure(address: Address, error: unknown): ConnectFailed {
  const where = address.kind === "unix" ? address.path : `${address.host}:${address.port}`;
  return new ConnectFailed(connectReason(error), `${where}: ${errorText(error)}`);
}

/** The reason for a system error code (or the code of a resolver or of undici). */
export function connectReason(error: unknown): ConnectFailed["reason"] {
  switch (errorCode(error)) {
    case "ECONNREFUSED":
      return "refused";
    case "ETIMEDOUT":
    case "UND_ERR_CONNECT_TIMEOUT":
      return "timeout";
    case "EHOSTUNREACH":
    case "ENETUNREACH":
    case "EADDRNOTAVAIL":
      return "unreachable";
    case "ENOENT":
    case "ENOTFOUND":
      return "missing";
    default:
      return "other";
  }
}
