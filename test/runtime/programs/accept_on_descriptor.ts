/** Echoes on the listening socket inherited as descriptor 3. */
import { loadRuntime } from "../../../src/runtime/load.ts";

const runtime = await loadRuntime();
// Should its test fail, nobody kills it.
runtime.clock.after(120_000, () => runtime.exit(1));
await runtime.net.listen({
  address: { kind: "tcp", host: "127.0.0.1", port: 0 },
  descriptor: 3,
}, (socket) => {
  socket.handle({
    data: (chunk) => void socket.write(chunk.slice()),
    end: () => socket.end(),
    drain: () => {},
    close: () => {},
  });
});
runtime.print("stdout", "accepting");
