/** Prints as many log lines as the argument says, then `done` to standard output. */
import { loadRuntime } from "../../../src/runtime/load.ts";

const runtime = await loadRuntime();
const count = Number(runtime.args[0]);
for (let i = 0; i < count; i++) {
  if (i % 3 === 0) runtime.print("stderr", `${i} ${"x".repeat(i % 300)}`);
  else runtime.printSoon("stderr", `${i} ${"x".repeat(i % 300)}`);
}
runtime.print("stdout", "done");
