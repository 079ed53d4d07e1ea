import { writeSync } from "node:fs";
import { errorCode } from "./error_code.ts";

/** After this long without a reader the rest of the line is dropped. */
const STUCK_AFTER_MS = 1_000;

/**
 * Writes a whole line, in order with all earlier ones. A closed reader costs the line, never the
 * process; a full non-blocking pipe is waited for, since half a line would spoil the next one.
 */
export function print(stream: "stdout" | "stderr", line: string): void {
  const bytes = new TextEncoder().encode(line.endsWith("\n") ? line : `${line}\n`);
  const descriptor = stream === "stdout" ? 1 : 2;
  const startedAt = performance.now();
  for (let done = 0; done < bytes.length;) {
    try {
      done += writeSync(descriptor, bytes, done, bytes.length - done);
    } catch (error) {
      if (errorCode(error) !== "EAGAIN") return;
      if (performance.now() - startedAt > STUCK_AFTER_MS) return;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
    }
  }
}
