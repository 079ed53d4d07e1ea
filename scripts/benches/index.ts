/**
 * The prefix index: blocks applied from decoded events, look-ups, memory, pauses while it grows, and
 * look-ups among events; with two `Map`s of bigint keys as the yardstick.
 *
 * Each measurement is a process of its own, pinned to one core, in processor time. 1 M blocks are
 * grown four times, 10 M twice. The first growth, in a fresh process, gives the longest pause (the
 * worst single event) and the rate with the compilation in it; the rate is the median of the others.
 * `--full` adds
 * 10 M blocks at 8 and 1,000 workers and events of one block (the growth curve of
 * docs/performance.md). `--dynamo` builds the peer in scripts/bench-peers/dynamo-index (minutes; needs cargo), which does the same work with
 * Dynamo's single-threaded radix tree; once built it runs each time.
 */

import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { type BenchContext, type BenchResult, type Limit } from "../lib/bench.ts";
import type { RuntimeName } from "../lib/bench.ts";

interface Measured {
  readonly blocks: number;
  readonly applied_per_s: number;
  readonly first_applied_per_s: number;
  readonly longest_ms: number;
  readonly looked_up_per_s: number;
  readonly churned_per_s: number;
  readonly p99_us: number;
  readonly p50_us: number;
  readonly bytes_each: number;
  readonly rss_bytes_each: number;
}

const M = 1_000_000;

export function run(context: BenchContext): Promise<BenchResult> {
  const full = context.args.includes("--full");
  const figures: Record<string, number> = {};
  const limits: Record<string, Limit> = {};
  const systems: Record<string, Record<string, number>> = {};
  const peer = dynamo(context);
  if (peer !== undefined) systems["dynamo 1m_64"] = peer;
  for (const runtime of context.runtimes) {
    const results = new Map<string, Measured>();
    const sizes: [string, string, number, number, number][] = [
      ["map", "1m_64", M, 64, 64],
      ["index", "1m_8", M, 8, 64],
      ["index", "1m_64", M, 64, 64],
      ["index", "1m_1000", M, 1_000, 64],
      ["index", "10m_64", 10 * M, 64, 64],
    ];
    if (full) {
      sizes.push(
        ["index", "10m_8", 10 * M, 8, 64],
        ["index", "10m_1000", 10 * M, 1_000, 64],
        ["index", "1m_64_single", M, 64, 1],
      );
    }
    for (const [kind, name, blocks, lanes, perEvent] of sizes) {
      const result = measure(context, runtime, kind, blocks, lanes, perEvent);
      results.set(`${kind}_${name}`, result);
      systems[`${runtime} ${kind} ${name}`] = { ...result };
      context.say(`${runtime} ${kind} ${name}: ${JSON.stringify(result)}`);
    }
    const of = (name: string) => results.get(name) as Measured;
    const indexes = [...results].filter(([name]) => /^index_(1|10)m_\d+$/.test(name));
    const each = (field: keyof Measured) => indexes.map(([, measured]) => measured[field]);
    const main = of("index_1m_64"), large = of("index_10m_64"), map = of("map_1m_64");
    const put = (name: string, value: number, limit?: Limit) => {
      figures[`${runtime}_${name}`] = value;
      if (limit !== undefined) limits[`${runtime}_${name}`] = limit;
    };
    put("applied_blocks_per_s", main.applied_per_s, [">=", 2 * M]);
    put("first_applied_blocks_per_s", main.first_applied_per_s, [">=", 2 * M]);
    put("applied_blocks_per_s_10m", large.applied_per_s);
    put("churned_blocks_per_s", main.churned_per_s, [">=", 2 * M]);
    put("looked_up_blocks_per_s", main.looked_up_per_s, [">=", 10 * M]);
    put("looked_up_blocks_per_s_10m", large.looked_up_per_s);
    put("lookup_400_p99_us", Math.max(...each("p99_us")), ["<=", 100]);
    put("longest_pause_ms", Math.max(...each("longest_ms")), ["<=", 10]);
    put("bytes_per_block_and_worker", Math.max(...each("bytes_each")), ["<=", 64]);
    put("rss_bytes_per_block_and_worker_10m", large.rss_bytes_each, ["<=", 64]);
    put("applied_over_map", main.applied_per_s / map.applied_per_s);
    put("looked_up_over_map", main.looked_up_per_s / map.looked_up_per_s);
    if (peer === undefined) continue;
    put("applied_over_dynamo", main.applied_per_s / (peer["applied_per_s"] ?? NaN));
    put("looked_up_over_dynamo", main.looked_up_per_s / (peer["looked_up_per_s"] ?? NaN));
    put("rss_over_dynamo", main.rss_bytes_each / (peer["rss_bytes_each"] ?? NaN));
  }
  return Promise.resolve({ figures, limits, systems });
}

/** Figures of Dynamo's tree, 1 M blocks and 64 workers; undefined if it was never built. */
function dynamo(context: BenchContext): Record<string, number> | undefined {
  const target = join(context.root, ".bench/dynamo-index");
  const program = join(target, "release/dynamo-index");
  if (context.args.includes("--dynamo")) {
    context.say("building Dynamo's index");
    const manifest = join(context.root, "scripts/bench-peers/dynamo-index/Cargo.toml");
    const args = ["build", "--release", "--locked", "--manifest-path", manifest];
    execFileSync("cargo", [...args, "--target-dir", target], {
      stdio: ["ignore", "ignore", "inherit"],
    });
  }
  if (!existsSync(program)) return undefined;
  const output = execFileSync("taskset", ["-c", "0", program, String(M), "64"], {
    encoding: "utf8",
  });
  context.say(`dynamo 1m_64: ${output.trim()}`);
  return JSON.parse(output) as Record<string, number>;
}

function measure(
  context: BenchContext,
  runtime: RuntimeName,
  kind: string,
  blocks: number,
  lanes: number,
  perEvent: number,
): Measured {
  const file = join(context.root, "scripts/lib/index_load.ts");
  const command = context.command(
    runtime,
    file,
    kind,
    String(blocks),
    String(lanes),
    String(perEvent),
  );
  const output = execFileSync("taskset", ["-c", "0", ...command], { encoding: "utf8" });
  return JSON.parse(output.trim().split("\n").at(-1) ?? "") as Measured;
}
