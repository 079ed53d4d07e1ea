import { createServer, type Server } from "node:net";
import type { AddressInfo } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { osPortCheck, PortPool, PortsExhausted } from "../../src/supervisor/ports.ts";
import { runtime } from "../support/runtime.ts";
import { rejection } from "../support/scratch.ts";

const anyFree = () => Promise.resolve(true);

test("case 42: of two ports taken the first is freed and given again", async () => {
  const pool = new PortPool({ base: 5000, isFree: anyFree });
  assert.is(await pool.assign(), 5000);
  assert.is(await pool.assign(), 5001);
  pool.release(5000);
  assert.is(await pool.assign(), 5000);
  assert.is(await pool.assign(), 5002);
});

test("case 43: the supervisor's own port is skipped", async () => {
  const pool = new PortPool({ base: 8079, reserved: [8080], isFree: anyFree });
  assert.is(await pool.assign(), 8079);
  assert.is(await pool.assign(), 8081);
});

test("case 44: a base that is no port means 5000", async () => {
  for (const base of [70_000, 0, -3, 1.5, Number.NaN]) {
    assert.is(await new PortPool({ base, isFree: anyFree }).assign(), 5000, String(base));
  }
});

test("case 45: with the only port taken the pool is exhausted, and says which ports it has", async () => {
  const pool = new PortPool({ base: 65_535, isFree: anyFree });
  assert.is(await pool.assign(), 65_535);
  const error = await rejection(pool.assign());
  assert.instance(error, PortsExhausted);
  assert.match(error.message, "65535..65535");
  pool.release(65_535);
  assert.is(await pool.assign(), 65_535);
});

test("a port that something else on the host listens on is not given out (M12)", async () => {
  for (const host of ["127.0.0.1", "0.0.0.0"]) {
    const server = await listening(host);
    const taken = (server.address() as AddressInfo).port;
    const pool = new PortPool({ base: taken, isFree: osPortCheck(runtime.net) });
    const port = await pool.assign();
    assert.ok(port > taken, `${port} after ${taken} on ${host}`);
    await new Promise((resolve) => server.close(resolve));
    assert.is(await pool.assign(), taken, "free again once it is let go");
  }
});

test("two starts at once never get one port, however slow the host answers", async () => {
  const pool = new PortPool({
    base: 6000,
    isFree: () => new Promise((resolve) => setTimeout(() => resolve(true), 5)),
  });
  const ports = await Promise.all(Array.from({ length: 20 }, () => pool.assign()));
  assert.is(new Set(ports).size, 20);
});

test("a failing look at the host leaves no port behind as taken", async () => {
  let fails = true;
  const pool = new PortPool({
    base: 7000,
    isFree: () => fails ? Promise.reject(new Error("no sockets left")) : Promise.resolve(true),
  });
  assert.match((await rejection(pool.assign())).message, "no sockets left");
  fails = false;
  assert.is(await pool.assign(), 7000);
});

test("releasing what is no port does nothing", async () => {
  const pool = new PortPool({ base: 5000, isFree: anyFree });
  await pool.assign();
  pool.release(undefined);
  pool.release(-1);
  assert.is(await pool.assign(), 5001);
});

function listening(host: string): Promise<Server> {
  const server = createServer();
  return new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen(0, host, () => resolve(server));
  });
}

test.run();
