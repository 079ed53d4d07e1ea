import { test } from "uvu";
import * as assert from "uvu/assert";
import { createMetrics } from "../../src/observe/metrics.ts";
import { observeProcess } from "../../src/observe/process_metrics.ts";
import { runtime } from "../support/runtime.ts";

/** The sample lines of one metric. */
async function samples(metrics: ReturnType<typeof createMetrics>, name: string): Promise<string[]> {
  const lines = (await metrics.text()).split("\n");
  return lines.filter((line) => line.startsWith(`${name}{`) || line.startsWith(`${name} `));
}

test("counters, gauges and histograms are printed with their labels", async () => {
  const metrics = createMetrics();
  const requests = metrics.counter("requests_total", "Requests.", ["service"]);
  requests.inc({ service: "a" });
  requests.inc({ service: "a" }, 2);
  requests.with({ service: "b" }).inc();
  assert.equal(await samples(metrics, "requests_total"), [
    'requests_total{service="a"} 3',
    'requests_total{service="b"} 1',
  ]);
  const open = metrics.gauge("open", "Open.");
  open.set(5);
  open.add(-2);
  assert.equal(await samples(metrics, "open"), ["open 3"]);
  const seconds = metrics.histogram("seconds", "Time.", ["service"], [0.1, 1]);
  seconds.observe(0.5, { service: "a" });
  seconds.with({ service: "a" }).observe(0.05);
  assert.equal(await samples(metrics, "seconds_bucket"), [
    'seconds_bucket{le="0.1",service="a"} 1',
    'seconds_bucket{le="1",service="a"} 2',
    'seconds_bucket{le="+Inf",service="a"} 2',
  ]);
});

test("the same metric asked for twice is one metric", async () => {
  const metrics = createMetrics();
  metrics.counter("x_total", "X.").inc();
  metrics.counter("x_total", "X.").inc();
  assert.equal(await samples(metrics, "x_total"), ["x_total 2"]);
});

test("two registries do not know of each other", async () => {
  const one = createMetrics();
  const two = createMetrics();
  one.counter("x_total", "X.").inc();
  assert.equal(await samples(two, "x_total"), []);
});

test("label values that a client can invent end up as one series", async () => {
  const metrics = createMetrics({ maxSeries: 3 });
  const seen = metrics.counter("seen_total", "Seen.", ["name"]);
  for (let index = 0; index < 1000; index += 1) seen.inc({ name: `n${index}` });
  seen.inc({ name: "n1" });
  assert.equal(await samples(metrics, "seen_total"), [
    'seen_total{name="n0"} 1',
    'seen_total{name="n1"} 2',
    'seen_total{name="n2"} 1',
    'seen_total{name="other"} 997',
  ]);
});

test("a gauge that is collected shows what exists at the scrape and nothing older", async () => {
  const metrics = createMetrics();
  const workers = new Map([["a", 1], ["b", 2]]);
  metrics.gauge("leases", "Leases.", ["worker"]).collect((gauge) => {
    for (const [worker, leases] of workers) gauge.set(leases, { worker });
  });
  assert.is((await samples(metrics, "leases")).length, 2);
  workers.delete("a");
  assert.equal(await samples(metrics, "leases"), ['leases{worker="b"} 2']);
});

test("of several who read one gauge each adds its own", async () => {
  const metrics = createMetrics();
  for (const service of ["a", "b"]) {
    metrics.gauge("builds", "Builds.", ["service"]).collect((gauge) => gauge.set(1, { service }));
  }
  const both = ['builds{service="a"} 1', 'builds{service="b"} 1'];
  assert.equal(await samples(metrics, "builds"), both);
  assert.equal(await samples(metrics, "builds"), both, "each time");
});

test("label values are escaped, whatever they hold", async () => {
  const metrics = createMetrics();
  metrics.counter("x_total", "X.", ["name"]).inc({ name: 'a"b\\c\nd' });
  assert.equal(await samples(metrics, "x_total"), ['x_total{name="a\\"b\\\\c\\nd"} 1']);
});

test("the process's own gauges hold real figures", async () => {
  const metrics = createMetrics();
  const stop = observeProcess(runtime, metrics);
  try {
    const value = async (name: string) => Number((await samples(metrics, name))[0]?.split(" ")[1]);
    assert.ok(await value("process_resident_memory_bytes") > 10_000_000);
    assert.ok(await value("process_cpu_seconds") > 0);
    assert.ok(await value("process_open_fds") > 2);
    assert.ok(await value("process_start_time_seconds") > 1_600_000_000);
    assert.match(
      (await samples(metrics, "baton_info"))[0] ?? "",
      `runtime="${runtime.name}",version="${runtime.version}"`,
    );
  } finally {
    stop();
  }
});

test.run();
