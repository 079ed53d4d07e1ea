/** What the proxy bench asks of a proxy: by default `small`, the others by `--case`. */

export interface ProxyCase {
  readonly about: string;
  /** Of the upstream (proxy_upstream.ts). */
  readonly path: string;
  readonly connections: number;
  /** Header lines of each request. */
  readonly headers?: readonly string[];
  /** Bytes that each request posts; GET without it. */
  readonly postBytes?: number;
  /** The upstream answers in many small chunks. */
  readonly inPieces?: boolean;
  /** Clients speak TLS. */
  readonly tls?: boolean;
  /** Clients speak HTTP/2 in the clear, with so many streams on each connection. */
  readonly streams?: number;
}

const KIB = 1024;
const MIB = 1024 * KIB;

/** Answers of these sizes are files of the upstream. */
export const FILES: Readonly<Record<string, number>> = {
  "64k": 64 * KIB,
  "1m": MIB,
  "100m": 100 * MIB,
};

export const CASES: Readonly<Record<string, ProxyCase>> = {
  small: { about: "answers of 1 KiB, keep-alive", path: "/x", connections: 32 },
  "64k": { about: "answers of 64 KiB", path: "/64k", connections: 32 },
  "1m": { about: "answers of 1 MiB", path: "/1m", connections: 32 },
  "100m": { about: "answers of 100 MiB", path: "/100m", connections: 2 },
  upload: { about: "uploads of 1 MiB", path: "/upload", connections: 32, postBytes: MIB },
  pieces: {
    about: "chunked answers of 100 pieces of 64 bytes, each written by itself",
    path: "/x",
    connections: 32,
    inPieces: true,
  },
  close: {
    about: "a new connection for each request",
    path: "/x",
    connections: 32,
    headers: ["Connection: close"],
  },
  many: { about: "1,000 connections, keep-alive", path: "/x", connections: 1000 },
  tls: { about: "TLS, keep-alive", path: "/x", connections: 32, tls: true },
  http2: {
    about: "HTTP/2 in the clear, 4 connections of 32 streams",
    path: "/x",
    connections: 4,
    streams: 32,
  },
};
