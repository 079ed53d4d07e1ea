/**
 * The operator's verbs on one version: `baton pause v1`, `baton rollback v1`, ...
 */

import { type OperatorVerb, VERB_OPTIONS, VERBS } from "../supervisor/operators.ts";
import { ADMIN_OPTIONS, adminClient } from "./admin_client.ts";
import { EXIT, type Verb } from "./verb.ts";

const SUMMARY: Readonly<Record<OperatorVerb, string>> = {
  pause: "Begin no roll-out of a version; --traffic: also hold its new requests",
  resume: "End a pause",
  pin: "Keep a version on its build, or on --sha256",
  unpin: "Let it follow the oracle again",
  rollback: "Go back to the build before, or to --sha256",
  promote: "End a canary in favour of the new build",
  deny: "Never start a build again: the listed one, or --sha256",
  allow: "Forget that a build failed or was denied: any, or --sha256",
  restart: "Hand over to a new generation of the same build",
};

const USAGE = {
  sha256: " [--sha256 <hex>]",
  reason: " [--reason <text>]",
  traffic: " [--traffic]",
};

export const controls: readonly Verb[] = VERBS.map((name): Verb => {
  const taken: readonly (keyof typeof USAGE)[] = VERB_OPTIONS[name];
  return {
    name,
    usage: `<version>${
      taken.map((one) => USAGE[one]).join("")
    } [--service <name>] [--admin <url>] ` +
      "[--config <file>]",
    summary: SUMMARY[name],
    options: [...ADMIN_OPTIONS, "service", ...taken.filter((one) => one !== "traffic")],
    flags: taken.filter((one) => one === "traffic"),
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
  };
});
