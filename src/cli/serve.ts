/**
 * `baton serve`: runs until it is told to stop.
 *
 * SIGTERM and SIGHUP: down in order; further ones change nothing. SIGINT: down at once, also in the
 * middle of that.
 */

import { loadConfig, type Override } from "../config/load.ts";
import type { Baton } from "../host/baton.ts";
import { createLog } from "../observe/log.ts";
import { BATON_VERSION } from "../version.ts";
import type { Arguments } from "./arguments.ts";
import { EXIT, type Verb } from "./verb.ts";

/** Options that stand for a variable; the last four make Baton a program that Baton can supervise. */
const SHORTHANDS: Readonly<Record<string, readonly [variable: string, before: string]>> = {
  "traffic": ["BATON_LISTEN_TRAFFIC", ""],
  "admin-listen": ["BATON_LISTEN_ADMIN", ""],
  "peer": ["BATON_LISTEN_PEER", ""],
  "port": ["BATON_LISTEN_TRAFFIC", ":"],
  "admin-port": ["BATON_LISTEN_ADMIN", "127.0.0.1:"],
  "peer-port": ["BATON_LISTEN_PEER", "127.0.0.1:"],
  "data-dir": ["BATON_STATE_DIR", ""],
};

export const serve: Verb = {
  name: "serve",
  usage: "[--config <file>] [--traffic <address>] [--admin-listen <address>] [--peer <address>] " +
    "[--port <n>] [--admin-port <n>] [--peer-port <n>] [--data-dir <folder>]",
  summary: "Serve (the default)",
  options: ["config", ...Object.keys(SHORTHANDS)],
  async run(runtime, given) {
    const path = given.option("config");
    const loaded = await loadConfig(runtime, {
      ...(path === undefined ? {} : { path }),
      overrides: overridesOf(given),
    });
    const log = createLog({
      write: (line, isUrgent) =>
        isUrgent ? runtime.print("stderr", line) : runtime.printSoon("stderr", line),
      now: () => runtime.clock.now(),
      level: loaded.config.log.level,
    });
    const { name, version, pid } = runtime;
    log.info("starting", {
      baton: BATON_VERSION,
      runtime: name,
      version,
      pid,
      config: loaded.path,
    });
    for (const warning of loaded.warnings) log.warn("configuration", { warning });

    // Listened to before anything is started: a signal in the middle of the start must not kill us.
    const running: { baton?: Baton } = {};
    let forced = false;
    const told = new Promise<void>((resolve) => {
      for (const signal of ["SIGTERM", "SIGHUP", "SIGINT"] as const) {
        runtime.onSignal(signal, () => {
          log.info("signal", { signal });
          forced ||= signal === "SIGINT";
          if (forced) void running.baton?.force();
          resolve();
        });
      }
    });
    // The other verbs share this program and must not wait for the whole host to load.
    const { startBaton } = await import("../host/baton.ts");
    const baton = await startBaton(runtime, log, loaded);
    running.baton = baton;
    await told;
    if (forced) await baton.force();
    const report = await baton.shutDown();
    return report.forced || report.cut > 0 ? EXIT.cut : EXIT.ok;
  },
};

function overridesOf(given: Arguments): Record<string, Override> {
  const overrides: Record<string, Override> = {};
  for (const [option, [variable, before]] of Object.entries(SHORTHANDS)) {
    const value = given.option(option);
    if (value === undefined) continue;
    overrides[variable] = { value: before + value.trim(), option: `--${option}` };
  }
  return overrides;
}
