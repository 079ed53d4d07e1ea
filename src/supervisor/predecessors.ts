/**
 * Which generations a new one may take its state from.
 *
 * Those of its version that have been ready and whose process has not ended. One that drains counts:
 * it answers its peers to its end, and it may be the only one that is left when the one that served
 * has crashed. One that has not been ready has nothing to give.
 */

import type { Generation, Role } from "./generation.ts";

/** Who is asked first: whoever has the traffic is the one that is known to work. */
const ORDER: readonly Role[] = ["current", "canary", "warm", "leaving"];

/** Their peer listeners as `host:port`, the best source first. */
export function predecessorsOf(
  generation: Generation,
  ofVersion: readonly Generation[],
): string[] {
  const found = ofVersion.flatMap((other) => {
    const { peerPort, role, number, process } = other;
    const isSource = other !== generation && ORDER.includes(role) &&
      process !== undefined && process.state !== "exited";
    return isSource && peerPort !== undefined ? [{ peerPort, role, number }] : [];
  });
  return found
    .sort((a, b) => ORDER.indexOf(a.role) - ORDER.indexOf(b.role) || b.number - a.number)
    .map(({ peerPort }) => `127.0.0.1:${peerPort}`);
}
