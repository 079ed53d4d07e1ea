/** Locks the folder that it is given, prints what came of it, and stays until it is killed. */

import process from "node:process";
import { runtime } from "../../support/runtime.ts";

const lock = await runtime.files.lockFolder(process.argv[2] ?? "");
console.log(lock.kind);
setInterval(() => {}, 60_000);
