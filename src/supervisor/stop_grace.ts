/** How long a child has between SIGTERM and SIGKILL. */

import type { VersionsConfig } from "../config/versions.ts";
import { isDevshardBinary } from "../config/versions.ts";

/** The kill grace; for devshard's programs at least their own shutdown grace. */
export function stopGraceMs(
  config: Pick<VersionsConfig, "binaryName" | "killGraceMs" | "childGraceMs">,
): number {
  if (!isDevshardBinary(config.binaryName)) return config.killGraceMs;
  return Math.max(config.killGraceMs, config.childGraceMs);
}
