/** Publishes builds one after another. Arguments: oracle file, program file, names. */

import process from "node:process";
import { loadRuntime } from "../../../src/runtime/load.ts";
import { publish } from "../../../src/supervisor/publish.ts";

const [oracleFile = "", file = "", ...names] = process.argv.slice(2);
const runtime = await loadRuntime();
for (const name of names) {
  await publish({ runtime, oracleFile, name, file, binaryName: "devshard" });
}
