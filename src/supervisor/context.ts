/** What all versions of one service share. */

import type { VersionsConfig } from "../config/versions.ts";
import type { Runtime } from "../runtime/runtime.ts";
import type { Generation } from "./generation.ts";
import type { Generations } from "./generations.ts";
import type { Holds } from "./hold.ts";
import type { Builds } from "./builds.ts";
import type { Launcher } from "./launcher.ts";
import type { Memory } from "./memory.ts";
import type { Orphan } from "./orphans.ts";
import type { Quarantine } from "./quarantine.ts";
import type { Reports } from "./reports.ts";
import type { Slots } from "./slots.ts";

export interface ServiceContext {
  readonly service: string;
  readonly runtime: Runtime;
  readonly config: VersionsConfig;
  readonly reports: Reports;
  readonly generations: Generations;
  readonly launcher: Launcher;
  readonly builds: Builds;
  readonly starts: Slots;
  readonly holds: Holds;
  readonly quarantine: Quarantine;
  readonly memory: Memory;
  /** SIGTERM to SIGKILL, by the program's name and the options. */
  readonly stopGraceMs: number;
  /** False once the service is going down. */
  mayStart(): boolean;
  /** Orphans of an earlier Baton that must be gone before this version starts; see orphans.ts. */
  orphansOf(version: string): readonly Orphan[];
  /** Work that nobody waits for now; the way down does. A failure is logged. */
  background(work: Promise<unknown>): void;
  /** A generation was published, withdrawn or has ended: targets may have changed. */
  changed(generation: Generation): void;
}
