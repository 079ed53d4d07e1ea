import http from "node:http";
import { createServer, type Server } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { listeningSockets } from "../../src/runtime/port_holders.ts";
import { PortComplaint, strangerOn } from "../../src/supervisor/port_clash.ts";
import { runtime } from "../support/runtime.ts";
import { type Harness, withHarness } from "./harness.ts";

/**
 * Takes a generation's port between the fork and the child's bind: at the move to `starting`, which
 * is told in the turn of the fork.
 */
function takePortOf(h: Harness, numbers: readonly number[], make: () => Server): Server[] {
  const taken: Server[] = [];
  h.events.subscribe((event) => {
    if (event.kind !== "generation_moved" || event.to !== "starting") return;
    if (!numbers.includes(Number(event.generation))) return;
    const generation = h.supervisor.generations().find((one) => one.number === event.generation);
    const server = make();
    server.on("error", () => {});
    server.listen(generation?.port, "127.0.0.1");
    taken.push(server);
  });
  return taken;
}

const silent = (): Server => createServer((socket) => socket.destroy());
const impostor = (): Server => http.createServer((_request, response) => response.end("impostor"));

function kinds(h: Harness): string[] {
  return h.events.since(0).map((event) => event.kind);
}

test(
  "a port that is taken before the child binds it: another one is tried, and the build is not blamed",
  withHarness({}, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    const taken = takePortOf(h, [2], silent);
    try {
      await h.publish("v1", { id: "two", listenDelayMs: 100 });
      await h.serves("v1", "two");
      const clash = await h.event("port_clash");
      assert.is(clash.generation, 2);
      assert.not(kinds(h).includes("rollout_failed"));
      assert.equal(h.supervisor.list()[0]?.quarantined, []);
      assert.is(h.supervisor.targets()[0]?.generation, 3);
    } finally {
      for (const server of taken) server.close();
    }
  }),
);

test(
  "a stranger that answers every probe on the child's port gets no request",
  withHarness({}, async (h) => {
    const taken = takePortOf(h, [1], impostor);
    try {
      // The child looks for its port long after the stranger has answered as if it were ready.
      await h.publish("v1", { id: "one", listenDelayMs: 2_000 });
      await h.event("port_clash");
      for (const server of taken) server.unref();
      const answer = await h.get("/v1/who");
      assert.match(answer.text, /^one /);
      assert.not(kinds(h).includes("child_crashed"));
      assert.not(
        h.events.since(0).some((one) => one.kind === "traffic_switched" && one.generation === 1),
      );
    } finally {
      for (const server of taken) server.close();
    }
  }),
);

test(
  "a restart whose port is taken goes on on another port at once",
  withHarness({ config: { restartBackoffMs: 20 } }, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    const taken = takePortOf(h, [2], silent);
    try {
      await h.crash("v1");
      await h.serves("v1", "one");
      await h.event("port_clash");
      assert.is(h.supervisor.targets()[0]?.generation, 3);
    } finally {
      for (const server of taken) server.close();
    }
  }),
);

test(
  "where every port is taken away the failure is transient: tried again later, not held against it",
  withHarness({ config: { retryBackoffMs: 50 } }, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    const taken = takePortOf(h, [2, 3, 4, 5, 6], silent);
    try {
      await h.publish("v1", { id: "two" });
      const failed = await h.event("rollout_failed");
      assert.is(failed.class, "transient");
      await h.serves("v1", "two");
      assert.is(h.events.since(0).filter((event) => event.kind === "port_clash").length, 5);
    } finally {
      for (const server of taken) server.close();
    }
  }),
);

test(
  "a child that ends for another reason is blamed as ever, also if somebody listens elsewhere",
  withHarness({ config: { restartBackoffMs: 60_000 } }, async (h) => {
    await h.publish("v1", { id: "one" });
    await h.serves("v1", "one");
    await h.publish("v1", { id: "two", exitAtOnce: 7 });
    assert.is((await h.event("rollout_failed")).class, "crash");
    assert.not(kinds(h).includes("port_clash"));
  }),
);

test("a stranger is older than the child, or another child; a younger process may serve for it", async () => {
  const server = silent();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as { port: number };
  const own = await runtime.processes.startTime(runtime.pid) ?? "";
  const ask = (group: number, startTime: string | undefined) =>
    strangerOn(runtime, port, { group, mark: "owner/v1/1", startTime });
  try {
    assert.equal(await runtime.processes.portHolders(port), [runtime.pid]);
    assert.is(await ask(runtime.pid, own), undefined, "the child itself");
    assert.is(await ask(2 ** 22 + 1, String(BigInt(own) + 1n)), runtime.pid, "older");
    assert.is(await ask(2 ** 22 + 1, String(BigInt(own) - 1n)), undefined, "younger");
    assert.is(await ask(2 ** 22 + 1, undefined), runtime.pid, "the child has ended");
  } finally {
    server.close();
  }
});

test("of the system's table only sockets that listen on the port count", () => {
  const line = (local: string, state: string, inode: number): string =>
    `   0: ${local} 00000000:0000 ${state} 00000000:00000000 00:00000000 00000000  0        0 ${inode} 1`;
  const table = [
    "  sl  local_address rem_address   st",
    line("0100007F:1388", "0A", 11),
    line("00000000:1388", "0A", 12),
    line("0100007F:1388", "01", 13),
    line("0100007F:1389", "0A", 14),
    line("00000000000000000000000000000000:1388", "0A", 15),
  ].join("\n");
  assert.equal(listeningSockets(table, 5000), ["socket:[11]", "socket:[12]", "socket:[15]"]);
});

test("the complaint that a port is taken is heard in pieces, and only early", () => {
  const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);
  for (
    const text of [
      "Error: listen EADDRINUSE: address already in use 127.0.0.1:5000",
      "bind: Address already in use",
      "OSError: [Errno 98] Address in use",
    ]
  ) {
    const complaint = new PortComplaint();
    complaint.read(bytes(text.slice(0, 20)));
    complaint.read(bytes(text.slice(20)));
    assert.is(complaint.heard, true, text);
  }
  const late = new PortComplaint();
  late.read(new Uint8Array(300_000));
  late.read(bytes("EADDRINUSE"));
  assert.is(late.heard, false);
});

test.run();
