/** Listens on the unix socket given as argument until it is killed. */
import { loadRuntime } from "../../../src/runtime/load.ts";

const runtime = await loadRuntime();
const [path = ""] = runtime.args;
await runtime.net.listen({ address: { kind: "unix", path } }, (socket) => socket.destroy());
