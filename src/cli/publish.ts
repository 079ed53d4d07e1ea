/**
 * `baton publish <name> <file>`: adds a build to a file oracle. Every Baton that watches the file
 * rolls it out.
 */

import { loadConfig } from "../config/load.ts";
import type { Runtime } from "../runtime/runtime.ts";
import { fileUrlPath } from "../supervisor/address.ts";
import { publish as publishBuild } from "../supervisor/publish.ts";
import { type Arguments, UsageError } from "./arguments.ts";
import { EXIT, type Verb } from "./verb.ts";

export const publish: Verb = {
  name: "publish",
  usage: "<version> <file> [--service <name> | --oracle <file> [--binary-name <name>]] " +
    "[--entry-point <path>] [--config <file>]",
  summary: "Add a build (a zip, a tar.gz or a program) to a file oracle",
  options: ["config", "service", "oracle", "binary-name", "entry-point"],
  plain: [2, 2],
  async run(runtime, given) {
    const [name = "", file = ""] = given.plain;
    const { oracleFile, binaryName } = await destination(runtime, given);
    const entryPoint = given.option("entry-point");
    const published = await publishBuild({
      runtime,
      oracleFile,
      name,
      file,
      binaryName,
      ...(entryPoint === undefined ? {} : { entryPoint }),
    });
    runtime.print("stdout", JSON.stringify(published));
    return EXIT.ok;
  },
};

/** The oracle's file: named outright, or that of the configured service. */
async function destination(
  runtime: Runtime,
  given: Arguments,
): Promise<{ oracleFile: string; binaryName: string }> {
  const named = given.option("oracle");
  if (named !== undefined) {
    const binaryName = given.option("binary-name") ?? "devshard";
    return { oracleFile: named.startsWith("file:") ? fileUrlPath(named) : named, binaryName };
  }
  const path = given.option("config");
  const { config } = await loadConfig(runtime, path === undefined ? {} : { path });
  const wanted = given.option("service");
  const found = Object.entries(config.services).flatMap(([name, { versions }]) =>
    versions !== undefined && (wanted === undefined || wanted === name) ? [{ name, versions }] : []
  );
  const [only] = found;
  if (only === undefined) {
    throw new UsageError(
      wanted === undefined
        ? "the configuration has no service with versions; say --oracle <file>"
        : `there is no service ${wanted} with versions`,
    );
  }
  if (found.length > 1) {
    const names = found.map((one) => one.name).join(", ");
    throw new UsageError(`several services have versions (${names}); say --service <name>`);
  }
  const { oracle, binaryName } = only.versions;
  if (!oracle.startsWith("file:")) {
    throw new UsageError(
      `the oracle of ${only.name} is ${oracle}: only a file can be published to`,
    );
  }
  return { oracleFile: fileUrlPath(oracle), binaryName };
}
