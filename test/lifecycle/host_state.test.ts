import { test } from "uvu";
import * as assert from "uvu/assert";
import fc from "fast-check";
import {
  HOST_STATES,
  type HostEvent,
  type HostState,
  isAccepting,
  isServing,
  mayMove,
  nextHostState,
} from "../../src/lifecycle/mod.ts";

const run = (events: HostEvent[], from: HostState = "starting"): HostState =>
  events.reduce(nextHostState, from);

const AVAILABLE: HostEvent = { kind: "available" };
const DRAIN: HostEvent = { kind: "drain", announce: false };
const ANNOUNCE: HostEvent = { kind: "drain", announce: true };
const ANNOUNCED: HostEvent = { kind: "announced" };
const STOP: HostEvent = { kind: "stop" };
const FORCE: HostEvent = { kind: "force" };
const REAPED: HostEvent = { kind: "reaped" };
const EVENTS = [AVAILABLE, DRAIN, ANNOUNCE, ANNOUNCED, STOP, FORCE, REAPED];

test("case 169: a host starts, serves, drains, stops, and a stopped one never serves again", () => {
  assert.is(run([AVAILABLE]), "serving");
  assert.is(run([AVAILABLE, DRAIN]), "draining");
  assert.is(run([AVAILABLE, DRAIN, STOP]), "stopping");
  assert.is(run([AVAILABLE, DRAIN, STOP, REAPED]), "stopped");
  assert.is(run([AVAILABLE], "stopped"), "stopped");
});

test("case 170: exactly the moves of the table are allowed, and none to the state itself", () => {
  const allowed: Record<HostState, HostState[]> = {
    starting: ["serving", "draining", "forcing"],
    serving: ["announcing", "draining", "forcing"],
    announcing: ["draining", "forcing"],
    draining: ["stopping", "forcing"],
    stopping: ["stopped", "forcing"],
    forcing: ["stopped"],
    stopped: [],
  };
  for (const from of HOST_STATES) {
    for (const to of HOST_STATES) {
      assert.is(mayMove(from, to), allowed[from].includes(to), `${from} -> ${to}`);
    }
  }
});

test("case 171: serving and announcing take work, only serving is ready, stopped goes nowhere", () => {
  for (const state of HOST_STATES) {
    assert.is(isAccepting(state), state === "serving" || state === "announcing", state);
    assert.is(isServing(state), state === "serving", state);
    if (isServing(state)) assert.ok(isAccepting(state));
  }
  for (const event of EVENTS) assert.is(nextHostState("stopped", event), "stopped");
});

test("case 172: any host that is not stopped can be forced, and then only stops", () => {
  for (const from of ["starting", "serving", "draining", "stopping", "announcing"] as const) {
    assert.is(nextHostState(from, FORCE), "forcing");
  }
  for (const event of EVENTS) {
    assert.is(nextHostState("forcing", event), event === REAPED ? "stopped" : "forcing");
  }
});

test("case 221: a host that never served does not announce", () => {
  assert.is(run([ANNOUNCE]), "draining");
  assert.is(run([AVAILABLE, ANNOUNCE]), "announcing");
});

test("whatever happens, each step is a move of the table and admission never opens twice", () => {
  fc.assert(
    fc.property(fc.array(fc.constantFrom(...EVENTS), { maxLength: 40 }), (events) => {
      let state: HostState = "starting";
      let wasOpen = false;
      let closedAgain = false;
      for (const event of events) {
        const next = nextHostState(state, event);
        if (next !== state) assert.ok(mayMove(state, next), `${state} -> ${next}`);
        const open = isAccepting(next);
        if (wasOpen && !open) closedAgain = true;
        assert.not(closedAgain && open, "admission was opened again");
        wasOpen = open;
        state = next;
      }
    }),
    { seed: 2204, numRuns: 2000 },
  );
});

test("events that mean nothing in a state leave it alone", () => {
  assert.is(nextHostState("serving", STOP), "serving");
  assert.is(nextHostState("serving", REAPED), "serving");
  assert.is(nextHostState("starting", ANNOUNCED), "starting");
  assert.is(nextHostState("draining", AVAILABLE), "draining");
});

test.run();
