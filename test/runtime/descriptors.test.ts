/** A process that has run out of descriptors: what it listens on is there again with the next one. */
import { spawn } from "node:child_process";
import { readdir } from "node:fs/promises";
import * as nodeNet from "node:net";
import * as nodeTls from "node:tls";
import { test } from "uvu";
import { ownEnv, program, until } from "./support.ts";

const LIMIT = 128;
/**
 * A few more than there are descriptors for: each that leaves before its handshake keeps one for the
 * time that handshakes have, and those that wait behind it must not do so once more.
 */
const STRANGERS = LIMIT + 16;

/** Whether someone who connects now is answered. */
function isGreeted(kind: string, port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const isPlain = kind === "net" || kind === "http";
    const where = { host: "127.0.0.1", port };
    const socket = isPlain
      ? nodeNet.connect(where)
      : nodeTls.connect({ ...where, rejectUnauthorized: false });
    let heard = "";
    const leave = () => {
      socket.destroy();
      resolve(heard.includes("hello"));
    };
    if (kind.startsWith("http")) socket.write("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    socket.setTimeout(1000, leave);
    socket.on("error", leave);
    socket.on("close", leave);
    socket.on("data", (chunk) => {
      heard += String(chunk);
      if (heard.includes("hello")) leave();
    });
  });
}

for (const kind of ["net", "tls", "http", "https"]) {
  test(`${kind}: a listener without descriptors accepts again when there are some`, async () => {
    const { command, args } = program("greet.ts", kind);
    const limited = ["-c", `ulimit -n ${LIMIT} && exec "$0" "$@"`, command, ...args];
    const child = spawn("sh", limited, { env: ownEnv(), stdio: ["ignore", "pipe", "inherit"] });
    let output = "";
    child.stdout.on("data", (chunk) => void (output += String(chunk)));
    const sockets: nodeNet.Socket[] = [];
    try {
      await until("it listens", () => output.endsWith("\n"));
      const port = Number(output);
      await until("it greets", () => isGreeted(kind, port));
      for (let i = 0; i < STRANGERS; i++) {
        const socket = nodeNet.connect({ host: "127.0.0.1", port });
        socket.on("error", () => {});
        sockets.push(socket);
      }
      const openFiles = async () => (await readdir(`/proc/${child.pid}/fd`)).length;
      await until("it has no descriptors left", async () => (await openFiles()) >= LIMIT - 1);
      for (const socket of sockets) socket.destroy();
      await until("it greets again", () => isGreeted(kind, port));
    } finally {
      for (const socket of sockets) socket.destroy();
      const exited = new Promise((resolve) => child.once("exit", resolve));
      child.kill("SIGKILL");
      await exited;
    }
  });
}

test.run();
