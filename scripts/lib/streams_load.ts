/**
 * Both ends of the streams bench.
 *
 * `streams_load.ts serve <events per second>`: answers every request with an event stream; each
 * event carries the instant at which it was written. Prints its port.
 * `streams_load.ts ask <port> <streams> <seconds> <upstream port> <proxy pid>`: opens streams at the
 * proxy and a tenth as many at the upstream, and prints, as JSON, the delays of the events that came
 * in the last `seconds`, in microseconds, as percentiles: through the proxy, the same without the
 * time in which the proxy was ready to run and had no core (core_waits.ts), and directly. The latter
 * are subject to all that this process and the upstream are late by themselves.
 */

import { connect, createServer, type Socket } from "node:net";
import process from "node:process";
import { percentile } from "./bench.ts";
import { CoreWaits } from "./core_waits.ts";

const HEAD =
  "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
const PADDING = "x".repeat(60);
/** Streams get their events spread over the period, not all at once. */
const SLOTS = 50;

function nowUs(): number {
  return Number(process.hrtime.bigint() / 1000n);
}

function serve(eventsPerSecond: number): void {
  const slots: Set<Socket>[] = Array.from({ length: SLOTS }, () => new Set());
  let next = 0;
  const server = createServer({ noDelay: true }, (socket) => {
    const slot = slots[next++ % SLOTS] as Set<Socket>;
    socket.on("error", () => {});
    socket.on("close", () => slot.delete(socket));
    socket.once("data", () => {
      socket.write(HEAD);
      slot.add(socket);
    });
  });
  server.listen({ port: 0, host: "127.0.0.1", backlog: 4096 }, () => {
    const address = server.address();
    if (address !== null && typeof address !== "string") console.log(address.port);
  });
  const periodUs = 1_000_000 / eventsPerSecond / SLOTS;
  let due = nowUs();
  let at = 0;
  setInterval(() => {
    for (const now = nowUs(); due <= now; due += periodUs) {
      for (const socket of slots[at] as Set<Socket>) {
        const event = `data: ${nowUs()} ${PADDING}\n\n`;
        socket.write(`${event.length.toString(16)}\r\n${event}\r\n`);
      }
      at = (at + 1) % SLOTS;
    }
  }, 1);
}

async function ask(
  port: number,
  streams: number,
  seconds: number,
  upstreamPort: number,
  proxyPid: number,
): Promise<void> {
  const cores = new CoreWaits({ countsOwn: false });
  cores.watch(proxyPid, "always");
  const delays: number[] = [];
  const arrivedMs: number[] = [];
  const directDelays: number[] = [];
  let measuring = false;
  let closed = 0;
  const sockets: Socket[] = [];
  const all = Math.round(streams * 1.1);
  for (let index = 0; index < all; index++) {
    const isDirect = index % 11 === 10;
    const socket = connect({
      port: isDirect ? upstreamPort : port,
      host: "127.0.0.1",
      noDelay: true,
    });
    sockets.push(socket);
    socket.on("error", () => {});
    socket.on("close", () => closed++);
    socket.on("data", (chunk) => {
      if (!measuring) return;
      const now = nowUs();
      const nowMs = performance.now();
      for (const match of chunk.toString("latin1").matchAll(/data: (\d+)/g)) {
        const delayUs = now - Number(match[1]);
        if (isDirect) directDelays.push(delayUs);
        else {
          delays.push(delayUs);
          arrivedMs.push(nowMs);
        }
      }
    });
    socket.write("GET /events HTTP/1.1\r\nHost: bench\r\n\r\n");
    if (index % 50 === 49) await new Promise((resolve) => setTimeout(resolve, 5));
  }
  await new Promise((resolve) => setTimeout(resolve, 1000));
  measuring = true;
  const since = performance.now();
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  measuring = false;
  const untilMs = performance.now();
  cores.stop();
  const own = delays.map((delayUs, index) => {
    const atMs = arrivedMs[index] ?? 0;
    return delayUs - 1000 * cores.within(atMs - delayUs / 1000, atMs);
  });
  console.log(JSON.stringify({
    events: delays.length,
    closed,
    waited_share: cores.within(since, untilMs) / (untilMs - since),
    p50_us: percentile(delays, 0.5),
    p99_us: percentile(delays, 0.99),
    own_p50_us: percentile(own, 0.5),
    own_p99_us: percentile(own, 0.99),
    direct_p50_us: percentile(directDelays, 0.5),
    direct_p99_us: percentile(directDelays, 0.99),
  }));
  // The streams stay open until the bench has read the memory of the proxy.
  process.stdout.write("measured\n");
  await new Promise((resolve) => setTimeout(resolve, 700));
  for (const socket of sockets) socket.destroy();
  process.exit(0);
}

const [verb, ...numbers] = process.argv.slice(2);
const [first = 0, second = 0, third = 0, fourth = 0, fifth = 0] = numbers.map(Number);
if (verb === "serve") serve(first);
else await ask(first, second, third, fourth, fifth);
