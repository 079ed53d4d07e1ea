/** Listens with the smallest backlog and prints the port. */
import { loadRuntime } from "../../../src/runtime/load.ts";

const runtime = await loadRuntime();
// Should its test fail, nobody kills it.
runtime.clock.after(120_000, () => runtime.exit(1));
const listener = await runtime.net.listen({
  address: { kind: "tcp", host: "127.0.0.1", port: 0 },
  backlog: 1,
}, (socket) => socket.destroy());
if (listener.address.kind === "tcp") runtime.print("stdout", String(listener.address.port));
