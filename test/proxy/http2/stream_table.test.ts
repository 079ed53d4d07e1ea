import { test } from "uvu";
import * as assert from "uvu/assert";
import fc from "fast-check";
import { StreamTable } from "../../../src/proxy/http2/stream_table.ts";

test("the table of streams holds what a map would hold, long-lived streams among short ones", () => {
  const lifetimes = fc.array(fc.oneof(fc.constant(1), fc.nat(400)), { maxLength: 300 });
  fc.assert(
    fc.property(lifetimes, (lives) => {
      const table = new StreamTable<{ readonly id: number; readonly endsAt: number }>();
      const map = new Map<number, { readonly id: number; readonly endsAt: number }>();
      lives.forEach((life, at) => {
        const stream = { id: 2 * at + 1, endsAt: at + life };
        table.add(stream);
        map.set(stream.id, stream);
        for (const { id, endsAt } of [...map.values()]) {
          if (endsAt > at) continue;
          table.delete(id);
          table.delete(id);
          map.delete(id);
        }
        assert.is(table.size, map.size);
        for (let id = 1; id <= stream.id + 2; id += 2) assert.is(table.get(id), map.get(id));
      });
      assert.equal(new Set(table.all()), new Set(map.values()));
    }),
    { seed: 7, numRuns: 60 },
  );
});

test.run();
