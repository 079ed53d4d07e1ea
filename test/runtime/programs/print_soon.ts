/**
 * `print_soon.ts <count> <exit | throw | return | stay>`: numbered lines, two of three of which may
 * wait, and then that end.
 */
import { loadRuntime } from "../../../src/runtime/load.ts";

const runtime = await loadRuntime();
const [count, end] = runtime.args;
for (let index = 0; index < Number(count); index++) {
  if (index % 3 === 1) runtime.print("stdout", `line ${index}`);
  else runtime.printSoon("stdout", `line ${index}`);
}
runtime.printSoon("stderr", "done");
if (end === "exit") runtime.exit(7);
if (end === "throw") throw new Error("uncaught");
if (end === "stay") setInterval(() => {}, 1_000);
