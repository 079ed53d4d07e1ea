/** Prints as many numbered lines as the argument says, then `done` to standard error. */
import { loadRuntime } from "../../../src/runtime/load.ts";

const runtime = await loadRuntime();
const count = Number(runtime.args[0]);
for (let i = 0; i < count; i++) runtime.print("stdout", `${i} ${"x".repeat(i % 300)}`);
runtime.print("stderr", "done");
