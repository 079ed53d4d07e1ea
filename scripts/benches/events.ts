/**
 * KV events from raw msgpack payloads into the index: events as arrays and as maps, of one block and
 * of 64 blocks (a prompt); with the msgpack library alone, which only decodes, as the yardstick.
 *
 * Each runtime is a process of its own, pinned to one core.
 */

import { execFileSync } from "node:child_process";
import { join } from "node:path";
import type { BenchContext, BenchResult, Limit } from "../lib/bench.ts";

export function run(context: BenchContext): Promise<BenchResult> {
  const figures: Record<string, number> = {};
  const limits: Record<string, Limit> = {};
  const systems: Record<string, Record<string, number>> = {};
  for (const runtime of context.runtimes) {
    const command = context.command(runtime, join(context.root, "scripts/lib/events_run.ts"));
    const output = execFileSync("taskset", ["-c", "0", ...command], { encoding: "utf8" });
    const result = JSON.parse(output.trim().split("\n").at(-1) ?? "") as Record<string, number>;
    context.say(`${runtime}: ${JSON.stringify(result)}`);
    systems[runtime] = result;
    const put = (name: string, value: number | undefined, limit?: Limit) => {
      figures[`${runtime}_${name}`] = value ?? NaN;
      if (limit !== undefined) limits[`${runtime}_${name}`] = limit;
    };
    for (const shape of ["array", "map"]) {
      for (const size of ["single", "prompt"]) {
        const name = `${shape}_${size}`;
        const ours = result[`${name}_blocks_per_s`] ?? NaN;
        const library = result[`${name}_msgpack_library_decode_only_blocks_per_s`] ?? NaN;
        put(`${name}_blocks_per_s`, ours, [">=", 500_000]);
        put(`${name}_over_library_decode_only`, ours / library);
      }
    }
    put("pause_p99_ms", result["pause_p99_ms"], ["<=", 10]);
    put("longest_pause_ms", result["longest_pause_ms"]);
  }
  return Promise.resolve({ figures, limits, systems });
}
