/**
 * The list of versions that an oracle publishes: what a valid one is, and which one may follow which.
 *
 * Two forms are read: `{"versions":[...]}`, and `{"schema":1,"initialized":true,"revision":n,
 * "versions":[...]}`. One bad entry refuses the whole list: a half-understood list would stop
 * versions that were meant to run. Names and hashes become paths, so they are checked here, before
 * anything else sees them. Fields that are not known are ignored.
 */

import { messageOf } from "../errors.ts";
import { VERSION_NAME } from "../config/versions.ts";
import { fileUrlPath } from "./address.ts";
import { parentOf } from "./state.ts";

/** One version as the oracle wants it. */
export interface DesiredVersion {
  /** Slot name; one safe path component. */
  readonly name: string;
  /** The artifact: an http(s) URL, or `file:` and a path as it is (relative: to where Baton runs). */
  readonly url: string;
  /** SHA-256 of the artifact, lower-case hex. */
  readonly sha256: string;
  /** For a tar.gz tree: the program inside, relative; from the entry's optional `entryPoint`. */
  readonly entryPoint?: string;
}

export interface Catalog {
  /** In the order of the answer. */
  readonly versions: readonly DesiredVersion[];
  /** Absent for a list without revisions. */
  readonly revision?: number;
  /** Names that the publisher takes back: they may be missing from this revision on. */
  readonly withdrawn: readonly string[];
}

/** An oracle's answer that is not a valid list, or not one that may follow the last. */
export class CatalogRefused extends Error {
  override readonly name = "CatalogRefused";
}

const SHA256 = /^[0-9a-fA-F]{64}$/;
const ENTRY_POINT = /^(?!\/)(?!.*(?:^|\/)\.{1,2}(?:\/|$))[^\\\0]{1,1024}$/;
const CHECKSUM_PREFIX = "sha256:";

/** 1 to 64 characters, a letter or digit first, then also `. _ + ~ -`. */
export function isVersionName(value: string): boolean {
  return VERSION_NAME.test(value);
}

/** 64 hex characters, either case. */
export function isSha256(value: string): boolean {
  return SHA256.test(value);
}

/**
 * Reads an oracle's answer. `base` is where it came from: a relative artifact address is resolved
 * against it, and only a file oracle may name local files. Throws `CatalogRefused`.
 */
export function parseCatalog(text: string, base: string): Catalog {
  let value: unknown;
  try {
    value = parseListText(text);
  } catch (error) {
    throw new CatalogRefused(
      `not JSON: ${messageOf(error)}`,
    );
  }
  if (!isRecord(value)) throw new CatalogRefused("not a JSON object");
  const revision = revisionOf(value);
  const list = value.versions;
  if (!Array.isArray(list)) throw new CatalogRefused("`versions` is not a list");
  const seen = new Set<string>();
  const versions = list.map((entry: unknown, index) => {
    const version = parseEntry(entry, index, base);
    if (seen.has(version.name)) throw new CatalogRefused(`two entries are named ${version.name}`);
    seen.add(version.name);
    return version;
  });
  return {
    versions,
    ...(revision === undefined ? {} : { revision }),
    withdrawn: withdrawnOf(value.withdrawn, seen),
  };
}

/** The text's JSON; some editors put a byte order mark before it. */
export function parseListText(text: string): unknown {
  return JSON.parse(text.replace(/^\uFEFF/, ""));
}

function revisionOf(value: Record<string, unknown>): number | undefined {
  if (value.schema === undefined) return undefined;
  if (value.schema !== 1) {
    throw new CatalogRefused(`schema ${JSON.stringify(value.schema)} is not known (1 is)`);
  }
  if (value.initialized !== true) throw new CatalogRefused("the catalog is not initialised");
  const revision = value.revision;
  if (typeof revision !== "number" || !Number.isSafeInteger(revision) || revision < 0) {
    throw new CatalogRefused(`revision ${JSON.stringify(revision)} is not a number from 0 up`);
  }
  return revision;
}

function withdrawnOf(value: unknown, listed: ReadonlySet<string>): string[] {
  if (value === undefined) return [];
  if (!Array.isArray(value)) throw new CatalogRefused("`withdrawn` is not a list of names");
  return value.map((name: unknown) => {
    if (typeof name !== "string" || !isVersionName(name)) {
      throw new CatalogRefused(`withdrawn name ${JSON.stringify(name)} is not a version name`);
    }
    if (listed.has(name)) throw new CatalogRefused(`${name} is both listed and withdrawn`);
    return name;
  });
}

function parseEntry(entry: unknown, index: number, base: string): DesiredVersion {
  if (!isRecord(entry)) throw new CatalogRefused(`entry ${index} is not an object`);
  const { name, binary, sha256, entryPoint } = entry;
  if (typeof name !== "string" || !isVersionName(name)) {
    throw new CatalogRefused(`entry ${index}: ${JSON.stringify(name)} is not a version name`);
  }
  if (typeof binary !== "string" || binary === "") {
    throw new CatalogRefused(`${name}: \`binary\` is not an address`);
  }
  const { url, checksum } = artifactOf(name, binary, base);
  const hash = hashOf(name, sha256, checksum);
  if (entryPoint !== undefined && entryPoint !== "") {
    if (typeof entryPoint !== "string" || !ENTRY_POINT.test(entryPoint)) {
      throw new CatalogRefused(`${name}: \`entryPoint\` is not a path inside the artifact`);
    }
    return { name, url, sha256: hash, entryPoint };
  }
  return { name, url, sha256: hash };
}

interface Artifact {
  readonly url: string;
  readonly checksum: string;
}

/**
 * The artifact's address made absolute. Beside a file oracle it may be a path (relative to the
 * oracle's folder); a remote oracle names http(s) only, so it cannot make a host read its own files.
 */
function artifactOf(name: string, binary: string, base: string): Artifact {
  if (base.startsWith("file:") && !/^https?:/i.test(binary)) {
    const [path = "", query = ""] = splitOnce(binary, "?");
    const checksum = new URLSearchParams(query).get("checksum") ?? "";
    if (/^file:/i.test(path)) return { url: `file:${localPath(name, path)}`, checksum };
    if (/^[A-Za-z][A-Za-z0-9+.-]*:/.test(path)) {
      throw new CatalogRefused(`${name}: ${JSON.stringify(binary)} is not an address in use here`);
    }
    const folder = parentOf(fileUrlPath(base));
    const plain = path.replace(/^(\.\/)+/, "");
    if (path.startsWith("/") || folder === undefined) return { url: `file:${path}`, checksum };
    return { url: `file:${folder === "/" ? "" : folder}/${plain}`, checksum };
  }
  if (!URL.canParse(binary, base)) {
    throw new CatalogRefused(`${name}: ${JSON.stringify(binary)} is not an address`);
  }
  const url = new URL(binary, base);
  if (url.protocol !== "https:" && url.protocol !== "http:") {
    throw new CatalogRefused(`${name}: ${url.protocol} is not allowed for an artifact`);
  }
  return { url: url.href, checksum: url.searchParams.get("checksum") ?? "" };
}

function localPath(name: string, address: string): string {
  try {
    return fileUrlPath(address);
  } catch (error) {
    throw new CatalogRefused(`${name}: ${messageOf(error)}`);
  }
}

function splitOnce(text: string, separator: string): [string, string] {
  const at = text.indexOf(separator);
  return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 1)];
}

/** The field wins over `?checksum=sha256:<hex>` in the address; one of them must be there. */
function hashOf(name: string, field: unknown, checksum: string): string {
  if (field !== undefined && field !== null && field !== "") {
    if (typeof field !== "string" || !isSha256(field)) {
      throw new CatalogRefused(`${name}: \`sha256\` is not 64 hex characters`);
    }
    return field.toLowerCase();
  }
  if (checksum === "") {
    throw new CatalogRefused(`${name}: neither \`sha256\` nor ?checksum=sha256:... is given`);
  }
  const hex = checksum.startsWith(CHECKSUM_PREFIX) ? checksum.slice(CHECKSUM_PREFIX.length) : "";
  if (!isSha256(hex)) {
    throw new CatalogRefused(`${name}: the checksum in the address is not sha256:<64 hex>`);
  }
  return hex.toLowerCase();
}

/** The same versions, in whatever order. */
function sameContent(a: Catalog, b: Catalog): boolean {
  const lines = (catalog: Catalog): string =>
    JSON.stringify([
      catalog.versions
        .map((one) => [one.name, one.url, one.sha256, one.entryPoint ?? ""].join("\n"))
        .sort(),
      [...catalog.withdrawn].sort(),
    ]);
  return lines(a) === lines(b);
}

/**
 * May `next` follow `current`, both of one oracle? Revisions never go back, one revision has one
 * content, and a name once listed stays listed unless it is withdrawn by name. Lists without
 * revisions follow each other freely. Returns whether anything changed; throws `CatalogRefused`.
 */
export function mayFollow(current: Catalog | undefined, next: Catalog): boolean {
  if (current === undefined) return true;
  const changed = !sameContent(current, next);
  if (current.revision === undefined) return changed || next.revision !== undefined;
  if (next.revision === undefined) {
    throw new CatalogRefused(`no revision, though this oracle was at revision ${current.revision}`);
  }
  if (next.revision < current.revision) {
    throw new CatalogRefused(
      `revision regressed from ${current.revision} to ${next.revision}`,
    );
  }
  if (next.revision === current.revision) {
    if (changed) throw new CatalogRefused(`revision ${next.revision} was changed in place`);
    return false;
  }
  const allowed = new Set([...next.versions.map((one) => one.name), ...next.withdrawn]);
  for (const { name } of current.versions) {
    if (!allowed.has(name)) {
      throw new CatalogRefused(
        `revision ${next.revision} removed version ${name} without withdrawing it`,
      );
    }
  }
  return true;
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
