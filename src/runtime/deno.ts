import { createBase } from "./base.ts";
import { launchOnDeno } from "./deno_launch.ts";
import { createNet } from "./net.ts";
import { createProcesses } from "./processes.ts";
import type { Runtime } from "./runtime.ts";

/** The record for Deno. */
export function createRuntime(): Runtime {
  return {
    name: "deno",
    version: Deno.version.deno,
    ...createBase(),
    net: createNet(),
    processes: createProcesses(launchOnDeno),
  };
}
