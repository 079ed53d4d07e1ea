import { spawnSync } from "node:child_process";
import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import {
  moveProcess,
  type ProcessEvent,
  type ProcessState,
  SupervisedProcess,
} from "../../src/supervisor/process.ts";
import { runtime } from "../support/runtime.ts";
import { until } from "./harness.ts";

const STATES: ProcessState[] = ["running", "terminating", "killing", "exited"];
const EVENTS: ProcessEvent[] = ["stop", "force", "grace_expired", "exited"];

test("case 135: the transition table is that of the reference, all 16 entries", () => {
  const table = Object.fromEntries(
    STATES.map((state) => [state, EVENTS.map((event) => moveProcess(state, event)?.to ?? "-")]),
  );
  assert.equal(table, {
    running: ["terminating", "killing", "-", "exited"],
    terminating: ["-", "killing", "killing", "exited"],
    killing: ["-", "-", "-", "exited"],
    exited: ["-", "-", "-", "-"],
  });
});

test("case 136: every action fits the state it leads to, and every live state can end", () => {
  const actionOf = { terminating: "terminate", killing: "kill", exited: "finish" } as const;
  for (const state of STATES) {
    for (const event of EVENTS) {
      const move = moveProcess(state, event);
      if (move === undefined || move.to === "running") continue;
      assert.is(move.action, actionOf[move.to]);
    }
    if (state !== "exited") assert.is(moveProcess(state, "exited")?.to, "exited");
  }
});

test("whatever happens in whatever order, a process only goes forward and ends by being reaped", () => {
  fc.assert(
    fc.property(fc.array(fc.constantFrom(...EVENTS), { maxLength: 30 }), (events) => {
      let state: ProcessState = "running";
      let kills = 0;
      for (const event of events) {
        const move = moveProcess(state, event);
        if (move === undefined) continue;
        assert.ok(STATES.indexOf(move.to) > STATES.indexOf(state));
        if (move.to === "exited") assert.is(event, "exited");
        if (move.action === "kill") kills += 1;
        state = move.to;
      }
      assert.ok(kills <= 1);
      assert.is(state === "exited", events.includes("exited"));
    }),
    { seed: 20_260_101, numRuns: 500 },
  );
});

async function start(script: string) {
  let output = "";
  const moves: string[] = [];
  const child = await runtime.processes.spawn({
    command: "/bin/sh",
    args: ["-c", script],
    env: { PATH: runtime.env().PATH ?? "" },
    onOutput: (_stream, chunk) => {
      output += new TextDecoder().decode(chunk);
    },
  });
  const supervised = new SupervisedProcess({
    child,
    clock: runtime.clock,
    onMove: (from, to, cause) => moves.push(`${from} ${to} ${cause}`),
  });
  await until(() => output.includes("up"), "the child's first line");
  return { supervised, moves, output: () => output };
}

function isAlive(pid: number): boolean {
  return spawnSync("kill", ["-0", String(pid)]).status === 0;
}

test("case 137: a process that ends by itself is exited, not escalated, reaped", async () => {
  const { supervised, moves } = await start("echo up; exit 3");
  const result = await supervised.exited;
  assert.is(result.code, 3);
  assert.is(result.escalated, false);
  assert.is(result.natural, true);
  assert.is(supervised.state, "exited");
  assert.equal(moves, ["running exited exited"]);
  assert.not(isAlive(supervised.pid));
});

test("case 138: force kills a process that ignores SIGTERM", async () => {
  const { supervised, moves } = await start("trap '' TERM; echo up; while :; do sleep 0.05; done");
  supervised.force();
  const result = await supervised.exited;
  assert.is(result.signal, "SIGKILL");
  assert.is(result.escalated, true);
  assert.is(result.natural, false);
  assert.equal(moves, ["running killing force", "killing exited exited"]);
  assert.not(isAlive(supervised.pid));
});

test("case 139: a process that honours SIGTERM ends cleanly, not escalated", async () => {
  const { supervised } = await start(
    "trap 'exit 0' TERM; echo up; while :; do sleep 0.02; done",
  );
  supervised.stop(10_000);
  supervised.stop(0);
  const result = await supervised.exited;
  assert.is(result.code, 0);
  assert.is(result.escalated, false);
});

test("case 140: SIGKILL comes only after the grace, and once", async () => {
  const { supervised, moves } = await start("trap '' TERM; echo up; while :; do sleep 0.02; done");
  const startMs = runtime.clock.monotonic();
  supervised.stop(100);
  const result = await supervised.exited;
  assert.ok(runtime.clock.monotonic() - startMs >= 50);
  assert.is(result.signal, "SIGKILL");
  assert.is(result.escalated, true);
  assert.equal(moves, [
    "running terminating stop",
    "terminating killing grace_expired",
    "killing exited exited",
  ]);
});

test("what a child left in its group goes with it when it is reaped", async () => {
  const { supervised, output } = await start(
    "(trap '' TERM HUP; while :; do sleep 0.05; done) & echo up $!; exit 0",
  );
  await supervised.exited;
  const helper = Number(/up (\d+)/.exec(output())?.[1]);
  assert.ok(helper > 1);
  // A zombie that nobody reaps still answers to signal 0; the group's live members are what counts.
  await until(async () => (await runtime.processes.groupMembers(supervised.pid)).length === 0);
});

test.run();
