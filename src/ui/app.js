/**
 * The status page: what the admin API says, once a second, and events as they come.
 * Everything is put into the page as text, never as HTML.
 */

const REFRESH_MS = 1000;
const MOST_EVENTS = 200;
const $ = (id) => document.getElementById(id);

function headers() {
  const token = sessionStorage.getItem("token");
  return token ? { authorization: `Bearer ${token}` } : {};
}

class Unauthorized extends Error {}

async function get(path) {
  const response = await fetch(path, { headers: headers(), cache: "no-store" });
  if (response.status === 401) throw new Unauthorized();
  return await response.json();
}

/** Fills a table; columns are [title, value of a row, class of the cell]. */
function fill(id, rows, columns) {
  const lines = rows.map((row) => {
    const line = document.createElement("tr");
    for (const [, value, style] of columns) {
      const cell = line.insertCell();
      cell.textContent = show(value(row));
      const name = style?.(row);
      if (name) cell.className = name;
    }
    return line;
  });
  const head = document.createElement("tr");
  for (const [title] of columns) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = title;
    head.append(cell);
  }
  $(id).replaceChildren(...(rows.length === 0 ? [] : [head, ...lines]));
}

function show(value) {
  if (value === undefined || value === null) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** Of a worker that tells no events the lane stays pending, which is not bad. */
const LANE_CLASS = { live: "good", pending: "" };
/** What a build calls itself, if that says more than the version, and enough of its hash. */
const buildOf = (version, { buildId, sha256 }) =>
  `${buildId === version ? "" : buildId} ${sha256.slice(0, 12)}`.trim();

/** Plain fields of rows whose shape the page does not know. */
function columnsOf(rows) {
  const names = new Set(rows.flatMap((row) => Object.keys(row)));
  return [...names].map((name) => [name, (row) => row[name]]);
}

async function refresh() {
  const [ready, drain, versions, workers, peers, recovery] = await Promise.all([
    get("/ready"),
    get("/drain/status"),
    get("/api/v1/versions"),
    get("/api/v1/workers"),
    get("/api/v1/peers"),
    get("/api/v1/recovery"),
  ]);
  const state = ready.draining ? "draining" : ready.ready ? "ready" : "not ready";
  $("state").textContent = state;
  $("state").className = `badge ${ready.ready ? "good" : ready.draining ? "" : "bad"}`;
  $("summary").textContent = `${ready.inflight} in flight`;
  document.title = `Baton: ${state}`;

  fill("conditions", ready.conditions, [
    ["condition", (one) => one.name],
    ["", (one) => one.ok ? "met" : "not met", (one) => one.ok ? "good" : "bad"],
    ["why", (one) => one.reason],
  ]);
  const generations = versions.versions.flatMap((version) =>
    version.generations.length === 0
      ? [{ version, one: {} }]
      : version.generations.map((one) => ({ version, one }))
  );
  fill("versions", generations, [
    ["service", ({ version }) => version.service],
    ["version", ({ version }) => version.name],
    ["generation", ({ one }) => one.generation],
    ["role", ({ one }) => one.role],
    ["phase", ({ one }) => one.phase],
    ["ready", ({ one }) => one.ready, ({ one }) => one.ready ? "good" : "bad"],
    ["build", ({ version, one }) => one.sha256 && buildOf(version.name, one)],
    ["leases", ({ one }) => one.leases],
    ["streams", ({ one }) => one.streams],
    ["pid", ({ one }) => one.pid],
    ["port", ({ one }) => one.port],
    ["since", ({ one }) => one.since],
  ]);
  $("notes").replaceChildren(
    ...versions.versions.flatMap(({ service, name, notes }) =>
      (notes ?? []).map((note) => {
        const item = document.createElement("li");
        item.textContent = `${service} ${name}: ${note}`;
        return item;
      })
    ),
  );
  const lanes = workers.workers.flatMap((worker) =>
    worker.lanes?.length > 0
      ? worker.lanes.map((lane) => ({ worker, lane }))
      : [{ worker, lane: {} }]
  );
  fill("workers", lanes, [
    ["service", ({ worker }) => worker.service],
    ["worker", ({ worker }) => worker.worker],
    ["address", ({ worker }) => worker.url],
    ["healthy", ({ worker }) => worker.healthy, ({ worker }) => worker.healthy ? "good" : "bad"],
    ["leases", ({ worker }) => worker.leases],
    ["queued tokens", ({ worker }) => worker.load?.prefillTokens],
    ["decode blocks", ({ worker }) => worker.load?.decodeBlocks],
    ["rank", ({ lane }) => lane.dpRank],
    ["lane", ({ lane }) => lane.state, ({ lane }) => LANE_CLASS[lane.state] ?? "bad"],
    ["cursor", ({ lane }) => lane.cursor],
    ["blocks", ({ lane }) => lane.blocks],
    ["last error", ({ worker, lane }) => lane.lastError ?? worker.lastError],
  ]);
  const owing = drain.targets.filter((target) => target.leases > 0);
  fill("targets", owing, columnsOf(owing));
  const plain = Object.entries(recovery).filter(([, value]) => typeof value !== "object");
  fill("recovery", plain, [["recovery", ([name]) => name], ["", ([, value]) => value]]);
  const attempts = recovery.attempts?.slice(-5) ?? [];
  fill("attempts", attempts, columnsOf(attempts));
  fill("peers", peers.peers, columnsOf(peers.peers));
}

function addEvent(event) {
  const { id, ts, kind, ...rest } = event;
  const item = document.createElement("li");
  const name = document.createElement("b");
  name.textContent = kind;
  item.append(`${ts ?? ""} `, name, ` ${Object.keys(rest).length > 0 ? JSON.stringify(rest) : ""}`);
  $("events").prepend(item);
  while ($("events").childElementCount > MOST_EVENTS) $("events").lastElementChild.remove();
  return id;
}

/** Follows the journal; after a break it goes on from the last number that was seen. */
async function follow() {
  let last = 0;
  for (;;) {
    try {
      const url = `/api/v1/events?follow=true&since=${last}`;
      const response = await fetch(url, {
        headers: { ...headers(), accept: "application/x-ndjson" },
      });
      if (response.ok) {
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        let rest = "";
        for (;;) {
          const { done, value } = await reader.read();
          if (done) break;
          const lines = (rest + value).split("\n");
          rest = lines.pop();
          for (const line of lines) if (line !== "") last = addEvent(JSON.parse(line)) ?? last;
        }
      }
    } catch {
      // The connection broke: the next round tries again.
    }
    await new Promise((resolve) => setTimeout(resolve, REFRESH_MS));
  }
}

async function run() {
  for (;;) {
    try {
      await refresh();
      $("sign-in").hidden = true;
    } catch (error) {
      const locked = error instanceof Unauthorized;
      $("sign-in").hidden = !locked;
      $("state").textContent = locked ? "needs a token" : "no answer";
      $("state").className = "badge bad";
    }
    await new Promise((resolve) => setTimeout(resolve, REFRESH_MS));
  }
}

$("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value);
  $("token").value = "";
});

run();
follow();
