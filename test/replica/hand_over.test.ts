/** Recovery from a peer over real HTTP, with the real store and index on both sides. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Lane } from "../../src/kv/lane.ts";
import { contentOf, laneKey, sourceReplica, store, testReplica } from "./support/replica.ts";

const KEYS = [laneKey("0"), laneKey("1"), laneKey("1", { dpRank: 1 })];

test("a joiner takes over every lane of its peer, cursor and all", async () => {
  const source = await sourceReplica({ lanes: KEYS });
  for (const [at, key] of KEYS.entries()) {
    const lane = source.store.lane(key) as Lane;
    store(lane, 0, BigInt(at + 1), 0, 100);
    store(lane, 1, BigInt(at + 1), 100, 30);
    store(lane, 2, BigInt(at + 7), 0, 5);
  }
  const joiner = await testReplica({ lanes: KEYS, peers: [source.url] });
  joiner.recovery.start();
  try {
    assert.is(await joiner.recovery.done, "recovered");
    for (const key of KEYS) {
      const theirs = source.store.lane(key) as Lane;
      const ours = joiner.store.lane(key) as Lane;
      assert.equal(contentOf(ours), contentOf(theirs));
      assert.is(ours.cursor, 2n);
      assert.is(ours.epoch, theirs.epoch);
    }
    const status = joiner.recovery.status();
    assert.is(status.lanes.restored, 3);
    assert.is(status.blocks, 3 * 135);
    assert.is(joiner.conditions.at(-1)?.ok, true);
  } finally {
    await joiner.close();
    await source.close();
  }
});

test.run();
