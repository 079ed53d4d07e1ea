/**
 * `/api/v1/versions`: what the versions services run, and the operator's hand on it.
 */

import type { Hono } from "hono";
import { BatonError } from "../errors.ts";
import {
  type OperatorOptions,
  type OperatorVerb,
  VERB_OPTIONS,
  VERBS,
} from "../supervisor/operators.ts";
import { readBody } from "./body.ts";

/** What the admin API needs of one versions service; the supervisor provides it. */
export interface VersionsOperator {
  readonly service: string;
  /** The status of every version, as plain JSON with at least `name`. */
  list(): readonly { readonly name: string; readonly [field: string]: unknown }[];
  /** Throws BatonError `unknown_version`, or `conflict` with the reason when it cannot be. */
  control(name: string, verb: OperatorVerb, options: OperatorOptions): Promise<unknown>;
}

const MAX_BODY_BYTES = 4096;

/** Adds the routes to an app. A version's name may be in several services: `?service=` chooses. */
export function addVersionsApi(app: Hono, operators: () => readonly VersionsOperator[]): void {
  const withService = () =>
    operators().flatMap((operator) =>
      operator.list().map((version) => ({ service: operator.service, ...version }))
    );
  const find = (name: string, service: string | undefined): VersionsOperator => {
    const owners = operators().filter((operator) =>
      (service === undefined || operator.service === service) &&
      operator.list().some((version) => version.name === name)
    );
    const [owner] = owners;
    if (owner === undefined) {
      throw new BatonError("unknown_version", `there is no version ${JSON.stringify(name)}`);
    }
    if (owners.length > 1) {
      throw new BatonError("conflict", `several services have a version ${JSON.stringify(name)}`, {
        detail: { services: owners.map((one) => one.service), hint: "add ?service=" },
      });
    }
    return owner;
  };

  app.get("/api/v1/versions", (context) => context.json({ versions: withService() }));
  app.get("/api/v1/versions/:name", (context) => {
    const name = context.req.param("name");
    const owner = find(name, context.req.query("service"));
    const found = owner.list().find((version) => version.name === name);
    return context.json({ service: owner.service, ...found });
  });
  for (const verb of VERBS) {
    app.post(`/api/v1/versions/:name/${verb}`, async (context) => {
      const name = context.req.param("name");
      const owner = find(name, context.req.query("service"));
      const options = await controlOptions(context.req.raw, VERB_OPTIONS[verb]);
      const result = await owner.control(name, verb, options);
      return context.json({ service: owner.service, name, done: verb, ...(result as object) });
    });
  }
}

/** The optional JSON body of a control call; anything unexpected in it is refused. */
async function controlOptions(
  request: Request,
  allowed: readonly (keyof OperatorOptions)[],
): Promise<OperatorOptions> {
  const text = await readBody(request, MAX_BODY_BYTES);
  if (text.trim() === "") return {};
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    throw new BatonError("bad_request", "the body is not JSON");
  }
  if (typeof body !== "object" || body === null || Array.isArray(body)) {
    throw new BatonError("bad_request", "the body must be a JSON object");
  }
  const extra = Object.keys(body).find((key) => !allowed.some((one) => one === key));
  if (extra !== undefined) {
    throw new BatonError("bad_request", `there is no field ${JSON.stringify(extra)} here`, {
      detail: { allowed },
    });
  }
  const { sha256, reason, traffic } = body as Record<string, unknown>;
  if (sha256 !== undefined && !(typeof sha256 === "string" && /^[0-9a-f]{64}$/i.test(sha256))) {
    throw new BatonError("bad_request", "sha256 must be 64 hexadecimal digits");
  }
  if (reason !== undefined && typeof reason !== "string") {
    throw new BatonError("bad_request", "reason must be text");
  }
  if (traffic !== undefined && typeof traffic !== "boolean") {
    throw new BatonError("bad_request", "traffic must be true or false");
  }
  return {
    ...(sha256 === undefined ? {} : { sha256: sha256.toLowerCase() }),
    ...(reason === undefined ? {} : { reason }),
    ...(traffic === undefined ? {} : { traffic }),
  };
}
