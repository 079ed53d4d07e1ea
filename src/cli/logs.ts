/**
 * `baton logs <version>`: what a version's children printed.
 */

import { loadConfig } from "../config/load.ts";
import { childLogPath } from "../supervisor/child_log.ts";
import { followLogFile, tailLogFile } from "../supervisor/log_reader.ts";
import { supervisorFolders } from "../supervisor/folders.ts";
import { UsageError } from "./arguments.ts";
import { EXIT, type Verb } from "./verb.ts";

export const logs: Verb = {
  name: "logs",
  usage: "<version> [--lines <n>] [--follow] [--service <name>] [--config <file>]",
  summary: "Print what a version's processes printed",
  options: ["config", "service", "lines"],
  flags: ["follow"],
  plain: [1, 1],
  async run(runtime, given) {
    const { files, clock } = runtime;
    const [version = ""] = given.plain;
    const configPath = given.option("config");
    const { config } = await loadConfig(
      runtime,
      configPath === undefined ? {} : { path: configPath },
    );
    const wanted = given.option("service");
    const paths: string[] = [];
    const looked: string[] = [];
    for (const [service, { versions }] of Object.entries(config.services)) {
      if (versions === undefined || (wanted !== undefined && wanted !== service)) continue;
      const folders = supervisorFolders({ stateDir: config.stateDir, service, config: versions });
      const path = childLogPath(folders.logs, version);
      looked.push(path);
      if ((await files.info(path)) !== undefined) paths.push(path);
    }
    const [path] = paths;
    if (looked.length === 0) {
      throw new UsageError(
        wanted === undefined
          ? "the configuration has no service with versions"
          : `the configuration has no service ${wanted} with versions`,
      );
    }
    if (path === undefined) {
      throw new Error(
        `there is no log of a version ${version}: no process of it has printed anything ` +
          `(looked for ${looked.join(", ")})`,
      );
    }
    if (paths.length > 1) throw new UsageError("several services have it; say --service <name>");

    const lines = given.whole("lines", 0, 1_000_000) ?? 200;
    const print = (all: readonly string[]): void => {
      for (const line of all) runtime.print("stdout", line);
    };
    if (!given.flag("follow")) {
      print(await tailLogFile(files, path, lines));
      return EXIT.ok;
    }
    const stop = new AbortController();
    for (const signal of ["SIGINT", "SIGTERM"] as const) {
      runtime.onSignal(signal, () => stop.abort());
    }
    await followLogFile({ files, clock, path, tail: lines, signal: stop.signal, onLines: print });
    return EXIT.ok;
  },
};
