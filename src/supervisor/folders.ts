/** Where a versions service keeps its things, below the state folder unless the options say else. */

import type { VersionsConfig } from "../config/versions.ts";

/** Where a service keeps what. */
export interface SupervisorFolders {
  readonly state: string;
  readonly bin: string;
  readonly data: string;
  readonly logs: string;
}

/** The folders of a service; also for the commands that look at them from outside. */
export function supervisorFolders(
  options: { readonly stateDir: string; readonly service: string; readonly config: VersionsConfig },
): SupervisorFolders {
  const state = `${options.stateDir}/${options.service}`;
  return {
    state,
    bin: options.config.binDir ?? `${state}/bin`,
    data: options.config.dataDir ?? `${state}/data`,
    logs: `${state}/logs`,
  };
}
