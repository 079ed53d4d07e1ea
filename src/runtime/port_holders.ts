/** Who listens on a TCP port, as Linux tells it: `/proc/net/tcp` and the descriptors of processes. */

import { readdir, readFile, readlink } from "node:fs/promises";

/** The state of a listening socket in `/proc/net/tcp`. */
const LISTENING = "0A";

/**
 * The processes that hold a listening socket on the port; empty if there is none, or none that may be
 * looked into. `guess` is looked at first, and nobody else if it does.
 */
export async function portHolders(port: number, guess?: number): Promise<number[]> {
  const tables = await Promise.all(["tcp", "tcp6"].map(readTable));
  const sockets = new Set(tables.flatMap((table) => listeningSockets(table, port)));
  if (sockets.size === 0) return [];
  if (guess !== undefined && await holdsAny(guess, sockets)) return [guess];
  const holders: number[] = [];
  for (const name of await readdir("/proc")) {
    if (/^\d+$/.test(name) && await holdsAny(Number(name), sockets)) holders.push(Number(name));
  }
  return holders;
}

/** The descriptors' names of the sockets that a table has listening on the port. */
export function listeningSockets(table: string, port: number): string[] {
  const suffix = `:${port.toString(16).toUpperCase().padStart(4, "0")}`;
  return table.split("\n").flatMap((line) => {
    const [, local, , state, , , , , , inode] = line.trim().split(/\s+/);
    return state === LISTENING && local?.endsWith(suffix) ? [`socket:[${inode}]`] : [];
  });
}

function readTable(name: string): Promise<string> {
  return readFile(`/proc/net/${name}`, "utf8").catch(() => "");
}

async function holdsAny(pid: number, sockets: ReadonlySet<string>): Promise<boolean> {
  try {
    const folder = `/proc/${pid}/fd`;
    const links = await Promise.all(
      (await readdir(folder)).map((name) => readlink(`${folder}/${name}`).catch(() => "")),
    );
    return links.some((link) => sockets.has(link));
  } catch {
    // Gone meanwhile, or another user's.
    return false;
  }
}
