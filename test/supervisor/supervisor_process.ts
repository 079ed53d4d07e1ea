/**
 * A service in a process of its own, to be killed: `supervisor_process.ts <folder> <config as JSON>`.
 * Prints its log lines, and `{"event":"listening","origin":...}` once it serves.
 */

import process from "node:process";
import { type ConfigInput, createHarness } from "./harness.ts";

const [folder = "", config = "{}"] = process.argv.slice(2);
const harness = await createHarness({
  folder,
  config: JSON.parse(config) as ConfigInput,
  // Synchronously: the last line before a kill must be seen.
  onLine: (line) => console.log(line),
});
console.log(JSON.stringify({ event: "listening", origin: harness.origin }));
