/** Greets who connects, in the way that the first argument names, and prints the port. */
import { loadRuntime } from "../../../src/runtime/load.ts";
import type { ByteSocket, ListenOptions } from "../../../src/runtime/runtime.ts";
import { serverCert, serverKey } from "../certificates.ts";

const runtime = await loadRuntime();
// Should its test fail, nobody kills it.
runtime.clock.after(120_000, () => runtime.exit(1));
// Deno sets up its signals with the first one, and ends if it has no descriptors for that.
runtime.onSignal("SIGHUP", () => {});

const options: ListenOptions = { address: { kind: "tcp", host: "127.0.0.1", port: 0 } };
const greet = (socket: ByteSocket) => {
  socket.handle({ data: () => {}, end: () => socket.end(), drain: () => {}, close: () => {} });
  socket.write("hello");
};
const pair = { cert: serverCert, key: serverKey };

function listen() {
  switch (runtime.args[0]) {
    case "net":
      return runtime.net.listen(options, greet);
    case "tls":
      return runtime.tls.listen(
        { ...options, pair, minVersion: "TLSv1.2", protocols: ["http/1.1"] },
        greet,
      );
    case "http":
      return runtime.http.serve(options, () => Promise.resolve(new Response("hello")));
    default:
      return runtime.http.serve(
        { ...options, tls: pair },
        () => Promise.resolve(new Response("hello")),
      );
  }
}

const { address } = await listen();
if (address.kind === "tcp") runtime.print("stdout", `${address.port}\n`);
