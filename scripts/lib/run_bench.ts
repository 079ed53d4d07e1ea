/** The frame of the benches: arguments, limits, the report. See bench.ts for what a bench is. */

import { readdirSync, readFileSync } from "node:fs";
import { availableParallelism, totalmem } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import {
  type Bench,
  type BenchContext,
  type Limit,
  runtimeCommand,
  type RuntimeName,
} from "./bench.ts";

const root = fileURLToPath(new URL("../..", import.meta.url));
const folder = join(root, "scripts/benches");
const names = readdirSync(folder)
  .filter((file) => file.endsWith(".ts"))
  .map((file) => file.slice(0, -3))
  .sort();

const rest: string[] = [];
let json = false;
let runtimes: RuntimeName[] = ["node", "deno"];
let name: string | undefined;
const args = process.argv.slice(2);
for (let arg = args.shift(); arg !== undefined; arg = args.shift()) {
  if (arg === "--json") json = true;
  else if (arg === "--runtime") {
    const wanted = args.shift();
    if (wanted === "node" || wanted === "deno") runtimes = [wanted];
    else if (wanted !== "both") refuse(`--runtime takes node, deno or both, not ${wanted}`);
  } else if (name === undefined) name = arg;
  else rest.push(arg);
}
if (name === undefined || !names.includes(name)) {
  refuse(
    `usage: scripts/bench <name> [--json] [--runtime node|deno|both]\n  ${names.join("\n  ")}`,
  );
}

const context: BenchContext = {
  runtimes,
  root,
  args: rest,
  command: (runtime, file, ...more) => [...runtimeCommand(root, runtime), file, ...more],
  say: (line) => console.error(line),
};
const bench: Bench = await import(join(folder, `${name}.ts`));
const { figures, limits, systems = {} } = await bench.run(context);

const missed = Object.entries(limits).filter(([key, limit]) => !holds(figures[key], limit));
const ok = missed.length === 0;
if (!json) {
  for (const [system, values] of Object.entries(systems)) {
    const cells = Object.entries(values).map(([key, value]) => `${key} ${round(value)}`);
    console.log(`${system}: ${cells.join(", ")}`);
  }
  for (const [key, value] of Object.entries(figures)) {
    const limit = limits[key];
    const mark = limit === undefined ? "" : holds(value, limit) ? " ok" : " MISSED";
    console.log(
      `${key} = ${round(value)}${limit === undefined ? "" : ` (${limit.join(" ")})`}${mark}`,
    );
  }
  console.log(ok ? "ok" : `missed: ${missed.map(([key]) => key).join(", ")}`);
} else {
  console.log(JSON.stringify({ bench: name, ok, figures, limits, systems, machine: machine() }));
}
process.exit(ok ? 0 : 1);

function holds(value: number | undefined, [operator, limit]: Limit): boolean {
  if (value === undefined || Number.isNaN(value)) return false;
  if (operator === "<=") return value <= limit;
  return operator === ">=" ? value >= limit : value === limit;
}

function round(value: number): number {
  return Number(value.toPrecision(4));
}

function machine(): Record<string, string | number> {
  const cpu = readFileSync("/proc/cpuinfo", "utf8").match(/model name\s*:\s*(.*)/)?.[1] ??
    "unknown";
  return { cpu, cores: availableParallelism(), memory_gib: Math.round(totalmem() / 2 ** 30) };
}

function refuse(message: string): never {
  console.error(message);
  process.exit(2);
}
