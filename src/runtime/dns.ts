/** Names over `node:dns`, which both runtimes map onto the system's resolver. */

import * as dns from "node:dns/promises";
import { errorCode, errorText } from "./error_code.ts";
import { type Dns, DnsFailed, NameUnknown } from "./runtime.ts";

/** The system's resolver: hosts file, search domains and name servers as the host has them. */
export function createDns(): Dns {
  return {
    async addresses(name) {
      if (name === "") throw new NameUnknown("a name is empty");
      const found = await orUnknown(name, () => dns.lookup(name, { all: true, order: "verbatim" }));
      return [...new Set(found.map((entry) => entry.address))];
    },
    async services(name) {
      const found = await orUnknown(name, () => dns.resolveSrv(name));
      return found.map(({ name: host, port, priority }) => ({ host, port, priority }));
    },
  };
}

async function orUnknown<T>(name: string, action: () => Promise<T>): Promise<T> {
  try {
    return await action();
  } catch (error) {
    // Only the name server's own "no such name" is an absence; a time-out or a refusal is not.
    if (errorCode(error) === "ENOTFOUND") {
      throw new NameUnknown(`${name}: no such name`, { cause: error });
    }
    throw new DnsFailed(`${name}: ${errorText(error)}`, { cause: error });
  }
}
