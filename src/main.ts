#!/usr/bin/env node
/** `node src/main.ts [verb] ...` or `deno run -A src/main.ts [verb] ...` */
import { runCli } from "./cli/cli.ts";
import { loadRuntime } from "./runtime/load.ts";

const runtime = await loadRuntime();
runtime.exit(await runCli(runtime));
