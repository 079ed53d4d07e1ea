/**
 * The operator's verbs on one version: `baton pause v1`, `baton rollback v1`, ...
 */

import { VERSION_VERBS, type VersionVerb } from "../http/versions_api.ts";
import { ADMIN_OPTIONS, adminClient } from "./admin_client.ts";
import { EXIT, type Verb } from "./verb.ts";

const SUMMARY: Readonly<Record<VersionVerb, string>> = {
  pause: "Begin no roll-out of a version; --traffic: also hold its new requests",
  resume: "End a pause",
  pin: "Keep a version on its build, or on --sha256",
  unpin: "Let it follow the oracle again",
  rollback: "Go back to the build before",
  promote: "End a canary in favour of the new build",
  deny: "Never start a build again (its sha256, or the current one)",
  allow: "Forget that a build failed or was denied",
  restart: "Hand over to a new generation of the same build",
};

export const controls: readonly Verb[] = VERSION_VERBS.map((name): Verb => ({
  name,
  usage:
    "<version> [--service <name>] [--sha256 <hex>] [--reason <text>] [--traffic] [--admin <url>]",
  summary: SUMMARY[name],
  options: [...ADMIN_OPTIONS, "service", "sha256", "reason"],
  flags: ["traffic"],
  plain: [1, 1],
  async run(runtime, given) {
    const client = await adminClient(runtime, given);
    const [version = ""] = given.plain;
    const service = given.option("service");
    const query = service === undefined ? "" : `?service=${encodeURIComponent(service)}`;
    const sha256 = given.option("sha256");
    const reason = given.option("reason");
    const answer = await client.json(
      "POST",
      `/api/v1/versions/${encodeURIComponent(version)}/${name}${query}`,
      {
        ...(sha256 === undefined ? {} : { sha256 }),
        ...(reason === undefined ? {} : { reason }),
        ...(given.flag("traffic") ? { traffic: true } : {}),
      },
    );
    runtime.print("stdout", JSON.stringify(answer));
    const { warning } = (answer ?? {}) as { warning?: string };
    if (warning === undefined) return EXIT.ok;
    runtime.print("stderr", `${name} ${version}: ${warning}`);
    return EXIT.failed;
  },
}));
