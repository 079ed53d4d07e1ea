/** Listens with the smallest backlog and prints the port. */
import { loadRuntime } from "../../../src/runtime/load.ts";

const runtime = await loadRuntime();
const listener = await runtime.net.listen({
  address: { kind: "tcp", host: "127.0.0.1", port: 0 },
  backlog: 1,
}, (socket) => socket.destroy());
if (listener.address.kind === "tcp") runtime.print("stdout", String(listener.address.port));
