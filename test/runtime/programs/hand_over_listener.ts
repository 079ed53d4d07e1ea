/**
 * Runs on Node: listens, prints `port <n>`, and starts the command given as arguments with the
 * listening socket as its descriptor 3, as systemd's socket activation does.
 */
import { spawn } from "node:child_process";
import { createServer } from "node:net";
import process from "node:process";

const server = createServer();
server.listen(0, "127.0.0.1", () => {
  const address = server.address();
  const handle = (server as unknown as { _handle: { fd: number } })._handle;
  if (address === null || typeof address === "string") throw new Error("no port");
  process.stdout.write(`port ${address.port}\n`);
  const [command = "", ...args] = process.argv.slice(2);
  const child = spawn(command, args, { stdio: ["ignore", "inherit", "inherit", handle.fd] });
  child.on("spawn", () => server.close());
});
