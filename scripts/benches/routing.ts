/**
 * The choice of a worker, played over traces in simulated time (scripts/lib/routing_model.ts).
 *
 * `--data <folder>` names the folder with Mooncake's traces (`mooncake_synthetic_trace.jsonl`,
 * `mooncake_conversation_trace.jsonl`); without it, `../shared/data` beside the checkout. A trace
 * that is made up is played in any case, and carries the limits when there is no other.
 */

import { execFileSync } from "node:child_process";
import { join } from "node:path";
import type { BenchContext, BenchResult, Limit } from "../lib/bench.ts";
import type { FleetResult } from "../lib/routing_model.ts";

export function run(context: BenchContext): Promise<BenchResult> {
  const named = context.args.indexOf("--data");
  const folder = named >= 0 ? context.args[named + 1] ?? "" : join(context.root, "../shared/data");
  const figures: Record<string, number> = {};
  const limits: Record<string, Limit> = {};
  const systems: Record<string, Record<string, number>> = {};
  for (const runtime of context.runtimes) {
    const file = join(context.root, "scripts/lib/routing_main.ts");
    const [program = "", ...args] = context.command(runtime, file, folder);
    const output = execFileSync(program, args, { encoding: "utf8" });
    const { results, took_s } = JSON.parse(output) as {
      results: Record<string, FleetResult>;
      took_s: number;
    };
    context.say(`${runtime}: played in ${took_s.toFixed(1)} s`);
    for (const [name, result] of Object.entries(results)) {
      systems[`${runtime} ${name}`] = { ...result };
    }
    const put = (trace: string, hits: number, meanS: number) => {
      const result = results[trace];
      if (result === undefined) return;
      figures[`${runtime}_${trace}_hit_percent`] = result.hit_percent;
      limits[`${runtime}_${trace}_hit_percent`] = [">=", hits];
      figures[`${runtime}_${trace}_mean_ttft_s`] = result.mean_ttft_s;
      limits[`${runtime}_${trace}_mean_ttft_s`] = ["<=", meanS];
      const replicas = results[`${trace}_4_replicas`];
      if (replicas === undefined) return;
      figures[`${runtime}_${trace}_4_replicas_hit_percent`] = replicas.hit_percent;
      figures[`${runtime}_${trace}_4_replicas_mean_ttft_s`] = replicas.mean_ttft_s;
    };
    put("synthetic", 53, 0.55);
    put("conversation", 24, 0.75);
    const made = results["made_up"], even = results["made_up_round_robin"];
    if (made === undefined || even === undefined) continue;
    const over = made.hit_percent / even.hit_percent;
    figures[`${runtime}_made_up_hits_over_round_robin`] = over;
    limits[`${runtime}_made_up_hits_over_round_robin`] = [">=", 1.5];
    figures[`${runtime}_made_up_ttft_over_round_robin`] = made.mean_ttft_s / even.mean_ttft_s;
    limits[`${runtime}_made_up_ttft_over_round_robin`] = ["<=", 0.5];
  }
  return Promise.resolve({ figures, limits, systems });
}
