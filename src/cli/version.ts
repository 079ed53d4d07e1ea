/**
 * `baton version`.
 */

import { BATON_VERSION } from "../version.ts";
import { EXIT, type Verb } from "./verb.ts";

export const version: Verb = {
  name: "version",
  usage: "",
  summary: "Print the version and the runtime",
  run(runtime) {
    runtime.print("stdout", `baton ${BATON_VERSION} (${runtime.name} ${runtime.version})`);
    return Promise.resolve(EXIT.ok);
  },
};
