/** The module that a thread of the data path runs. */
import { loadRuntime } from "../runtime/load.ts";
import { runThread } from "./thread.ts";

const runtime = await loadRuntime();
if (runtime.threads.parent !== undefined) runThread(runtime, runtime.threads.parent);
