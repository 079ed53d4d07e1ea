/**
 * The header lines that tell a target who a request is from: X-Forwarded-*, Forwarded (RFC 7239)
 * and Via (RFC 9110 section 7.6.3).
 *
 * From a trusted proxy they are extended, from anybody else replaced. All that does not change from
 * request to request of a connection is put together once.
 */

import {
  bit,
  FORWARDED,
  type Head,
  isToken,
  VIA,
  X_FORWARDED_FOR,
  X_FORWARDED_HOST,
  X_FORWARDED_PORT,
  X_FORWARDED_PROTO,
} from "./head.ts";

const FORWARDING = bit(X_FORWARDED_FOR) | bit(X_FORWARDED_PROTO) | bit(X_FORWARDED_HOST) |
  bit(X_FORWARDED_PORT) | bit(FORWARDED);

export interface Stamps {
  readonly lines: string;
  /** Known names (bit set) that the lines replace. */
  readonly replaced: number;
}

export interface StampOptions {
  /** Empty for a unix socket. */
  readonly remoteAddress: string;
  readonly localPort: number;
  readonly scheme: "http" | "https";
  readonly isTrusted: boolean;
  /** Our name in `Via`. */
  readonly pseudonym: string;
}

/** Makes the stamps of one connection's requests. */
export class Stamper {
  readonly #options: StampOptions;
  readonly #address: string;
  #host: string | undefined;
  #version = 0;
  #stamps: Stamps = { lines: "", replaced: 0 };

  constructor(options: StampOptions) {
    this.#options = options;
    this.#address = withoutZone(options.remoteAddress);
  }

  /** `host` is valid already (or undefined: HTTP/1.0 without one). */
  stamp(head: Head, host: string | undefined, httpVersion: number): Stamps {
    const isFresh = host === this.#host && httpVersion === this.#version;
    const extends_ = this.#options.isTrusted && (head.seen & FORWARDING) !== 0;
    if (isFresh && !extends_) return this.#stamps;
    const stamps = this.#make(extends_ ? head : undefined, host, httpVersion);
    if (extends_) return stamps;
    this.#host = host;
    this.#version = httpVersion;
    this.#stamps = stamps;
    return stamps;
  }

  /** `head` is given when its own forwarding lines are to be extended. */
  #make(head: Head | undefined, host: string | undefined, httpVersion: number): Stamps {
    const { scheme, localPort, pseudonym } = this.#options;
    let replaced = FORWARDING;
    let lines = "";
    const before = head?.joined(X_FORWARDED_FOR);
    const chain = before === undefined
      ? this.#address
      : this.#address === ""
      ? before
      : `${before}, ${this.#address}`;
    if (chain !== "") lines += `x-forwarded-for: ${chain}\r\n`;
    if (head?.has(X_FORWARDED_PROTO)) replaced &= ~bit(X_FORWARDED_PROTO);
    else lines += `x-forwarded-proto: ${scheme}\r\n`;
    if (head?.has(X_FORWARDED_HOST)) replaced &= ~bit(X_FORWARDED_HOST);
    else if (host !== undefined) lines += `x-forwarded-host: ${host}\r\n`;
    if (head?.has(X_FORWARDED_PORT)) replaced &= ~bit(X_FORWARDED_PORT);
    else lines += `x-forwarded-port: ${portOf(host) ?? localPort}\r\n`;
    const elements = head?.joined(FORWARDED);
    lines += `forwarded: ${elements === undefined ? "" : `${elements}, `}${
      this.#element(host)
    }\r\n`;
    lines += `via: ${
      httpVersion === 10 ? "1.0" : httpVersion === 20 ? "2" : "1.1"
    } ${pseudonym}\r\n`;
    return { lines, replaced };
  }

  #element(host: string | undefined): string {
    const address = this.#address;
    const node = address === "" ? "unknown" : address.includes(":") ? `"[${address}]"` : address;
    const named = host === undefined ? "" : `;host=${isToken(host) ? host : `"${host}"`}`;
    return `for=${node}${named};proto=${this.#options.scheme}`;
  }
}

/** How often our own name stands in the request's `Via` lines. */
export function timesInVia(head: Head, pseudonym: string): number {
  const via = head.joined(VIA);
  if (via === undefined) return 0;
  return via.split(",").filter((entry) => entry.trim().split(/\s+/)[1] === pseudonym).length;
}

function withoutZone(address: string): string {
  const zone = address.indexOf("%");
  const plain = zone < 0 ? address : address.slice(0, zone);
  return plain.startsWith("::ffff:") && plain.includes(".") ? plain.slice(7) : plain;
}

function portOf(host: string | undefined): string | undefined {
  return host === undefined ? undefined : /:(\d+)$/.exec(host)?.[1];
}
