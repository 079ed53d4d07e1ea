/**
 * Upgraded connections as load: each is opened, echoes a message now and then, and is closed by us.
 * One that ends in any other way was cut.
 */

import { request as httpRequest } from "node:http";
import type { Socket } from "node:net";

export interface TunnelReport {
  opened: number;
  failed: number;
  cut: number;
  messages: number;
  /** The longest wait for an echo, milliseconds. */
  longestStallMs: number;
  readonly reasons: string[];
}

export interface Tunnels {
  readonly report: TunnelReport;
  stop(): Promise<TunnelReport>;
}

/** Keeps `count` tunnels open on a URL, each for about `lifeMs`, a message every `everyMs`. */
export function startTunnels(
  url: string,
  { count, lifeMs, everyMs, onWait }: {
    count: number;
    lifeMs: number;
    everyMs: number;
    /** Told of each wait for an echo, instants of `performance.now()`. */
    onWait?: (from: number, to: number) => void;
  },
): Tunnels {
  const report: TunnelReport = {
    opened: 0,
    failed: 0,
    cut: 0,
    messages: 0,
    longestStallMs: 0,
    reasons: [],
  };
  let stopping = false;

  async function one(slot: number): Promise<void> {
    let socket: Socket;
    try {
      socket = await open(url);
    } catch (error) {
      report.failed += 1;
      report.reasons.push(`tunnel refused: ${error instanceof Error ? error.message : error}`);
      return;
    }
    report.opened += 1;
    let echoed = "";
    let ended = false;
    socket.setEncoding("latin1");
    socket.on("data", (text: string) => (echoed += text));
    socket.on("close", () => (ended = true));
    socket.on("error", () => (ended = true));
    const until = performance.now() + lifeMs * (0.5 + (slot % 10) / 10);
    for (let n = 0; performance.now() < until && !stopping; n += 1) {
      const message = `message ${slot} ${n};`;
      const sentAt = performance.now();
      echoed = "";
      socket.write(message);
      while (!echoed.includes(message) && !ended && performance.now() - sentAt < 10_000) {
        await pause(2);
      }
      if (!echoed.includes(message)) {
        report.cut += 1;
        report.reasons.push(`tunnel ${slot} ${ended ? "closed" : "silent"} at message ${n}`);
        socket.destroy();
        return;
      }
      report.messages += 1;
      const echoedAt = performance.now();
      report.longestStallMs = Math.max(report.longestStallMs, echoedAt - sentAt);
      onWait?.(sentAt, echoedAt);
      await pause(everyMs);
    }
    socket.end();
    while (!ended) await pause(2);
  }

  const slots = Array.from({ length: count }, async (_, slot) => {
    while (!stopping) await one(slot);
  });
  return {
    report,
    async stop() {
      stopping = true;
      await Promise.all(slots);
      return report;
    },
  };
}

function open(url: string): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const request = httpRequest(url, {
      headers: {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
      },
    });
    request.on("upgrade", (_response, socket, head) => {
      socket.on("error", () => {});
      if (head.length > 0) socket.unshift(head);
      resolve(socket);
    });
    request.on("response", (response) => {
      response.resume();
      reject(new Error(`status ${response.statusCode}`));
    });
    request.on("error", reject);
    request.end();
  });
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
