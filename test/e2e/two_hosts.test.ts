/**
 * Two hosts behind a balancer that asks `/readyz` as versiond's router does (every tenth of a second
 * here): builds roll and hosts go while streams run, and nobody notices. Cases of 4.29.
 */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { inScratch, until } from "../support/scratch.ts";
import { sideBySide } from "../support/side_by_side.ts";
import { devshard, MockOracle, startHost, type VersiondHost } from "../support/versiond_host.ts";

const waiting = sideBySide(4);

const CHECK_MS = 100;

/** Sends each request to a host that its last check found ready, in turns. */
class Balancer {
  readonly #hosts: VersiondHost[] = [];
  readonly #up = new Map<VersiondHost, boolean>();
  #next = 0;
  #timer: ReturnType<typeof setInterval> | undefined;

  add(host: VersiondHost): void {
    this.#hosts.push(host);
    this.#timer ??= setInterval(() => void this.#check(), CHECK_MS);
  }

  remove(host: VersiondHost): void {
    this.#hosts.splice(this.#hosts.indexOf(host), 1);
    this.#up.delete(host);
  }

  isUp(host: VersiondHost): boolean {
    return this.#up.get(host) === true;
  }

  pick(): VersiondHost {
    const up = this.#hosts.filter((host) => this.isUp(host));
    const host = up[this.#next++ % up.length];
    if (host === undefined) throw new Error("no host is up");
    return host;
  }

  close(): void {
    clearInterval(this.#timer);
  }

  async #check(): Promise<void> {
    await Promise.all(this.#hosts.map(async (host) => {
      const ready = await host.get("/readyz?version=v1").then(
        ({ status }) => status === 200,
        () => false,
      );
      this.#up.set(host, ready);
    }));
  }
}

/** Sends a request every few milliseconds and keeps what did not answer 200. */
class Probe {
  readonly failures: string[] = [];
  readonly builds = new Set<string>();
  answered = 0;
  readonly #ended: Promise<void>;
  #stopped = false;

  constructor(balancer: { pick(): VersiondHost }) {
    this.#ended = (async () => {
      while (!this.#stopped) {
        try {
          const host = balancer.pick();
          const { status, text } = await host.get("/v1/x");
          if (status === 200) this.builds.add(text.split(" ")[0] ?? "");
          else this.failures.push(`${status} ${text}`);
          this.answered += 1;
        } catch (error) {
          this.failures.push(String(error));
        }
        await new Promise((resolve) => setTimeout(resolve, 15));
      }
    })();
  }

  /** Resolves when the request that is on its way now has been answered. */
  async settled(): Promise<void> {
    const { answered, failures } = this;
    const done = answered + failures.length;
    await until(() => this.answered + this.failures.length > done + 1, "the next answer");
  }

  stop(): Promise<void> {
    this.#stopped = true;
    return this.#ended;
  }
}

async function onTwoHosts(
  action: (parts: {
    hosts: [VersiondHost, VersiondHost];
    oracle: MockOracle;
    balancer: Balancer;
    folder: string;
  }) => Promise<void>,
  storageMode = "postgres",
  env: Record<string, string> = {},
): Promise<void> {
  const oracle = new MockOracle();
  await oracle.start();
  oracle.add("v1", await devshard("v1", "v1-r1", print(storageMode)));
  const balancer = new Balancer();
  const started: VersiondHost[] = [];
  await inScratch(async (folder) => {
    try {
      const [a, b] = await Promise.all(
        ["a", "b"].map((name) => startHost(`${folder}/${name}`, oracle, env)),
      );
      if (a === undefined || b === undefined) throw new Error("unreachable");
      started.push(a, b);
      for (const host of started) balancer.add(host);
      await until(() => balancer.isUp(a) && balancer.isUp(b), "both hosts");
      await action({ hosts: [a, b], oracle, balancer, folder });
    } finally {
      balancer.close();
      await Promise.all(started.map((host) => host.stop()));
    }
  });
  await oracle.close();
}

function print(storageMode: string) {
  return { print: { protocolVersion: "v1", storageMode } };
}

/** Events of a stream as they come, which ends when the gate of its host is opened. */
function stream(host: VersiondHost) {
  const seen: string[] = [];
  const ended = (async () => {
    const response = await fetch(`${host.url}/v1/events?gated`);
    let text = "";
    for await (const chunk of response.body?.pipeThrough(new TextDecoderStream()) ?? []) {
      text += chunk;
      const events = text.split("\n\n");
      text = events.pop() ?? "";
      seen.push(...events);
    }
    return seen;
  })();
  return { seen, ended };
}

waiting(
  "case 270: a build rolls on both hosts under streams and a probe: nothing fails, nothing is cut",
  async () => {
    await onTwoHosts(async ({ hosts, oracle, balancer }) => {
      const probe = new Probe(balancer);
      const streams = hosts.map((host) => stream(host));
      await until(() => streams.every(({ seen }) => seen.length >= 2), "both streams");
      oracle.add("v1", await devshard("v1", "v1-r2", print("postgres")));
      for (const host of hosts) {
        await until(async () => {
          const states = (await host.healthz()).map((one) => `${one.binary_version} ${one.status}`);
          return states.includes("v1-r1 draining") && states.includes("v1-r2 running");
        }, "the overlap");
      }
      for (const host of hosts) await host.openGate("v1");
      for (const { ended } of streams) {
        const events = await ended;
        assert.is(events.at(-1), "data: [DONE]");
        assert.ok(events.slice(0, -1).every((event) => event.startsWith("data: v1-r1 ")));
      }
      for (const host of hosts) {
        await until(async () => (await host.healthz()).length === 1, "the end of the old build");
      }
      const before = probe.answered;
      await until(() => probe.answered > before + 10, "some more answers");
      await probe.stop();
      assert.equal(probe.failures, []);
      assert.equal([...probe.builds].sort(), ["v1-r1", "v1-r2"]);
    });
  },
);

waiting(
  "case 271: with hybrid storage the two builds never run together, and the probe waits instead of failing",
  async () => {
    await onTwoHosts(async ({ hosts, oracle }) => {
      // Straight to one host: for a moment it is not ready, and a request that comes then is held.
      const probe = new Probe({ pick: () => hosts[0] });
      const together: string[] = [];
      let watching = true;
      const watch = (async () => {
        while (watching) {
          for (const host of hosts) {
            const alive = (await host.healthz()).filter((one) => one.status !== "stopped");
            const builds = new Set(alive.map((one) => one.binary_version));
            if (builds.size > 1) together.push(JSON.stringify(alive));
          }
          await new Promise((resolve) => setTimeout(resolve, 10));
        }
      })();
      oracle.add("v1", await devshard("v1", "v1-r2", print("hybrid")));
      for (const host of hosts) await host.serves("/v1/x", "v1-r2");
      watching = false;
      await watch;
      await probe.stop();
      assert.equal(together, []);
      assert.equal(probe.failures, []);
    }, "hybrid");
  },
);

waiting(
  "case 272: a host that is stopped is left alone first, ends its streams, and exits with 0",
  async () => {
    await onTwoHosts(
      async ({ hosts: [a, b], balancer }) => {
        const probe = new Probe(balancer);
        const pinned = stream(a);
        await until(() => pinned.seen.length >= 2, "the stream");
        const exit = a.stop();
        await until(() => !balancer.isUp(a), "the balancer to notice");
        assert.is((await a.get("/v1/x")).status, 200, "it still serves while it announces");
        for (let request = 0; request < 5; request += 1) assert.is(balancer.pick(), b);
        await a.openGate("v1");
        const events = await pinned.ended;
        assert.is(events.at(-1), "data: [DONE]");
        assert.is(await exit, 0);
        await probe.stop();
        assert.equal(probe.failures, []);
        balancer.remove(a);
      },
      "postgres",
      { VERSIOND_DRAIN_ANNOUNCE: "10s" },
    );
  },
);

waiting(
  "case 273: a host that knows no list and finds no oracle stays out, and joins when it is back",
  async () => {
    await onTwoHosts(async ({ hosts: [, b], oracle, balancer, folder }) => {
      const probe = new Probe(balancer);
      oracle.failing = true;
      const fresh = await startHost(`${folder}/c`, oracle);
      balancer.add(fresh);
      await oracle.cycles();
      assert.is((await fresh.get("/readyz")).status, 503);
      assert.not(balancer.isUp(fresh));
      assert.ok(balancer.isUp(b), "the others serve on");
      oracle.failing = false;
      await until(() => balancer.isUp(fresh), "it to join");
      await fresh.serves("/v1/x", "v1-r1");
      // With the list that it kept it needs no oracle the next time.
      balancer.remove(fresh);
      await probe.settled();
      assert.is(await fresh.stop(), 0);
      oracle.failing = true;
      const again = await startHost(`${folder}/c`, oracle);
      balancer.add(again);
      await until(() => balancer.isUp(again), "it to join without an oracle");
      await probe.stop();
      balancer.remove(again);
      assert.is(await again.stop(), 0);
      assert.equal(probe.failures, []);
    });
  },
);

test.run();
