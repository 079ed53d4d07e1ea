/** The serving child is killed with SIGKILL, again and again, under keep-alive load of every kind. */

import http from "node:http";
import process from "node:process";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { type Harness, until, withHarness } from "./harness.ts";

const CLIENTS = 12;
const KILLS = 4;

interface Sent {
  readonly id: string;
  readonly kind: "POST" | "GET" | "SSE";
  readonly startedAt: number;
  endedAt: number;
  /** 0: no whole answer. */
  status: number;
}

/** When a child was sent SIGKILL, and when its end had been seen. */
interface Kill {
  readonly at: number;
  seenAt: number;
  /** Requests that it had at that moment. */
  readonly leases: number;
}

/** A client with one connection that it keeps: requests one after another until it is stopped. */
class LoadClient {
  readonly origin: string;
  readonly number: number;
  readonly sent: Sent[] = [];
  readonly sockets = new Set<unknown>();
  readonly #agent = new http.Agent({ keepAlive: true, maxSockets: 1 });

  constructor(origin: string, number: number) {
    this.origin = origin;
    this.number = number;
  }

  async run(stopped: () => boolean): Promise<void> {
    const kinds = ["POST", "POST", "GET", "SSE"] as const;
    for (let index = 0; !stopped(); index++) {
      const kind = kinds[(index + this.number) % kinds.length] ?? "GET";
      const id = `${this.number}-${index}`;
      const one: Sent = { id, kind, startedAt: performance.now(), endedAt: 0, status: 0 };
      this.sent.push(one);
      one.status = await this.#ask(kind, id);
      one.endedAt = performance.now();
    }
    this.#agent.destroy();
  }

  #ask(kind: Sent["kind"], id: string): Promise<number> {
    const path = { POST: "/v1/execute?ms=4", GET: "/v1/slow?ms=4", SSE: "/v1/events?count=4&ms=3" };
    return new Promise((resolve) => {
      const request = http.request(this.origin + path[kind], {
        method: kind === "POST" ? "POST" : "GET",
        agent: this.#agent,
      }, (response) => {
        let text = "";
        response.on("data", (chunk) => (text += chunk));
        response.on("error", () => resolve(0));
        response.on("close", () => {
          const whole = response.complete && (kind !== "SSE" || text.endsWith("data: [DONE]\n\n"));
          resolve(response.statusCode === 200 && !whole ? 0 : response.statusCode ?? 0);
        });
      });
      request.on("socket", (socket) => this.sockets.add(socket));
      request.on("error", () => resolve(0));
      request.end(kind === "POST" ? id : undefined);
    });
  }
}

async function killCurrent(h: Harness): Promise<Kill> {
  const generation = h.supervisor.generations().find((one) => one.role === "current");
  const pid = generation?.process?.pid;
  if (generation === undefined || pid === undefined) throw new Error("nothing serves");
  const kill: Kill = { at: performance.now(), seenAt: 0, leases: generation.leases };
  process.kill(pid, "SIGKILL");
  await generation.ended;
  kill.seenAt = performance.now();
  await until(() => (h.supervisor.targets()[0]?.generation ?? 0) > generation.number);
  return kill;
}

test(
  "kill -9 under load: only requests that were on the child fail, and no POST is executed twice",
  withHarness({ config: { restartBackoffMs: 20, restartBackoffMaxMs: 20 } }, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    let stopped = false;
    const clients = Array.from({ length: CLIENTS }, (_, at) => new LoadClient(h.origin, at));
    const running = clients.map((client) => client.run(() => stopped));
    const sent = (): Sent[] => clients.flatMap((client) => client.sent);
    const answered = (): number => sent().filter((one) => one.status === 200).length;
    const kills: Kill[] = [];
    for (let round = 0; round < KILLS; round++) {
      const before = answered();
      await until(() => answered() >= before + 4 * CLIENTS, "load");
      await until(() => h.supervisor.generations().some((one) => one.leases > 0));
      kills.push(await killCurrent(h));
    }
    const before = answered();
    await until(() => answered() >= before + 2 * CLIENTS, "the last child to serve");
    stopped = true;
    await Promise.all(running);

    const all = sent();
    const failed = all.filter((one) => one.status !== 200);
    // It was under way when a child was killed, and had begun before the end of that was known.
    const wasOnIt = (one: Sent): boolean =>
      kills.some((kill) => one.startedAt < kill.seenAt && one.endedAt > kill.at);
    assert.equal(failed.filter((one) => !wasOnIt(one)), []);
    // One connection a client: each can have had one request on each child, or one after it that
    // met a connection whose end was not known yet.
    assert.ok(failed.length <= 2 * KILLS * CLIENTS, `${failed.length} of ${all.length} failed`);
    assert.ok(kills.some((kill) => kill.leases > 0), "a child was killed while it had requests");
    assert.ok(failed.length > 0, "a child that was killed with requests on it cost some of them");
    for (const one of failed) assert.ok([0, 502].includes(one.status), JSON.stringify(one));

    const executed = await h.dataLines("v1", "executed.log");
    assert.is(new Set(executed).size, executed.length, "a POST was executed twice");
    for (const one of all) {
      if (one.kind === "POST" && one.status === 200) assert.ok(executed.includes(one.id), one.id);
    }
    // The clients' connections outlive the children, except where an answer was cut in the middle.
    const cut = failed.filter((one) => one.status === 0).length;
    const sockets = clients.reduce((sum, client) => sum + client.sockets.size, 0);
    assert.ok(sockets <= CLIENTS + cut, `${sockets} connections, ${cut} answers cut`);
  }),
);

test(
  "requests that come while no child lives wait for the next one, POSTs too, and each is executed once",
  withHarness({ config: { restartBackoffMs: 300 } }, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    const generation = h.supervisor.generations()[0];
    process.kill(generation?.process?.pid ?? 0, "SIGKILL");
    await generation?.ended;
    const ids = Array.from({ length: 20 }, (_, at) => `held-${at}`);
    const answers = ids.map((body) =>
      fetch(`${h.origin}/v1/execute?ms=1`, { method: "POST", body })
        .then(async (answer) => [answer.status, await answer.text()])
    );
    await until(() => h.events.since(0).some((event) => event.kind === "restart_planned"));
    assert.equal(await Promise.all(answers), ids.map(() => [200, "one"]));
    assert.equal((await h.dataLines("v1", "executed.log")).sort(), [...ids].sort());
    assert.match(await h.metrics.text(), /baton_held_requests_total\{.*end="released"\} \d\d/);
  }),
);

test.run();
