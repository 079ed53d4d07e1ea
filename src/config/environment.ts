/**
 * Configuration by environment variables: `listen.traffic` is `BATON_LISTEN_TRAFFIC`,
 * `services.chat.pool.blockSize` is `BATON_SERVICES_CHAT_POOL_BLOCK_SIZE`.
 *
 * A variable may also hold a whole object or list, as JSON; a list of plain texts may be written
 * with commas. Values are trimmed, and an empty one is the same as none. Variables win over the file.
 */

import { configKeys, type JsonSchema } from "./json_schema.ts";
import { didYouMean } from "./nearest.ts";
import { type Problem, showValue } from "./problems.ts";

export type Path = readonly (string | number)[];

export interface EnvironmentValues {
  /** What the variables set, outermost keys first. */
  readonly values: readonly {
    readonly path: Path;
    readonly name: string;
    readonly value: unknown;
  }[];
  readonly problems: readonly Problem[];
}

const PREFIX = "BATON_";
/**
 * Read elsewhere: which file to load, whom `baton status` and others ask, and the mark by which a
 * Baton that supervises us knows its children.
 */
const OWN = new Set(["BATON_CONFIG", "BATON_ADMIN_URL", "BATON_ADMIN_TOKEN", "BATON_CHILD"]);
/** What Kubernetes puts into every pod for a Service whose name begins with "baton". */
const KUBERNETES = /_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)$/;

/** `stateDir` -> `STATE_DIR`, `my-model.v1` -> `MY_MODEL_V1`. */
export function environmentName(path: Path): string {
  return PREFIX +
    path.map((key) =>
      String(key).replace(/([a-z0-9])([A-Z])/g, "$1_$2").replace(/[^A-Za-z0-9]/g, "_").toUpperCase()
    ).join("_");
}

/**
 * Reads the variables that are keys. `file` tells the names of services that are already there;
 * `names` are further variables for keys, which count unless the name has a meaning already.
 */
export function readEnvironment(
  environment: Readonly<Record<string, string>>,
  file: unknown,
  names: ReadonlyMap<string, Path> = new Map(),
): EnvironmentValues {
  const known = knownNames(file, names);
  const secrets = secretNames(file);
  const values: { path: Path; name: string; value: unknown }[] = [];
  const problems: Problem[] = [];
  for (const [name, given] of Object.entries(environment).sort(([a], [b]) => a < b ? -1 : 1)) {
    const text = given.trim();
    if (!name.startsWith(PREFIX) || text === "" || OWN.has(name) || secrets.has(name)) continue;
    const meant = known.get(name) ?? [];
    const key = meant[0];
    if (key === undefined) {
      if (KUBERNETES.test(name) || /^\w+_PORT$/.test(name) && /^\w+:\/\//.test(text)) continue;
      problems.push({
        key: name,
        allowed: `there is no such key${didYouMean(name, known.keys())}`,
      });
    } else if (meant.length > 1) {
      const paths = meant.map((one) => one.path.join(".")).join(" and ");
      problems.push({ key: name, allowed: `stands for both ${paths}; set them in the file` });
    } else {
      const value = parseValue(text, key.schema);
      if (value.ok) values.push({ path: key.path, name, value: value.value });
      else problems.push({ key: name, value: showValue([name], text), allowed: value.allowed });
    }
  }
  values.sort((a, b) => a.path.length - b.path.length);
  for (const { value } of values) for (const name of secretNames(value)) secrets.add(name);
  return { values, problems: problems.filter((problem) => !secrets.has(problem.key)) };
}

/** A copy of `root` with the value at the path; what is in the way and is no object is replaced. */
export function withValue(root: unknown, path: Path, value: unknown): unknown {
  const [key, ...rest] = path;
  if (key === undefined) return value;
  const base = isObject(root) ? root : {};
  return { ...base, [key]: withValue(base[String(key)], rest, value) };
}

interface KnownKey {
  readonly path: Path;
  readonly schema: JsonSchema;
}

function knownNames(
  file: unknown,
  further: ReadonlyMap<string, Path>,
): Map<string, KnownKey[]> {
  const names = new Map<string, KnownKey[]>();
  for (const { path, schema } of configKeys()) {
    if (path.includes("[]") || path[0] === "$schema") continue;
    for (const real of realPaths(path, file)) {
      const name = environmentName(real);
      const same = names.get(name);
      const isNew = same?.every((one) => one.path.join("\u0000") !== real.join("\u0000")) ?? true;
      if (same === undefined) names.set(name, [{ path: real, schema }]);
      else if (isNew) same.push({ path: real, schema });
    }
  }
  for (const [name, path] of further) {
    const same = names.get(environmentName(path))?.[0];
    if (same !== undefined && !names.has(name)) names.set(name, [same]);
  }
  return names;
}

/** Fills each `*` with the names that the file has there. */
function realPaths(path: readonly string[], file: unknown): string[][] {
  let found: { path: string[]; at: unknown }[] = [{ path: [], at: file }];
  for (const key of path) {
    found = found.flatMap(({ path, at }) => {
      const object = isObject(at) ? at : {};
      const names = key === "*" ? Object.keys(object) : [key];
      return names.map((name) => ({ path: [...path, name], at: object[name] }));
    });
  }
  return found.map((one) => one.path);
}

type Parsed = { ok: true; value: unknown } | { ok: false; allowed: string };

function parseValue(text: string, schema: JsonSchema): Parsed {
  const types = typesOf(schema);
  const structured = types.has("object") || types.has("array");
  if (structured && /^[[{]/.test(text)) {
    try {
      return { ok: true, value: JSON.parse(text) };
    } catch {
      return { ok: false, allowed: "JSON" };
    }
  }
  if (types.has("boolean") && /^(true|false)$/i.test(text)) {
    return { ok: true, value: text.toLowerCase() === "true" };
  }
  if ((types.has("number") || types.has("integer")) && /^-?\d+(\.\d+)?$/.test(text)) {
    return { ok: true, value: Number(text) };
  }
  if (types.has("string")) return { ok: true, value: text };
  if (types.has("array")) {
    return { ok: true, value: text.split(",").map((item) => item.trim()).filter((item) => item) };
  }
  // The wrong kind of value: as text it fails the schema, whose message says what is allowed.
  return { ok: true, value: text };
}

function typesOf(schema: JsonSchema): Set<string> {
  const types = new Set<string>();
  const own = schema.type;
  if (typeof own === "string") types.add(own);
  else if (own !== undefined) { for (const type of own) types.add(type); }
  for (const value of schema.enum ?? []) types.add(typeof value);
  for (const inner of schema.anyOf ?? []) for (const type of typesOf(inner)) types.add(type);
  return types;
}

/** Variables that a secret reference names: they are nobody's keys. */
function secretNames(value: unknown): Set<string> {
  const names = new Set<string>();
  const visit = (inner: unknown): void => {
    if (Array.isArray(inner)) inner.forEach(visit);
    if (!isObject(inner)) return;
    if (typeof inner.env === "string") names.add(inner.env);
    Object.values(inner).forEach(visit);
  };
  visit(value);
  return names;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
