/**
 * A start without a file: an oracle's address in the environment makes one versions service, mounted
 * at `/` and `/devshard`, whose options are `BATON_<OPTION>` (`bakeMs` = `BATON_BAKE_MS`).
 */

import { environmentName, type EnvironmentValues, type Path } from "./environment.ts";
import type { Problem } from "./problems.ts";
import { startedAsVersiond, versiondAliases } from "./versiond_env.ts";
import { versionsSchema } from "./versions.ts";

/** The name of the service that the environment makes. */
export const ENVIRONMENT_SERVICE = "versions";

export interface WithoutFile {
  /** What stands for the file. */
  readonly file: Readonly<Record<string, unknown>>;
  /** Variables that stand for keys besides those that always do. */
  readonly names: ReadonlyMap<string, Path>;
  /** Values that versiond's variables set; `BATON_` variables win over them. */
  readonly values: EnvironmentValues["values"];
  readonly warnings: readonly string[];
  readonly problems: readonly Problem[];
}

/** undefined when the environment names no oracle and nothing of versiond's. */
export function withoutFile(
  environment: Readonly<Record<string, string>>,
): WithoutFile | undefined {
  const ours = (environment[environmentName(["oracleUrl"])]?.trim() ?? "") !== "";
  const versiond = startedAsVersiond(environment);
  if (!ours && !versiond) return undefined;
  const names = new Map<string, Path>();
  for (const key of Object.keys(versionsSchema.entries)) {
    names.set(environmentName([key]), ["services", ENVIRONMENT_SERVICE, "versions", key]);
  }
  names.delete(environmentName(["oracle"]));
  names.set(environmentName(["oracleUrl"]), [
    "services",
    ENVIRONMENT_SERVICE,
    "versions",
    "oracle",
  ]);
  const aliases = versiond
    ? versiondAliases(environment, ENVIRONMENT_SERVICE, ours)
    : { values: [], warnings: [], problems: [] };
  return {
    file: { services: { [ENVIRONMENT_SERVICE]: { mount: ["/", "/devshard"], versions: {} } } },
    names,
    ...aliases,
  };
}
