/**
 * The ports that children get: the lowest free one from a base upwards, reused after release.
 *
 * A port is claimed in the pool before the operating system is asked about it, so two children never
 * get the same one; and it is handed out only if nothing on this host listens there, since a child
 * that fails to bind costs a start. Whoever takes it between the look and the bind makes a clash:
 * port_clash.ts.
 */

import type { Net } from "../runtime/runtime.ts";

const DEFAULT_BASE = 5000;
const MAX_PORT = 65_535;

export interface PortPoolOptions {
  /** First port; one outside 1..65535 means 5000. */
  readonly base: number;
  /** Last port, inclusive. */
  readonly last?: number;
  /** Ports never handed out: Baton's own listeners. */
  readonly reserved?: Iterable<number>;
  /** Tells whether a port can be bound now; see `osPortCheck`. */
  readonly isFree: (port: number) => Promise<boolean>;
}

export class PortsExhausted extends Error {
  override readonly name = "PortsExhausted";
}

export class PortPool {
  readonly base: number;
  readonly last: number;
  readonly #reserved: ReadonlySet<number>;
  readonly #isFree: (port: number) => Promise<boolean>;
  readonly #taken = new Set<number>();

  constructor(options: PortPoolOptions) {
    this.base = isPort(options.base) ? options.base : DEFAULT_BASE;
    this.last = isPort(options.last ?? MAX_PORT) ? options.last ?? MAX_PORT : MAX_PORT;
    this.#reserved = new Set(options.reserved ?? []);
    this.#isFree = options.isFree;
  }

  /** Claims the lowest port that is free in the pool and on the host. Throws `PortsExhausted`. */
  async assign(): Promise<number> {
    for (let port = this.base; port <= this.last; port++) {
      if (this.#taken.has(port) || this.#reserved.has(port)) continue;
      this.#taken.add(port);
      let free = false;
      try {
        free = await this.#isFree(port);
      } finally {
        if (!free) this.#taken.delete(port);
      }
      if (free) return port;
    }
    throw new PortsExhausted(`no free port in ${this.base}..${this.last}`);
  }

  /** Gives a port back; anything that is not a port is ignored. */
  release(port: number | undefined): void {
    if (port !== undefined) this.#taken.delete(port);
  }

  get taken(): number {
    return this.#taken.size;
  }
}

/**
 * Asks the host by binding the port on all IPv4 addresses and letting go at once; that fails if
 * anything listens on any of them.
 */
export function osPortCheck(net: Net): (port: number) => Promise<boolean> {
  return async (port) => {
    try {
      const listener = await net.listen(
        { address: { kind: "tcp", host: "0.0.0.0", port } },
        (socket) => socket.destroy(),
      );
      await listener.close();
      return true;
    } catch {
      return false;
    }
  };
}

function isPort(value: number): boolean {
  return Number.isInteger(value) && value >= 1 && value <= MAX_PORT;
}
