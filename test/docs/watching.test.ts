/**
 * docs/deploy/alerts.yaml, docs/deploy/grafana.json and the pages ask for what there is: metrics of
 * Batons that run, with their labels and the values that these can have.
 */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { readFileSync } from "node:fs";
import { mkdir, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { ERROR_STATUS } from "../../src/errors.ts";
import { HOST_STATES } from "../../src/lifecycle/host_state.ts";
import { RECOVERY_STATES } from "../../src/replica/recovery_status.ts";
import { serverCert, serverKey } from "../runtime/certificates.ts";
import { basePort, startBatonProcess } from "../support/baton_process.ts";
import { FileOracle, makeBuild } from "../support/builds.ts";
import { startMockWorker } from "../support/mock_worker.ts";
import { parseYaml } from "../support/plain_yaml.ts";
import { inScratch, until } from "../support/scratch.ts";

const docs = fileURLToPath(new URL("../../docs/", import.meta.url));
const read = (name: string): string => readFileSync(`${docs}${name}`, "utf8");

interface Rule {
  readonly alert: string;
  readonly expr: string;
  readonly labels: { readonly severity: string };
  readonly annotations: Readonly<Record<string, string>>;
}

interface Panel {
  readonly id: number;
  readonly type: string;
  readonly title: string;
  readonly gridPos: {
    readonly x: number;
    readonly y: number;
    readonly w: number;
    readonly h: number;
  };
  readonly targets?: readonly { readonly expr: string; readonly legendFormat: string }[];
}

interface Dashboard {
  readonly panels: readonly Panel[];
  readonly templating: { readonly list: readonly { readonly name: string; query: string }[] };
  readonly annotations: { readonly list: readonly { readonly expr: string }[] };
}

const [alerts] = parseYaml(read("deploy/alerts.yaml")) as unknown as {
  groups: { name: string; rules: Rule[] }[];
}[];
const rules = (alerts?.groups ?? []).flatMap((group) => group.rules);
const dashboard = JSON.parse(read("deploy/grafana.json")) as Dashboard;
const panels = dashboard.panels.filter((panel) => panel.type !== "row");

/** Names of metrics -> labels that their series have; of those without a series, undefined. */
type Known = ReadonlyMap<string, ReadonlySet<string> | undefined>;

/** What the metrics pages of these Batons show. */
async function metricsOf(...admins: string[]): Promise<Known> {
  const known = new Map<string, Set<string> | undefined>();
  for (const admin of admins) {
    const text = await (await fetch(`${admin}/metrics`)).text();
    for (const [, name = ""] of text.matchAll(/^# TYPE (\w+) /gm)) {
      if (!known.has(name)) known.set(name, undefined);
    }
    for (const [, name = "", labels = ""] of text.matchAll(/^(\w+)(?:\{(.*)\})? \S+$/gm)) {
      const plain = known.has(name) ? name : name.replace(/_(bucket|sum|count)$/, "");
      assert.ok(known.has(plain), `${name} has no type`);
      const all = known.get(plain) ?? new Set();
      for (const [, label = ""] of labels.matchAll(/(\w+)="/g)) all.add(label);
      known.set(plain, all);
    }
  }
  return known;
}

/**
 * Runs Batons with every kind of service, lets happen what operators watch for, and reads the metrics:
 * a swap, a build that does not come up, a crash, requests to a pool; TLS and threads.
 */
const known: Known = await inScratch(async (folder) => {
  const worker = await startMockWorker({
    id: "one",
    model: "m",
    events: { stored() {}, removed() {} },
  });
  const oracle = new FileOracle(`${folder}/oracle`);
  await oracle.write();
  await mkdir(`${folder}/tls`);
  const tls = { cert: `${folder}/tls/tls.crt`, key: `${folder}/tls/tls.key` };
  await writeFile(tls.cert, serverCert);
  await writeFile(tls.key, serverKey);
  const first = await startBatonProcess(folder, {
    listen: { peer: "127.0.0.1:0" },
    services: {
      app: {
        mount: "/app",
        versions: {
          oracle: `file:${oracle.path}`,
          binaryName: "child",
          basePort: basePort(),
          bakeMs: 0,
        },
      },
      chat: { mount: "/v1", pool: { model: "m", workers: [{ id: "one", url: worker.url }] } },
    },
    replica: { peers: [`http://127.0.0.1:${basePort()}`] },
    shutdown: { announceMs: 0 },
  });
  const other = `${folder}/other`;
  await mkdir(other);
  const second = await startBatonProcess(other, {
    listen: { tls },
    traffic: { workers: 2 },
    services: { plain: { mount: "/", upstream: worker.url } },
  });
  const answers = async (build: string): Promise<boolean> => {
    const response = await fetch(`${first.traffic}/app/v1/slow`);
    return (await response.text()) === build;
  };
  const logged = (event: string) => first.log.some((line) => line.event === event);
  try {
    await oracle.publish("v1", await makeBuild({ id: "one" }));
    await until(() => answers("one"), "the first build");
    await oracle.publish("v1", await makeBuild({ id: "two" }));
    await until(() => answers("two"), "the second build");
    await until(() => logged("drain_report"), "the drain");
    await oracle.publish("v1", await makeBuild({ id: "bad", exitAtOnce: 1 }));
    await until(() => logged("rollout_failed"), "the failure");
    await fetch(`${first.traffic}/app/v1/crash`, { method: "POST" });
    await until(() => logged("child_crashed"), "the crash");
    const body = JSON.stringify({ model: "m", prompt: [1, 2, 3], max_tokens: 1 });
    assert.is(
      (await fetch(`${first.traffic}/v1/completions`, { method: "POST", body })).status,
      200,
    );
    return await metricsOf(first.admin, second.admin);
  } finally {
    await Promise.all([first.stop(), second.stop()]);
    await worker.close();
  }
});

/** Labels that a scrape adds. */
const SCRAPED = ["job", "instance"];
const VALUES: Readonly<Record<string, readonly string[]>> = {
  "baton_host_state state": HOST_STATES,
  "baton_kv_recovery_state state": RECOVERY_STATES,
  "baton_route_refusals_total code": Object.keys(ERROR_STATUS),
  "baton_oracle_polls_total result": ["ok", "error"],
  "baton_drained_exchanges_total end": ["finished", "cut"],
  "baton_held_requests_total end": ["released", "timeout", "full", "left", "hopeless"],
};

/** What is wrong with a query; `labelled` are texts whose `{{label}}`s its result must have. */
function faults(expr: string, labelled: readonly string[]): string[] {
  const found: string[] = [];
  const grouped = [...expr.matchAll(/\b(?:by|on) \(([\w, ]*)\)/g)]
    .flatMap(([, names = ""]) => names.split(", ")).filter((name) => name !== "");
  const there = new Set<string>(SCRAPED);
  let isWhole = true;
  const metrics = [...expr.matchAll(/\b((?:baton|process)_\w+|up\b)(?:\{([^}]*)\})?/g)];
  if (metrics.length === 0) found.push("asks for nothing");
  for (const [, name = "", selectors = ""] of metrics) {
    const plain = known.has(name) ? name : name.replace(/_bucket$/, "");
    if (name === "up") continue;
    if (!known.has(plain)) found.push(`there is no ${name}`);
    const labels = known.get(plain);
    if (labels === undefined) isWhole = false;
    for (const label of labels ?? []) there.add(label);
    for (const [, label = "", text = ""] of selectors.matchAll(/(\w+)=~?"([^"]*)"/g)) {
      if (labels !== undefined && !labels.has(label) && !SCRAPED.includes(label)) {
        found.push(`${name} has no label ${label}`);
      }
      const values = VALUES[`${plain} ${label}`];
      for (const value of values === undefined ? [] : text.split("|")) {
        if (!values?.includes(value)) found.push(`${name} is never ${label}="${value}"`);
      }
    }
  }
  // Labels of metrics that had no series in this run are not known.
  if (isWhole) {
    for (const label of grouped) if (!there.has(label)) found.push(`groups by ${label}`);
  }
  for (const [, label = ""] of labelled.join(" ").matchAll(/\{\{ ?(?:\$labels\.)?(\w+) ?\}\}/g)) {
    const isKept = grouped.length > 0 ? grouped.includes(label) : there.has(label) || !isWhole;
    if (!isKept) found.push(`the result has no ${label}`);
  }
  if (expr.split("(").length !== expr.split(")").length) found.push("parentheses");
  return found.map((fault) => `${fault}: ${expr}`);
}

test("the alerts are whole, and ask for what there is", () => {
  assert.ok(rules.length > 15, `${rules.length} rules`);
  assert.is(new Set(rules.map(({ alert }) => alert)).size, rules.length, "each has its own name");
  for (const { alert, expr, labels, annotations } of rules) {
    assert.equal(faults(expr, Object.values(annotations)), [], alert);
    assert.ok(["warning", "critical"].includes(labels.severity), alert);
    for (const key of ["summary", "remedy"]) assert.ok(annotations[key], `${alert}: ${key}`);
  }
});

test("the dashboard asks for what there is, in panels that do not cover each other", () => {
  assert.ok(panels.length > 20, `${panels.length} panels`);
  const variables = dashboard.templating.list.map(({ name }) => name);
  for (const { title, targets = [] } of panels) {
    assert.ok(targets.length > 0, title);
    for (const { expr, legendFormat } of targets) {
      assert.equal(faults(expr, [legendFormat]), [], title);
      for (const [, name = ""] of expr.replaceAll("$__", "").matchAll(/\$(\w+)/g)) {
        assert.ok(variables.includes(name), `${title}: ${name}`);
      }
    }
  }
  for (const { expr } of dashboard.annotations.list) assert.equal(faults(expr, []), []);
  for (const { query } of dashboard.templating.list) {
    if (query !== "prometheus") assert.equal(faults(query, []), []);
  }
  assert.is(new Set(dashboard.panels.map(({ id }) => id)).size, dashboard.panels.length);
  const taken = new Map<string, string>();
  for (const { title, gridPos: { x, y, w, h } } of dashboard.panels) {
    assert.ok(x + w <= 24, title);
    for (let at = 0; at < w * h; at += 1) {
      const cell = `${x + at % w},${y + Math.floor(at / w)}`;
      assert.is(taken.get(cell), undefined, `${title} covers ${taken.get(cell)}`);
      taken.set(cell, title);
    }
  }
});

test("every metric that a page names exists, and every one of Baton's is on a page or watched", () => {
  const pages = ["operations", "recovery", "routing", "wire-formats", "http2-and-tls"];
  const named = pages.flatMap((page) =>
    [...read(`${page}.md`).matchAll(/\bbaton_[a-z0-9_]+\b/g)].map(([name]) => ({ page, name }))
  );
  const unknown = named.filter(({ name }) => !known.has(name));
  assert.equal(unknown, []);
  assert.ok(named.length > 30, `${named.length} are named`);
  const written = [...pages.map((page) => read(`${page}.md`)), read("deploy/grafana.json")].join();
  const nowhere = [...known.keys()].filter((name) => !written.includes(name));
  assert.equal(nowhere, []);
});

test("the page on recovery has every metric of recoveries, dumps, holes and buffers, and every state", () => {
  const page = read("recovery.md");
  for (const name of known.keys()) {
    if (/_(recovery|dumps?|gaps?|buffer|replayed|lost)_/.test(name)) {
      assert.ok(page.includes(name), name);
    }
  }
  for (const state of RECOVERY_STATES) {
    // Before its start a recovery is idle, and nobody sees that.
    if (state !== "idle") assert.ok(page.includes(`\`${state}\``), state);
  }
});

test("a query for what there is not is found", () => {
  assert.equal(faults('sum by (service) (rate(baton_requests_total{status=~"5.."}[5m]))', []), []);
  for (
    const wrong of [
      "sum(baton_requests)",
      'baton_requests_total{code="500"}',
      'baton_host_state{state="gone"}',
      "sum by (worker) (baton_requests_total)",
      "sum(baton_ready",
      "1 + 1",
    ]
  ) assert.is(faults(wrong, []).length, 1, wrong);
  assert.is(faults("sum by (service) (baton_requests_total)", ["{{status}}"]).length, 1);
});

test.run();
