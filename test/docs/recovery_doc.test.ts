/** docs/recovery.md names the metrics that there are, and its alerts use only those and real states. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { readFileSync } from "node:fs";
import { createKvStore } from "../../src/kv/create_kv_store.ts";
import { silentLog } from "../../src/observe/log.ts";
import { createMetrics } from "../../src/observe/metrics.ts";
import { observeProcess } from "../../src/observe/process_metrics.ts";
import { createDumpMetrics } from "../../src/replica/dump_metrics.ts";
import { createRecoveryMetrics } from "../../src/replica/recovery_metrics.ts";
import { RECOVERY_STATES } from "../../src/replica/recovery_status.ts";
import { runtime } from "../support/runtime.ts";

const doc = readFileSync(new URL("../../docs/recovery.md", import.meta.url), "utf8");

async function registered(): Promise<Set<string>> {
  const metrics = createMetrics();
  createRecoveryMetrics(metrics);
  createDumpMetrics(metrics);
  await createKvStore({ ...runtime, log: silentLog, metrics });
  observeProcess(runtime, metrics)();
  const text = await metrics.text();
  return new Set([...text.matchAll(/^# TYPE (\w+) /gm)].map(([, name]) => name as string));
}

test("every metric that the page names exists", async () => {
  const names = await registered();
  const named = new Set([...doc.matchAll(/\bbaton_kv_\w+/g)].map(([name]) => name));
  assert.ok(named.size > 10);
  for (const name of named) assert.ok(names.has(name), name);
});

test("every metric of recoveries, dumps, holes and buffers is on the page", async () => {
  for (const name of await registered()) {
    if (/_(recovery|dumps?|gaps?|buffer|replayed|lost)_/.test(name)) {
      assert.ok(doc.includes(name), name);
    }
  }
});

interface Rule {
  readonly alert: string;
  expr: string;
  readonly rest: string[];
}

/** Reads just the form that the page has: a group, rules with one key a line, expressions as blocks. */
function rulesOf(yaml: string): Rule[] {
  const rules: Rule[] = [];
  let inExpr = false;
  for (const line of yaml.split("\n")) {
    if (line.trim() === "" || line.trim().startsWith("#")) continue;
    const indent = line.length - line.trimStart().length;
    const rule = rules.at(-1);
    const alert = /^ {6}- alert: (\w+)$/.exec(line)?.[1];
    if (alert !== undefined) {
      rules.push({ alert, expr: "", rest: [] });
      inExpr = false;
    } else if (rule !== undefined && inExpr && indent >= 10) rule.expr += `${line.trim()} `;
    else if (rule !== undefined) {
      const expr = /^ {8}expr: (.*)$/.exec(line)?.[1];
      inExpr = expr !== undefined;
      if (expr === undefined) rule.rest.push(line.trim());
      else if (expr !== "|") rule.expr = expr;
    }
  }
  return rules;
}

test("the alerts are whole, and ask for metrics and states that there are", async () => {
  const yaml = /```yaml\n(groups:\n[^]*?)```/.exec(doc)?.[1] ?? "";
  const rules = rulesOf(yaml);
  assert.equal(rules.map(({ alert }) => alert), [
    "BatonIndexLost",
    "BatonIndexLostEverywhere",
    "BatonRecoveryStuck",
    "BatonRecoveryDegraded",
  ]);
  const names = await registered();
  for (const { alert, expr, rest } of rules) {
    const open = expr.split("(").length, closed = expr.split(")").length;
    assert.is(open, closed, `${alert}: parentheses`);
    const asked = [...expr.matchAll(/\b((?:baton|process)_\w+)(?:\{state=~?"([^"]+)"\})?/g)];
    assert.ok(asked.length > 0, alert);
    for (const [, name, states] of asked) {
      assert.ok(names.has(name as string), `${alert}: ${name}`);
      assert.is(states !== undefined, name === "baton_kv_recovery_state", `${alert}: ${name}`);
      for (const state of states?.split("|") ?? []) {
        assert.ok((RECOVERY_STATES as readonly string[]).includes(state), `${alert}: ${state}`);
      }
    }
    assert.ok(
      rest.some((line) => /^labels: \{ severity: (warning|critical) \}$/.test(line)),
      alert,
    );
    assert.ok(rest.some((line) => line.startsWith("summary: ")), alert);
  }
});

test.run();
