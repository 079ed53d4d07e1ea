/**
 * Whole Batons as processes, workers on real ZeroMQ sockets: a replica is killed and another one
 * joins, again and again, while events go on, get lost and workers restart. What the joiner has is
 * compared with what its peer has, block by block, out of their dumps.
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

/** Joiners one after the other; more for a long run by hand. */
const ROUNDS = Number(process.env.BATON_PROCESS_ROUNDS ?? 6);
/** Chooses other losses and sizes. */
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
  const body = await response.json() as { recovery_complete?: boolean };
  assert.is(body.recovery_complete, response.status === 200, "ready exactly when recovered");
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

test(`kv 42, 52: ${ROUNDS} joiners one after the other hold what their peer holds`, async () => {
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
      FakeEngine.start({ runtime, dialect, ringBatches: 5000 })
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
    replica: { peers },
  });
  const start = async (name: string, peers: readonly string[]) => {
    await mkdir(`${folder}/${name}`);
    const baton = await startBatonProcess(`${folder}/${name}`, config(peers));
    started.push(baton);
    return baton;
  };
  let peer = await start("first", []);
  await until(() => engines.every((engine) => engine.subscribers === 1), "subscriptions");
  await until(() => isReady(peer), "the first one to be ready");
  isBusy = true;
  const work = async (): Promise<void> => {
    while (isBusy) {
      for (const worker of workers) worker.step();
      await new Promise((resolve) => setTimeout(resolve, 4));
    }
  };
  let busy = work();
  for (let round = 0; round < ROUNDS; round += 1) {
    await new Promise((resolve) => setTimeout(resolve, 150));
    const joiner = await start(`round-${round}`, [peer.peer ?? ""]);
    if (round % 3 === 2) await workers[round % workers.length]?.restart();
    await until(() => isReady(joiner), "the joiner to be ready");
    // Its log comes over a pipe of its own, after the answer maybe.
    const finished = () => joiner.log.find(({ event }) => event === "recovery_finished");
    await until(() => finished() !== undefined, "the recovery's end in the log");
    assert.is(finished()?.state, "recovered", JSON.stringify(joiner.log.slice(-5)));
    // Calm for a moment, so that both have seen the same.
    isBusy = false;
    await busy;
    for (const worker of workers) worker.step();
    for (const { engine } of workers) engine.publish();
    await until(async () => {
      const [theirs, ours] = await Promise.all([dumpOf(peer), dumpOf(joiner)]);
      return theirs.size === workers.length && ours.size === workers.length &&
        [...theirs].every(([id, lane]) => ours.get(id)?.cursor === lane.cursor) &&
        [...theirs.values()].every((lane, at) =>
          BigInt(lane.cursor ?? -1) === (workers[at]?.engine.nextSeq ?? 0n) - 1n
        );
    }, "the same cursors");
    const [theirs, ours] = await Promise.all([dumpOf(peer), dumpOf(joiner)]);
    for (const [id, lane] of theirs) {
      assert.equal(ours.get(id), lane, `round ${round}, ${id}`);
      assert.is(lane.degraded, undefined);
    }
    // The old one goes without a word, the joiner is the peer of the next one.
    peer.signal("SIGKILL");
    await peer.exited;
    peer = joiner;
    isBusy = round + 1 < ROUNDS;
    busy = work();
  }
  assert.ok(workers.some((worker) => worker.lost > 0), "some batches were lost on the way");
  await peer.stop();
}

test.run();
