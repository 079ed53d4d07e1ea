/** Prints its arguments, then each signal that it gets; exits with 42 at SIGTERM. */
import { loadRuntime } from "../../../src/runtime/load.ts";

const runtime = await loadRuntime();
let count = 0;
runtime.onSignal("SIGUSR1", () => runtime.print("stdout", `SIGUSR1 ${++count}`));
runtime.onSignal("SIGHUP", () => runtime.print("stdout", "SIGHUP"));
runtime.onSignal("SIGHUP", () => runtime.print("stdout", "not any more"))();
runtime.onSignal("SIGTERM", () => runtime.exit(42));
runtime.print("stdout", runtime.args.join("|"));
runtime.clock.after(60_000, () => {});
