/** Replaces the file given as argument over and over with equal bytes of one letter, for ever. */
import { loadRuntime } from "../../../src/runtime/load.ts";

const runtime = await loadRuntime();
const [path = "", size = "0"] = runtime.args;
for (let round = 0;; round++) {
  await runtime.files.writeAtomic(path, "abcdefghij".charAt(round % 10).repeat(Number(size)));
  if (round === 0) runtime.print("stdout", "started");
}
