/** The Runtime under test: that of whichever runtime runs the test file. */
import { loadRuntime } from "../../src/runtime/load.ts";

export const runtime = await loadRuntime();
