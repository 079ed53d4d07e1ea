import type { Runtime } from "./runtime.ts";

/** Builds the record for the runtime that this program is running on. */
export async function loadRuntime(): Promise<Runtime> {
  const { createRuntime } = "Deno" in globalThis
    ? await import("./deno.ts")
    : await import("./node.ts");
  return createRuntime();
}
