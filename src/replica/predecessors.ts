/**
 * The generations before this one on this machine, as peers.
 *
 * Whoever supervises us named them when we were started. They are of our own kind and have our
 * configuration, so they are called as our own peer listener is: by https if that has a certificate.
 */

import type { ReplicaConfig } from "../config/replica.ts";

/** Where predecessors are asked, the one that serves first. */
export function predecessorUrls(config: Pick<ReplicaConfig, "predecessors" | "tls">): string[] {
  const { predecessors = [], tls } = config;
  const scheme = tls?.cert !== undefined && tls.key !== undefined ? "https" : "http";
  return predecessors.map((address) => new URL(`${scheme}://${address}`).origin);
}
