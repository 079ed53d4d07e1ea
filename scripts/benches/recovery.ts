/**
 * A joiner recovers the index of a source, in two real processes, while both apply live events.
 *
 * Limits (docs: the recovery row of the performance table): 1 M blocks over 64 lanes with 50 k
 * blocks/s of live events from dump start to ready in 3 s; either side within 64 MiB over its index;
 * requests to the source not more than 5 ms slower at p99; no turn of the event loop over 10 ms.
 * `--blocks 10000000` measures another size beside 1 M (2 M without it).
 *
 * Both processes are new in each round, so the source gives its first dump, with code that is not
 * compiled yet. Source and joiner have a core each. The requests are made on the joiner's: the time
 * in which this process waited for it (/proc/self/schedstat) is taken off a request, nothing else.
 * Percentiles are over the requests of all rounds. A turn is how late a timer of 1 ms was, less the
 * time in which the thread was ready and had no core: the helper threads of V8, and here the client,
 * have the same core; `stall_ms` of the systems is with it.
 */

import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { join } from "node:path";
import { median, percentile } from "../lib/bench.ts";
import type { BenchContext, BenchResult, Limit, RuntimeName } from "../lib/bench.ts";
import { waitedMs } from "../lib/core_waits.ts";

const LANES = 64;
const RATE = 50_000;
const ROUNDS = 3;
const SOURCE_CORE = 0;
const JOINER_CORE = 1;

interface Answer {
  readonly [field: string]: unknown;
}

/** A replica in a process of its own, pinned to a core. */
class Replica {
  readonly #child: ChildProcess;
  readonly #answers: Answer[] = [];
  readonly #waiting: ((answer: Answer) => void)[] = [];
  #text = "";

  constructor(context: BenchContext, runtime: RuntimeName, core: number, args: string[]) {
    const file = join(context.root, "scripts/lib/recovery_replica.ts");
    const command = context.command(runtime, file, ...args);
    this.#child = spawn("taskset", ["-c", String(core), ...command], {
      stdio: ["pipe", "pipe", "inherit"],
    });
    this.#child.stdout?.on("data", (chunk: Uint8Array) => {
      this.#text += new TextDecoder().decode(chunk);
      for (let end = this.#text.indexOf("\n"); end !== -1; end = this.#text.indexOf("\n")) {
        const answer = JSON.parse(this.#text.slice(0, end)) as Answer;
        this.#text = this.#text.slice(end + 1);
        const waiter = this.#waiting.shift();
        if (waiter === undefined) this.#answers.push(answer);
        else waiter(answer);
      }
    });
  }

  next(): Promise<Answer> {
    const answer = this.#answers.shift();
    if (answer !== undefined) return Promise.resolve(answer);
    return new Promise((resolve, reject) => {
      this.#waiting.push(resolve);
      this.#child.once("exit", () => reject(new Error("a replica ended early")));
    });
  }

  ask(command: string): Promise<Answer> {
    this.#child.stdin?.write(`${command}\n`);
    return this.next();
  }

  end(): void {
    this.#child.stdin?.end();
    this.#child.kill();
  }
}

/**
 * Latencies of small requests, one after the other every 2 ms, until `stop`. Time in which this
 * process was ready to go on and the joiner had its core is not the source's, and is taken off.
 */
function traffic(port: number): { stop(): Promise<number[]> } {
  const latencies: number[] = [];
  let isRunning = true;
  const done = (async () => {
    while (isRunning) {
      const waited = waitedMs() ?? 0;
      const before = performance.now();
      const response = await fetch(`http://127.0.0.1:${port}/ping`);
      await response.text();
      const ms = performance.now() - before;
      latencies.push(ms - ((waitedMs() ?? 0) - waited));
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
  })();
  return {
    async stop() {
      isRunning = false;
      await done;
      return latencies;
    },
  };
}

interface Measured {
  readonly ready_ms: number;
  readonly dump_ms: number;
  readonly source_over_index_mib: number;
  readonly joiner_over_index_mib: number;
  /** How much larger V8's heap is at the end; it grows with the work, also without a dump. */
  readonly source_heap_grown_mib: number;
  readonly joiner_heap_grown_mib: number;
  readonly source_cpu_ms: number;
  readonly joiner_cpu_ms: number;
  readonly source_turn_ms: number;
  readonly joiner_turn_ms: number;
  readonly source_stall_ms: number;
  readonly joiner_stall_ms: number;
  readonly dump_mib: number;
  readonly restored: number;
  readonly lanes_restored: number;
  readonly lanes_live: number;
  readonly differs: number;
}

interface Latencies {
  readonly quiet: number[];
  readonly dump: number[];
}

const number = (answer: Answer, field: string): number => Number(answer[field]);

async function measure(
  context: BenchContext,
  runtime: RuntimeName,
  blocks: number,
  latencies: Latencies,
): Promise<Measured> {
  const epoch = Date.now() - 60_000;
  const args = [String(blocks), String(LANES), String(RATE), String(epoch)];
  const source = new Replica(context, runtime, SOURCE_CORE, ["source", ...args]);
  let joiner: Replica | undefined;
  try {
    const started = await source.next();
    const port = number(started, "port");
    const url = `http://127.0.0.1:${port}`;
    await source.ask("live");
    joiner = new Replica(context, runtime, JOINER_CORE, ["joiner", ...args, url]);
    await joiner.next();
    await pause(300);
    const quiet = traffic(port);
    await pause(1000);
    latencies.quiet.push(...await quiet.stop());
    const before = await source.ask("reset");
    const busy = traffic(port);
    const recovered = await joiner.ask("recover");
    latencies.dump.push(...await busy.stop());
    const gave = await source.ask("figures");
    const first = (recovered.attempts as { ms: number }[])[0];
    // What they hold must be the same, block by block.
    const stopAt = Math.floor((Date.now() + 4_000 - epoch) / 1000 * RATE / 32 / LANES);
    await Promise.all([source.ask(`digest ${stopAt}`), joiner.ask(`digest ${stopAt}`)]);
    const [theirs, ours] = await Promise.all([source.ask("content"), joiner.ask("content")]);
    return {
      ready_ms: number(recovered, "ms"),
      dump_ms: first?.ms ?? NaN,
      source_over_index_mib: number(gave, "peakMiB") - number(before, "rssMiB"),
      joiner_over_index_mib: number(recovered, "peakMiB") - number(recovered, "rssBeforeMiB") -
        number(recovered, "indexMiB"),
      source_heap_grown_mib: number(gave, "heapGrownMiB"),
      joiner_heap_grown_mib: number(recovered, "heapGrownMiB"),
      source_cpu_ms: number(gave, "cpuMs"),
      joiner_cpu_ms: number(recovered, "cpuMs"),
      source_turn_ms: number(gave, "turnMs"),
      joiner_turn_ms: number(recovered, "turnMs"),
      source_stall_ms: number(gave, "stallMs"),
      joiner_stall_ms: number(recovered, "stallMs"),
      dump_mib: number(recovered, "bytes") / 2 ** 20,
      restored: number(recovered, "restored"),
      lanes_restored: (recovered.outcomes as { restored: number }).restored,
      lanes_live: number(ours, "live"),
      differs: theirs.sum === ours.sum && theirs.blocks === ours.blocks ? 0 : 1,
    };
  } finally {
    source.end();
    joiner?.end();
  }
}

type Field = keyof Measured;

function medians(rounds: readonly Measured[]): Measured {
  const fields = Object.keys(rounds[0] ?? {}) as Field[];
  const of = (field: Field): number => median(rounds.map((round) => round[field]));
  return Object.fromEntries(fields.map((field) => [field, of(field)])) as Record<Field, number>;
}

export async function run(context: BenchContext): Promise<BenchResult> {
  const figures: Record<string, number> = {};
  const limits: Record<string, Limit> = {};
  const systems: Record<string, Record<string, number>> = {};
  const at = context.args.indexOf("--blocks");
  const large = at === -1 ? 2_000_000 : Number(context.args[at + 1]);
  // Requests are made on the joiner's core: then nobody takes the source's from it.
  execFileSync("taskset", ["-a", "-cp", String(JOINER_CORE), String(process.pid)]);
  for (const runtime of context.runtimes) {
    const latencies: Latencies = { quiet: [], dump: [] };
    const rounds: Measured[] = [];
    for (let round = 1; round <= ROUNDS; round += 1) {
      context.say(`${runtime}: 1 M blocks, round ${round} of ${ROUNDS}`);
      rounds.push(await measure(context, runtime, 1_000_000, latencies));
    }
    context.say(`${runtime}: ${large / 1e6} M blocks`);
    const largeLatencies: Latencies = { quiet: [], dump: [] };
    const big = await measure(context, runtime, large, largeLatencies);
    const small = medians(rounds);
    const named = { ...percentiles(latencies), ...small };
    systems[`${runtime}_1m`] = named;
    systems[`${runtime}_${large / 1e6}m`] = { ...percentiles(largeLatencies), ...big };
    const most = (field: Field): number => Math.max(...rounds.map((round) => round[field]));
    const figure = (name: string, value: number, limit?: Limit): void => {
      figures[`${runtime}_${name}`] = value;
      if (limit !== undefined) limits[`${runtime}_${name}`] = limit;
    };
    figure("ready_ms", small.ready_ms, ["<=", 3000]);
    figure("source_over_index_mib", most("source_over_index_mib"), ["<=", 64]);
    figure("joiner_over_index_mib", most("joiner_over_index_mib"), ["<=", 64]);
    figure("traffic_p99_added_ms", named.dump_p99_ms - named.quiet_p99_ms, ["<=", 5]);
    figure("source_turn_ms", small.source_turn_ms, ["<=", 10]);
    figure("joiner_turn_ms", small.joiner_turn_ms, ["<=", 10]);
    figure("source_turn_most_ms", most("source_turn_ms"));
    figure("joiner_turn_most_ms", most("joiner_turn_ms"));
    const all = [...rounds, big];
    const lanes = (field: Field): number => Math.min(...all.map((one) => one[field]));
    figure("lanes_restored", lanes("lanes_restored"), ["==", LANES]);
    figure("lanes_live", lanes("lanes_live"), ["==", LANES]);
    figure("differs", all.reduce((sum, one) => sum + one.differs, 0), ["==", 0]);
    const ratio = (big.ready_ms / small.ready_ms) / (large / 1_000_000);
    figure("large_time_over_linear", ratio, ["<=", 1.5]);
    const cpu = big.joiner_cpu_ms / small.joiner_cpu_ms / (large / 1_000_000);
    figure("large_cpu_over_linear", cpu, ["<=", 1.5]);
    // Flat: what is over the index is garbage that waits for the collector, whatever the size.
    figure("large_source_over_index_mib", big.source_over_index_mib, ["<=", 128]);
    figure("large_joiner_over_index_mib", big.joiner_over_index_mib, ["<=", 128]);
  }
  return { figures, limits, systems };
}

function percentiles({ quiet, dump }: Latencies) {
  return {
    quiet_p50_ms: percentile(quiet, 0.5),
    quiet_p99_ms: percentile(quiet, 0.99),
    dump_p50_ms: percentile(dump, 0.5),
    dump_p99_ms: percentile(dump, 0.99),
    dump_requests: dump.length,
  };
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
