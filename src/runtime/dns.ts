/** Names over `node:dns`, which both runtimes map onto the system's resolver. */

import * as system from "node:dns/promises";
import { errorCode, errorText } from "./error_code.ts";
import { type Dns, DnsFailed, NameUnknown } from "./runtime.ts";

/** The two calls of `node:dns/promises` that are used, so that a test can hand in answers. */
export interface Resolver {
  lookup(
    name: string,
    options: { all: true; order: "verbatim" },
  ): Promise<{ address: string }[]>;
  resolveSrv(name: string): Promise<{ name: string; port: number; priority: number }[]>;
}

/** The system's resolver: hosts file, search domains and name servers as the host has them. */
export function createDns(resolver: Resolver = system): Dns {
  const addresses = async (name: string): Promise<string[]> => {
    if (name === "") throw new NameUnknown("a name is empty");
    try {
      const found = await resolver.lookup(name, { all: true, order: "verbatim" });
      return [...new Set(found.map((entry) => entry.address))];
    } catch (error) {
      throw explain(name, error);
    }
  };
  return {
    addresses,
    async services(name) {
      try {
        const found = await resolver.resolveSrv(name);
        return found.map(({ name: host, port, priority }) => ({ host, port, priority }));
      } catch (error) {
        const failure = explain(name, error);
        // Deno says "not found" also when the server failed or refused; getaddrinfo can tell, so the
        // absence is believed only when the same servers answer for the name otherwise.
        if (failure instanceof NameUnknown) {
          await addresses(name).catch((other) => {
            if (!(other instanceof NameUnknown)) throw other;
          });
        }
        throw failure;
      }
    },
  };
}

/** Only the name server's own "no such name" or "no such record" is an absence. */
function explain(name: string, error: unknown): NameUnknown | DnsFailed {
  const code = errorCode(error);
  return code === "ENOTFOUND" || code === "ENODATA"
    ? new NameUnknown(`${name}: no such name`, { cause: error })
    : new DnsFailed(`${name}: ${errorText(error)}`, { cause: error });
}
