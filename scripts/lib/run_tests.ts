/**
 * Runs the checks and every test file in a process of its own, and adds up what they say.
 *
 * A file of its own process means that a crash or a leaked socket is the fault of one file: a file
 * that does not exit by itself within the limit counts as failed, and so does a skipped test.
 */

import { spawn } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";

const FILE_LIMIT_MS = 300_000;
const RUNTIMES = {
  node: ["node_modules/.bin/node"],
  deno: ["node_modules/.bin/deno", "run", "-A", "--no-check", "--quiet"],
} as const;
type RuntimeName = keyof typeof RUNTIMES;

interface Tally {
  passed: number;
  failed: number;
}

interface Job {
  readonly label: string;
  readonly command: readonly string[];
  /** How to read the output: uvu's summary, or just the exit code. */
  readonly kind: "suite" | "check";
}

interface Result extends Tally {
  readonly job: Job;
  readonly seconds: number;
  readonly output: string;
}

function testFiles(folder: string): string[] {
  return readdirSync(folder, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile() && entry.name.endsWith(".test.ts"))
    .map((entry) => join(entry.parentPath, entry.name))
    .sort();
}

function run(job: Job): Promise<Result> {
  return new Promise((resolve) => {
    const start = performance.now();
    const [command = "", ...args] = job.command;
    const child = spawn(command, args, {
      detached: true,
      stdio: ["ignore", "pipe", "pipe"],
      env: {
        ...process.env,
        NO_COLOR: "1",
        DENO_NO_UPDATE_CHECK: "1",
        NODE_COMPILE_CACHE: compiled,
      },
    });
    let output = "";
    let timedOut = false;
    const keep = (chunk: Uint8Array) => (output += chunk.toString());
    child.stdout.on("data", keep);
    child.stderr.on("data", keep);
    const endGroup = () => {
      try {
        process.kill(-(child.pid ?? 0), "SIGKILL");
      } catch {
        // The group has ended by itself.
      }
    };
    const timer = setTimeout(() => {
      timedOut = true;
      endGroup();
    }, FILE_LIMIT_MS);
    child.on("close", (code) => {
      clearTimeout(timer);
      endGroup();
      const seconds = (performance.now() - start) / 1000;
      if (timedOut) output += `\nDid not exit within ${FILE_LIMIT_MS / 1000} s\n`;
      resolve({ job, seconds, output, ...tally(job, code, output) });
    });
  });
}

function tally(job: Job, code: number | null, output: string): Tally {
  if (job.kind === "check") return code === 0 ? { passed: 1, failed: 0 } : { passed: 0, failed: 1 };
  const sum = (word: string) =>
    [...output.matchAll(new RegExp(`^\\s*${word}:\\s+(\\d+)`, "gm"))]
      .reduce((total, match) => total + Number(match[1]), 0);
  const total = sum("Total");
  const passed = sum("Passed");
  let failed = total - passed;
  if (failed === 0 && (code !== 0 || total === 0)) failed = 1;
  return { passed, failed };
}

async function runAll(jobs: readonly Job[], width: number): Promise<Result[]> {
  const results: Result[] = [];
  const queue = [...jobs];
  const worker = async () => {
    for (let job = queue.shift(); job !== undefined; job = queue.shift()) {
      const result = await run(job);
      results.push(result);
      const mark = result.failed === 0 ? "ok  " : "FAIL";
      console.log(`${mark} ${job.label} (${result.passed} in ${result.seconds.toFixed(1)} s)`);
      if (result.failed > 0) console.log(result.output.replace(/^/gm, "     | "));
    }
  };
  await Promise.all(Array.from({ length: width }, worker));
  return results;
}

const words: string[] = [];
let runtimes = Object.keys(RUNTIMES) as RuntimeName[];
const args = process.argv.slice(2);
for (let arg = args.shift(); arg !== undefined; arg = args.shift()) {
  if (arg === "--runtime") {
    const name = args.shift();
    if (name !== "both") runtimes = runtimes.filter((runtime) => runtime === name);
    if (runtimes.length === 0) {
      console.error(`--runtime takes node, deno or both, not ${name}`);
      process.exit(2);
    }
  } else words.push(arg);
}

const deno = "node_modules/.bin/deno";
const sources = ["src", "test", "scripts"];
const checks: Job[] = [
  {
    label: "format",
    command: [deno, "fmt", "--check", "src", "test", "scripts", "docs", "README.md", "deno.json"],
    kind: "check",
  },
  { label: "lint", command: [deno, "lint", "--quiet", ...sources], kind: "check" },
  { label: "types", command: [deno, "check", "--quiet", ...sources], kind: "check" },
];
const files = testFiles("test").filter((file) =>
  words.length === 0 || words.some((word) => file.includes(word))
);
const suites = files.flatMap((file) =>
  runtimes.map((runtime): Job => ({
    label: `${runtime} ${file}`,
    command: [...RUNTIMES[runtime], file],
    kind: "suite",
  }))
);
if (suites.length === 0) {
  console.error(`no test file matches ${words.join(" ")}`);
  process.exit(2);
}

/** Node keeps here what it has compiled, for the many processes of a run that load the same. */
const compiled = mkdtempSync(join(tmpdir(), "baton-compiled-"));
const started = performance.now();
const results = [
  ...(words.length === 0 ? await runAll(checks, 1) : []),
  ...await runAll(suites, Math.max(1, availableParallelism())),
];
rmSync(compiled, { recursive: true, force: true, maxRetries: 3 });
const failures = results.filter((result) => result.failed > 0);
const slowest = [...results].sort((a, b) => b.seconds - a.seconds).slice(0, 5);
console.log(`\n${((performance.now() - started) / 1000).toFixed(0)} s in all; the longest:`);
for (const result of slowest) console.log(`  ${result.seconds.toFixed(1)} s ${result.job.label}`);
for (const result of failures) console.log(`FAILED ${result.job.label}`);
const total = (key: keyof Tally) => results.reduce((sum, result) => sum + result[key], 0);
console.log(`${total("passed")} passed, ${total("failed")} failed`);
process.exit(total("failed") === 0 ? 0 : 1);
