import { createBase } from "./base.ts";
import { launchOnDeno } from "./deno_launch.ts";
import { tryLockOnDeno } from "./deno_lock.ts";
import { createNet } from "./net.ts";
import { createProcesses } from "./processes.ts";
import type { Runtime } from "./runtime.ts";

/** The record for Deno. */
export function createRuntime(): Runtime {
  return {
    name: "deno",
    version: Deno.version.deno,
    ...createBase(tryLockOnDeno),
    net: createNet(),
    processes: createProcesses(launchOnDeno),
  };
}
