import { test } from "uvu";
import * as assert from "uvu/assert";
import { until, withHarness } from "./harness.ts";

test(
  "a published build is started, served, and replaced without a gap by the next one",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    const slow = h.get("/v1/slow?ms=700");
    await until(() => h.supervisor.generations().some((one) => one.leases > 0));
    await h.publish("v1", { id: "two" });
    await h.serves("v1", "two");
    assert.equal((await slow).text, "one");
    const report = await h.event("drain_report");
    assert.is(report.cut, 0);
    assert.is(report.finished, report.leases);
    assert.ok(Number(report.finished) >= 1);
    await until(() => h.supervisor.generations().length === 1);
  }),
);

test.run();
