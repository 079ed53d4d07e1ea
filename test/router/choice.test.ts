import { test } from "uvu";
import * as assert from "uvu/assert";
import { BatonError } from "../../src/errors.ts";
import { type Candidate, choose } from "../../src/router/choice.ts";
import { costOf, DEFAULT_WEIGHTS, NO_OVERLAP, poolWeights } from "../../src/router/cost.ts";

const PROMPT = { tokens: 160, blockSize: 16 };
const NEVER = () => {
  throw new Error("nothing to draw");
};

function overlap(device: number, host = device, disk = host, external = disk) {
  return { device, host, disk, external };
}

function busy(prefillTokens: number, decodeBlocks = 0, requests = 0) {
  return { prefillTokens, decodeBlocks, requests };
}

function candidate(worker: string, rest: Partial<Candidate> = {}): Candidate {
  return { worker, dpRank: 0, ...rest };
}

/** A small generator, so that draws are the same in every run. */
function seeded(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

function codeOf(action: () => unknown): string {
  try {
    action();
  } catch (error) {
    if (error instanceof BatonError) return `${error.code} ${error.detail.reason}`;
    throw error;
  }
  throw new Error("it did not throw");
}

function cost(
  load: ReturnType<typeof busy> | undefined,
  held: ReturnType<typeof overlap>,
  weights = {},
  least = 0,
  taints = 0,
) {
  return costOf(load, held, PROMPT, { ...DEFAULT_WEIGHTS, ...weights }, least, taints);
}

test("kv 210: ten blocks of prefill, overlaps 2, 5, 8 and decode loads 10, 5, 9 cost 18, 10, 11", () => {
  // The request's own ten blocks are in the example's decode loads.
  const costs = [[2, 10], [5, 5], [8, 9]].map(([held = 0, decode = 0]) =>
    cost(busy(0, decode - 10), overlap(held)).total
  );
  assert.equal(costs, [18, 10, 11]);
});

test("the cost adds queued prefill, uncached blocks and decode blocks", () => {
  assert.is(cost(undefined, NO_OVERLAP).total, 20);
  assert.is(cost(busy(320), NO_OVERLAP).total, 40);
  assert.is(cost(busy(320, 7), overlap(4)).total, 43);
  assert.is(cost(busy(0), overlap(10)).total, 10);
  assert.is(cost(busy(320, 7, 3), overlap(4), { activeRequestWeight: 2 }).total, 49);
  assert.is(cost(busy(320), overlap(4), { prefillScale: 2 }).total, 62);
});

test("slower tiers are credited for what they add only", () => {
  const held = overlap(2, 6, 8, 10);
  assert.is(cost(undefined, held).credit, 2 + 0.75 * 4 + 0.25 * 2);
  assert.is(cost(undefined, held, { externalCredit: 0.1 }).credit, 5.5 + 0.2);
  assert.is(cost(undefined, held).prefillTokens, 160 - 88);
});

test("the tokens to prefill come from the weighted credit and are never negative", () => {
  assert.is(cost(undefined, overlap(0, 4)).prefillTokens, 160 - 48);
  assert.is(cost(undefined, overlap(10), { deviceCredit: 2 }).prefillTokens, 0);
});

test("the credit fades as the worker's queue outgrows the shortest one", () => {
  const weights = { creditDecay: 1 };
  assert.is(cost(busy(0), overlap(8), weights).credit, 8);
  assert.is(cost(busy(160), overlap(8), weights).credit, 4);
  assert.is(cost(busy(320), overlap(8), weights, 160).credit, 4);
  assert.is(cost(busy(160), overlap(8, 10), weights).credit, 4 + 1.5);
});

test("a pool that only decodes credits overlap against decode blocks", () => {
  const weights = { trackPrefill: false };
  assert.is(cost(busy(5_000, 5), NO_OVERLAP, weights).total, 15);
  assert.is(cost(busy(5_000, 5), overlap(4), weights).total, 11);
  assert.is(cost(busy(0, 0), overlap(10), { ...weights, deviceCredit: 3 }).total, 0);
});

test("a pool's weights favour held blocks, and book what has to be computed all the same", () => {
  const weights = poolWeights(16);
  const { total, prefillTokens } = cost(busy(160, 90, 2), overlap(4, 8), weights);
  // Queued and own prefill, minus twice the credit, plus a fiftieth of the decode blocks, plus 16
  // blocks for each request.
  assert.is(total, 10 + 10 - 2 * 7 + 0.02 * 100 + 2 * 16);
  assert.is(prefillTokens, 160 - 7 * 16);
  assert.is(poolWeights(512).activeRequestWeight, 0.5);
});

test("kv 211: the shortest queue is looked for only when it matters", () => {
  let reads = 0;
  const load = {
    get prefillTokens() {
      reads += 1;
      return 0;
    },
    decodeBlocks: 0,
    requests: 0,
  };
  choose([candidate("a", { load })], PROMPT, {}, NEVER);
  const plain = reads;
  choose([candidate("a", { load })], PROMPT, { weights: { creditDecay: 1 } }, NEVER);
  assert.is(plain, 1);
  assert.is(reads - plain, 2);
});

test("the least cost wins and no draw is made", () => {
  const { candidate: chosen, reason } = choose(
    [candidate("a"), candidate("b", { overlap: overlap(3) }), candidate("c", { load: busy(16) })],
    PROMPT,
    {},
    NEVER,
  );
  assert.is(chosen.worker, "b");
  assert.is(reason, "cost");
});

test("kv 202: ties go to each of the tied, about equally often", () => {
  const random = seeded(7);
  const counts = new Map<string, number>();
  for (let i = 0; i < 3_000; i++) {
    const names = ["a", "b", "c", "dear"].map((name) =>
      candidate(name, { load: busy(name === "dear" ? 16 : 0) })
    );
    const { worker } = choose(names, PROMPT, {}, random).candidate;
    counts.set(worker, (counts.get(worker) ?? 0) + 1);
  }
  assert.equal([...counts.keys()].sort(), ["a", "b", "c"]);
  for (const count of counts.values()) assert.ok(count > 850 && count < 1_150, String(count));
});

test("near ties are ties within the tolerance", () => {
  const near = [
    candidate("a", { load: busy(16) }),
    candidate("b"),
    candidate("c", { load: busy(64) }),
  ];
  const random = seeded(3);
  const options = { tieTolerance: 1 };
  const seen = new Set(
    Array.from({ length: 100 }, () => choose(near, PROMPT, options, random).candidate.worker),
  );
  assert.equal([...seen].sort(), ["a", "b"]);
});

test("kv 203: what a seed draws does not depend on the order of the candidates", () => {
  const names = ["d", "a", "c", "b"];
  for (const temperature of [0, 1]) {
    for (let seed = 0; seed < 50; seed++) {
      const pick = (order: string[]) =>
        choose(order.map((name) => candidate(name)), PROMPT, { temperature }, seeded(seed))
          .candidate.worker;
      assert.is(pick(names), pick([...names].reverse()));
    }
  }
});

test("kv 204: extreme costs do not overflow", () => {
  const loads = [1e308, -1e308, 0, 5e307];
  const candidates = loads.map((blocks, i) => candidate(`w${i}`, { load: busy(0, blocks) }));
  assert.is(choose(candidates, PROMPT, {}, NEVER).candidate.worker, "w1");
  const random = seeded(5);
  const counts = new Map<string, number>();
  for (let i = 0; i < 4_000; i++) {
    const { worker } = choose(candidates, PROMPT, { temperature: 1 }, random).candidate;
    counts.set(worker, (counts.get(worker) ?? 0) + 1);
  }
  // Odds e^-1, e^0, e^-0.5, e^-0.75 of a sum of 2.447.
  for (
    const [worker, share] of [["w0", 0.15], ["w1", 0.409], ["w2", 0.248], ["w3", 0.193]] as const
  ) {
    assert.ok(Math.abs((counts.get(worker) ?? 0) / 4_000 - share) < 0.03, worker);
  }
});

test("a low temperature takes the best, equal costs are drawn evenly at any", () => {
  const random = seeded(9);
  const graded = [candidate("a"), candidate("b", { load: busy(160) })];
  for (let i = 0; i < 200; i++) {
    assert.is(choose(graded, PROMPT, { temperature: 0.01 }, random).candidate.worker, "a");
  }
  const equal = [candidate("a"), candidate("b")];
  let first = 0;
  for (let i = 0; i < 2_000; i++) {
    if (choose(equal, PROMPT, { temperature: 0.01 }, random).candidate.worker === "a") first += 1;
  }
  assert.ok(first > 900 && first < 1_100, String(first));
  assert.is(choose(graded, PROMPT, { temperature: 1 }, () => 1 - 2 ** -53).candidate.worker, "b");
});

test("kv 205: each weight can change the choice", () => {
  const pick = (a: Partial<Candidate>, b: Partial<Candidate>, weights = {}) =>
    choose([candidate("a", a), candidate("b", b)], PROMPT, { weights }, seeded(1)).candidate.worker;
  const holder = { overlap: overlap(4), load: busy(0, 3) };
  assert.is(pick(holder, {}), "a");
  assert.is(pick(holder, {}, { deviceCredit: 0.5 }), "b");
  assert.is(pick(holder, {}, { prefillScale: 0.5 }), "b");
  const hosted = { overlap: overlap(0, 4), load: busy(0, 2) };
  assert.is(pick(hosted, {}), "a");
  assert.is(pick(hosted, {}, { hostCredit: 0.25 }), "b");
  const onDisk = { overlap: overlap(0, 0, 4), load: busy(0, 2) };
  assert.is(pick(onDisk, {}), "b");
  assert.is(pick(onDisk, {}, { diskCredit: 0.75 }), "a");
  const queued = { overlap: overlap(10), load: busy(144) };
  assert.is(pick(queued, {}), "a");
  assert.is(pick(queued, {}, { creditDecay: 2 }), "b");
  assert.is(pick(queued, { load: busy(0, 0) }, { trackPrefill: false }), "a");
  assert.is(pick({ load: busy(0, 0, 2) }, { load: busy(0, 1, 0) }), "a");
  assert.is(
    pick({ load: busy(0, 0, 2) }, { load: busy(0, 1, 0) }, { activeRequestWeight: 1 }),
    "b",
  );
});

test("kv 206: the best worker is passed over while it is full, all full is 429, none at all 503", () => {
  const best = candidate("a", { overlap: overlap(9), overloaded: true });
  assert.is(choose([best, candidate("b")], PROMPT, {}, NEVER).candidate.worker, "b");
  assert.is(
    codeOf(() => choose([best], PROMPT, {}, NEVER)),
    "too_many_requests all_workers_overloaded",
  );
  assert.is(codeOf(() => choose([], PROMPT, {}, NEVER)), "no_worker no_endpoints");
});

test("kv 206: a pinned worker that is full is an error, never another worker", () => {
  const full = candidate("a", { overloaded: true });
  const pinned = { worker: "a" };
  assert.is(
    codeOf(() => choose([full, candidate("b")], PROMPT, { pinned }, NEVER)),
    "too_many_requests pinned_worker_overloaded",
  );
  assert.is(
    codeOf(() => choose([candidate("b")], PROMPT, { pinned }, NEVER)),
    "no_worker no_endpoints",
  );
});

test("a pin without a rank takes the cheapest rank of the worker", () => {
  const ranks = [0, 1, 2].map((dpRank) => ({
    worker: "a",
    dpRank,
    load: busy(160 * (3 - dpRank)),
  }));
  const all = [...ranks, candidate("b")];
  const free = choose(all, PROMPT, { pinned: { worker: "a" } }, NEVER);
  assert.equal([free.candidate.dpRank, free.reason], [2, "pinned"]);
  const exact = choose(all, PROMPT, { pinned: { worker: "a", dpRank: 1 } }, NEVER);
  assert.is(exact.candidate.dpRank, 1);
});

test("kv 207: the preferred worker is used until it is full, then the cheapest", () => {
  const preferred = { worker: "b", dpRank: 0 };
  const held = candidate("a", { overlap: overlap(9) });
  const chosen = choose([held, candidate("b")], PROMPT, { preferred }, NEVER);
  assert.equal([chosen.candidate.worker, chosen.reason], ["b", "preferred"]);
  const full = candidate("b", { overloaded: true });
  const other = choose([held, full], PROMPT, { preferred }, NEVER);
  assert.equal([other.candidate.worker, other.reason], ["a", "cost"]);
});

test("kv 208: required taints and allow-lists filter, none left is no_worker", () => {
  const taints = new Set(["zone-a", "large"]);
  const tainted = candidate("a", { taints, load: busy(1_600) });
  const all = [tainted, candidate("b")];
  assert.is(choose(all, PROMPT, { requiredTaints: ["large"] }, NEVER).candidate.worker, "a");
  const allowed = new Set(["a"]);
  assert.is(choose(all, PROMPT, { allowed }, NEVER).candidate.worker, "a");
  assert.is(
    codeOf(() => choose(all, PROMPT, { requiredTaints: ["large", "none"] }, NEVER)),
    "no_worker no_endpoints",
  );
  assert.is(
    codeOf(() => choose(all, PROMPT, { allowed: new Set(["z"]) }, NEVER)),
    "no_worker no_endpoints",
  );
});

test("kv 209: a preferred taint of 0.85 makes 100 beat 90, one of -0.25 makes 90 lose to 100", () => {
  const taints = new Set(["zone"]);
  const of = (a: number, b: number, weight: number) =>
    choose(
      [
        candidate("a", { taints, load: busy(0, a - 20) }),
        candidate("b", { load: busy(0, b - 20) }),
      ],
      PROMPT,
      { preferredTaints: { zone: weight } },
      NEVER,
    ).candidate.worker;
  assert.is(of(100, 90, 0.85), "a");
  assert.is(of(100, 90, 0), "b");
  assert.is(of(90, 100, -0.25), "b");
  assert.is(of(90, 100, 0), "a");
  const bounded = cost(undefined, NO_OVERLAP, {}, 0, 1e9).total / 20;
  assert.ok(Math.abs(bounded - Math.exp(-1)) < 1e-9);
});

test("one full worker changes nothing for the others", () => {
  const holders = [
    candidate("a", { overlap: overlap(9), overloaded: true }),
    candidate("b", { overlap: overlap(8) }),
    candidate("c"),
  ];
  assert.is(choose(holders, PROMPT, {}, NEVER).candidate.worker, "b");
});

test.run();
