/** Listens, with a backlog if one is given, and prints the port. */
import process from "node:process";
import { loadRuntime } from "../../../src/runtime/load.ts";

const runtime = await loadRuntime();
// Should its test fail, nobody kills it.
runtime.clock.after(120_000, () => runtime.exit(1));
const [, , backlog] = process.argv;
const listener = await runtime.net.listen({
  address: { kind: "tcp", host: "127.0.0.1", port: 0 },
  ...(backlog === undefined ? {} : { backlog: Number(backlog) }),
}, (socket) => socket.destroy());
if (listener.address.kind === "tcp") runtime.print("stdout", String(listener.address.port));
