/**
 * Installs one build and prints its path; kills itself (-9) right after the Nth change to the disk.
 * Arguments: url, sha256, binDir, N (0: never).
 */

import process from "node:process";
import { defaultVersionsConfig } from "../../../src/config/versions.ts";
import { silentLog } from "../../../src/observe/log.ts";
import { loadRuntime } from "../../../src/runtime/load.ts";
import { Installs } from "../../../src/supervisor/installs.ts";
import { counted } from "../../support/failing_files.ts";

const [url = "", sha256 = "", binDir = "", at = "0"] = process.argv.slice(2);
const runtime = await loadRuntime();
const installs = new Installs({
  runtime: {
    ...runtime,
    files: counted(runtime.files, (count) => {
      if (count === Number(at)) process.kill(process.pid, "SIGKILL");
    }),
  },
  log: silentLog,
  binDir,
  config: defaultVersionsConfig({ oracle: "file:x" }),
});
const install = await installs.ensure({ name: "v1", url, sha256 });
console.log(install.binary);
