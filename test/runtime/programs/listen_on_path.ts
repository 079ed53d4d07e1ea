/** Listens on the unix socket given as argument until it is killed. */
import { loadRuntime } from "../../../src/runtime/load.ts";

const runtime = await loadRuntime();
// Should its test fail, nobody kills it.
runtime.clock.after(120_000, () => runtime.exit(1));
const [path = ""] = runtime.args;
await runtime.net.listen({ address: { kind: "unix", path } }, (socket) => socket.destroy());
