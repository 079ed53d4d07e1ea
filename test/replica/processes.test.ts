/**
 * Whole Batons as processes, workers on real ZeroMQ sockets: replicas are killed and others join, one
 * or several at a time, again and again, while events go on, get lost and workers restart. What each
 * joiner has is compared with what its peer has, block by block, out of their dumps.
 *
 * For a long run: BATON_PROCESS_JOINERS=100, and another BATON_PROCESS_SEED.
 */

import { mkdir } from "node:fs/promises";
import process from "node:process";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { laneId } from "../../src/kv/lane_key.ts";
import { readDump } from "../../src/replica/dump_reader.ts";
import { type BatonProcess, startBatonProcess } from "../support/baton_process.ts";
import { DIALECTS, FakeEngine } from "../support/fake_engine.ts";
import { runtime } from "../support/runtime.ts";
import { inScratch, until } from "../support/scratch.ts";
import { seeded } from "./support/sim_clock.ts";

const JOINERS = Number(process.env.BATON_PROCESS_JOINERS ?? 20);
/** Chooses other losses, sizes and moments. */
const SEED = Number(process.env.BATON_PROCESS_SEED ?? 11);

/** A worker that is busy: sequences begin, grow and go. */
class Busy {
  readonly engine: FakeEngine;
  readonly #chance: () => number;
  #held: bigint[] = [];
  #token = 1;
  lost = 0;

  constructor(engine: FakeEngine, chance: () => number) {
    this.engine = engine;
    this.#chance = chance;
  }

  step(): void {
    const { engine } = this;
    const count = 16 * (1 + Math.floor(this.#chance() * 6));
    const tokens = Array.from({ length: count }, () => this.#token++ % 50_000);
    const parent = this.#chance() < 0.6 ? this.#held.at(-1) : undefined;
    const salt = this.#chance() < 0.1 ? "tenant-a" : undefined;
    this.#held.push(...engine.store(tokens, {
      ...(parent === undefined ? {} : { parent }),
      ...(salt === undefined || parent !== undefined ? {} : { salt }),
    }));
    while (this.#held.length > 300) {
      engine.remove(this.#held.splice(0, 20));
    }
    if (this.#chance() < 0.05) {
      engine.lose();
      this.lost += 1;
    } else engine.publish();
  }

  async restart(): Promise<void> {
    this.#held = [];
    await this.engine.restart();
  }
}

interface Lane {
  readonly cursor: string | undefined;
  readonly degraded: string | undefined;
  readonly rows: string[];
}

async function dumpOf(baton: BatonProcess): Promise<Map<string, Lane>> {
  const response = await fetch(`${baton.peer}/dump`);
  assert.is(response.status, 200);
  const lanes = new Map<string, Lane>();
  await readDump(response.body as ReadableStream<Uint8Array>, {
    lane: () => true,
    commit: ({ key, cursor, degraded, blocks }) => {
      const rows = Array.from({ length: blocks.count }, (_, row) => {
        const parent = blocks.parents[row] as number;
        const above = parent < 0 ? "root" : blocks.engines[parent];
        return `${above} ${blocks.engines[row]} ${blocks.locals[row]} ${blocks.tiers[row]}`;
      });
      lanes.set(laneId(key), { cursor: cursor?.toString(), degraded, rows: rows.sort() });
    },
  }, { clock: runtime.clock, maxLaneBlocks: 1e6 });
  return lanes;
}

async function isReady(baton: BatonProcess): Promise<boolean> {
  const response = await fetch(`${baton.admin}/ready`);
  const { recovery_complete, conditions } = await response.json() as {
    recovery_complete?: boolean;
    conditions: { name: string; ok: boolean }[];
  };
  // Other conditions may be met later, at the very start.
  const others = conditions.filter(({ name }) => name !== "recovery").every(({ ok }) => ok);
  const isExact = response.status === 200 ? recovery_complete : !(recovery_complete && others);
  assert.ok(isExact, "ready exactly when recovered");
  return response.status === 200;
}

/** Whatever the test comes to: nothing of it stays behind. */
const started: BatonProcess[] = [];
const opened: FakeEngine[] = [];
let isBusy = false;

async function endAll(): Promise<void> {
  isBusy = false;
  for (const baton of started.splice(0)) {
    baton.signal("SIGKILL");
    await baton.exited;
  }
  for (const engine of opened.splice(0)) await engine.close();
}

test(`kv 42, 52: ${JOINERS} joiners, up to three at once, hold what their peers hold`, async () => {
  await inScratch(async (folder) => {
    try {
      await joinersInTurn(folder);
    } finally {
      await endAll();
    }
  });
});

async function joinersInTurn(folder: string): Promise<void> {
  const chance = seeded(SEED);
  const engines = await Promise.all(
    DIALECTS.slice(0, 3).map((dialect) =>
      FakeEngine.start({ runtime, dialect, ringBatches: 50_000 })
    ),
  );
  opened.push(...engines);
  const workers = engines.map((engine) => new Busy(engine, chance));
  const config = (peers: readonly string[]) => ({
    listen: { peer: "127.0.0.1:0" },
    services: {
      chat: {
        mount: "/v1",
        pool: {
          model: "org/model:7b",
          blockSize: 16,
          workers: engines.map((engine, id) => ({
            id: String(id),
            url: "http://127.0.0.1:9",
            kvEvents: engine.endpoint,
            replay: engine.replayEndpoint,
          })),
        },
      },
    },
    // One dump at a time: joiners that come together are sent to the other peer, or told to wait.
    replica: { peers, maxDumps: 1 },
  });
  const start = async (name: string, peers: readonly string[]) => {
    await mkdir(`${folder}/${name}`);
    const baton = await startBatonProcess(`${folder}/${name}`, config(peers));
    started.push(baton);
    return baton;
  };
  /** Those that the next joiners ask; at most two. */
  let peers = [await start("first", [])];
  await until(() => engines.every((engine) => engine.subscribers > 0), "subscriptions");
  await until(() => isReady(peers[0] as BatonProcess), "the first one to be ready");
  isBusy = true;
  const work = async (): Promise<void> => {
    while (isBusy) {
      for (const worker of workers) worker.step();
      await new Promise((resolve) => setTimeout(resolve, 4));
    }
  };
  let busy = work();
  let joined = 0;
  for (let round = 0; joined < JOINERS; round += 1) {
    await new Promise((resolve) => setTimeout(resolve, 50 + chance() * 150));
    const count = Math.min(1 + round % 3, JOINERS - joined);
    const urls = peers.map(({ peer }) => peer ?? "");
    const starting = Array.from({ length: count }, (_, at) => start(`r${round}-${at}`, urls));
    if (round % 3 === 2) await workers[round % workers.length]?.restart();
    const joiners = await Promise.all(starting);
    joined += count;
    if (round % 4 === 3 && peers.length > 1) {
      // One of the sources dies while others recover from it.
      await new Promise((resolve) => setTimeout(resolve, chance() * 60));
      await kill(peers.shift() as BatonProcess);
    }
    for (const joiner of joiners) {
      await until(() => isReady(joiner), "the joiner to be ready");
      // Its log comes over a pipe of its own, after the answer maybe.
      const finished = () => joiner.log.find(({ event }) => event === "recovery_finished");
      await until(() => finished() !== undefined, "the recovery's end in the log");
      assert.is(finished()?.state, "recovered", JSON.stringify(joiner.log.slice(-5)));
    }
    // Calm for a moment, so that all have seen the same.
    isBusy = false;
    await busy;
    for (const worker of workers) worker.step();
    for (const { engine } of workers) engine.publish();
    const last = workers.map(({ engine }) => (engine.nextSeq - 1n).toString());
    let dumps: Map<string, Lane>[] = [];
    await until(async () => {
      dumps = await Promise.all([...peers, ...joiners].map(dumpOf));
      return dumps.every((dump) =>
        [...dump.values()].map(({ cursor }) => cursor).join() === last.join()
      );
    }, "the same cursors");
    const [theirs, ...others] = dumps as [Map<string, Lane>, ...Map<string, Lane>[]];
    assert.is(theirs.size, workers.length);
    for (const ours of others) {
      for (const [id, lane] of theirs) {
        assert.equal(ours.get(id), lane, `round ${round}, ${id}`);
        assert.is(lane.degraded, undefined);
      }
    }
    // The old ones go without a word, the joiners are the peers of the next ones.
    for (const old of peers) await kill(old);
    for (const more of joiners.slice(2)) await kill(more);
    peers = joiners.slice(0, 2);
    isBusy = joined < JOINERS;
    busy = work();
  }
  assert.ok(workers.some((worker) => worker.lost > 0), "some batches were lost on the way");
  for (const peer of peers) await peer.stop();
}

async function kill(baton: BatonProcess): Promise<void> {
  baton.signal("SIGKILL");
  await baton.exited;
}

test.run();
