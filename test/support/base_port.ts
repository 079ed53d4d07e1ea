/**
 * Ports for whoever must know one before it is bound. Tests run side by side, also those of two copies
 * of the suite: what one has, a file says to all others until its process has ended.
 */

import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import process from "node:process";

/** All below the range of ephemeral ports. */
const FIRST_PORT = 10_000;
const BLOCKS = 1_100;
const PORTS_IN_A_BLOCK = 20;

const claimed: string[] = [];
process.on("exit", () => {
  for (const file of claimed) rmSync(file, { force: true });
});

/** The first of twenty ports that no other test has. */
export function basePort(): number {
  // Far from where processes that were started at the same time begin to look.
  const start = process.pid * 31;
  for (let block = start; block < start + BLOCKS; block += 1) {
    const port = FIRST_PORT + block % BLOCKS * PORTS_IN_A_BLOCK;
    if (claim(port)) return port;
  }
  throw new Error("other tests have all ports");
}

function claim(port: number): boolean {
  const file = `${tmpdir()}/baton-test-ports-${port}`;
  for (let tries = 0; tries < 2; tries += 1) {
    try {
      writeFileSync(file, String(process.pid), { flag: "wx" });
      claimed.push(file);
      return true;
    } catch (error) {
      if ((error as { code?: string }).code !== "EEXIST") throw error;
      if (!isAbandoned(file)) return false;
      rmSync(file, { force: true });
    }
  }
  return false;
}

/** Whether the process that left the file has ended. */
function isAbandoned(file: string): boolean {
  try {
    process.kill(Number(readFileSync(file, "utf8")), 0);
    return false;
  } catch (error) {
    return (error as { code?: string }).code === "ESRCH";
  }
}
