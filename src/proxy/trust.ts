/**
 * Which peers are proxies whose word about the client counts.
 *
 * Addresses and CIDR ranges of both families, and `unix` for peers on a unix socket. An IPv4 peer
 * that arrives on a dual-stack socket (`::ffff:a.b.c.d`) is compared as IPv4; zones are cut off.
 */

import { contains, type IpRange, parseIp, parseRange } from "../config/ip_range.ts";

export class TrustedPeers {
  readonly #ranges: IpRange[] = [];
  readonly #unix: boolean;

  /** Throws RangeError, naming the entry, for what is neither an address nor a range. */
  constructor(entries: readonly string[]) {
    this.#unix = entries.includes("unix");
    for (const entry of entries) {
      if (entry === "unix") continue;
      const range = parseRange(entry);
      if (range === undefined) {
        throw new RangeError(`${entry} is neither an address, a CIDR range, nor "unix"`);
      }
      this.#ranges.push(range);
    }
  }

  has(address: string): boolean {
    if (address === "") return this.#unix;
    if (this.#ranges.length === 0) return false;
    const bytes = parseIp(address);
    return bytes !== undefined && this.#ranges.some((range) => contains(range, bytes));
  }
}
