/**
 * May two builds of one version run at the same time?
 *
 * Both use the same data folder. Versiond's own children can share it only when their storage is a
 * database, and only they know: the running child's recorded answer and the incoming binary's
 * answer to `--print-storage-mode` must both be exactly `postgres`. Unknown means no.
 */

import type { VersionsConfig } from "../config/versions.ts";
import { isDevshardBinary } from "../config/versions.ts";

/** Storage modes as preflight recorded them; "" is unknown. */
export function overlapAllowed(
  config: Pick<VersionsConfig, "overlap" | "binaryName">,
  current: { readonly storageMode: string },
  incoming: { readonly storageMode: string },
): boolean {
  const rule = config.overlap ?? (isDevshardBinary(config.binaryName) ? "ask" : "always");
  if (rule !== "ask") return rule === "always";
  return current.storageMode === "postgres" && incoming.storageMode === "postgres";
}
