import process from "node:process";
import { createBase } from "./base.ts";
import { tryLockByProgram } from "./folder_locks.ts";
import { createNet } from "./net.ts";
import { calmCollector } from "./node_collector.ts";
import { launchOnNode } from "./node_launch.ts";
import { createProcesses } from "./processes.ts";
import type { Runtime } from "./runtime.ts";

/** The record for Node. */
export function createRuntime(): Runtime {
  calmCollector();
  return {
    name: "node",
    version: process.versions.node,
    ...createBase(tryLockByProgram),
    net: createNet(),
    processes: createProcesses(launchOnNode),
  };
}
