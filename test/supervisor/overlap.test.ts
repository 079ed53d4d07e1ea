import { test } from "uvu";
import * as assert from "uvu/assert";
import { overlapAllowed } from "../../src/supervisor/overlap.ts";

const devshard = { binaryName: "devshardd", overlap: undefined };
const mode = (storageMode: string) => ({ storageMode });

test("case 50: devshard, mode of the running child unknown: no overlap", () => {
  assert.is(overlapAllowed(devshard, mode(""), mode("postgres")), false);
});

test("case 51: devshard, hybrid to postgres: no overlap", () => {
  assert.is(overlapAllowed(devshard, mode("hybrid"), mode("postgres")), false);
});

test("case 52: devshard, postgres to unknown: no overlap", () => {
  assert.is(overlapAllowed(devshard, mode("postgres"), mode("")), false);
});

test("case 53: devshard, postgres to hybrid: no overlap", () => {
  assert.is(overlapAllowed(devshard, mode("postgres"), mode("hybrid")), false);
});

test("case 54: devshard, both postgres: overlap", () => {
  assert.is(overlapAllowed(devshard, mode("postgres"), mode("postgres")), true);
  assert.is(
    overlapAllowed(
      { binaryName: "devshard", overlap: undefined },
      mode("postgres"),
      mode("postgres"),
    ),
    true,
  );
});

test("case 55: another binary, nothing known: overlap", () => {
  assert.is(overlapAllowed({ binaryName: "app", overlap: undefined }, mode(""), mode("")), true);
});

test("only the exact word counts", () => {
  for (const near of ["Postgres", "postgres ", "postgresql"]) {
    assert.is(overlapAllowed(devshard, mode(near), mode("postgres")), false, near);
  }
});

test("what is configured wins over what the binary is called", () => {
  assert.is(
    overlapAllowed({ binaryName: "devshard", overlap: "always" }, mode(""), mode("")),
    true,
  );
  assert.is(
    overlapAllowed({ binaryName: "app", overlap: "never" }, mode("postgres"), mode("postgres")),
    false,
  );
  assert.is(overlapAllowed({ binaryName: "app", overlap: "ask" }, mode(""), mode("")), false);
});

test.run();
