/**
 * Replaces the file given as argument over and over with equal bytes of one letter, until killed
 * (or for two minutes, should its test have failed).
 */
import { loadRuntime } from "../../../src/runtime/load.ts";

const runtime = await loadRuntime();
const [path = "", size = "0"] = runtime.args;
const endsAt = runtime.clock.monotonic() + 120_000;
for (let round = 0; runtime.clock.monotonic() < endsAt; round++) {
  await runtime.files.writeAtomic(path, "abcdefghij".charAt(round % 10).repeat(Number(size)));
  if (round === 0) runtime.print("stdout", "started");
}
