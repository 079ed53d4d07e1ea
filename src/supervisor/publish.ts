/**
 * `baton publish`: puts a build beside a file oracle and names it there.
 *
 * The artifact is complete and synced before the list speaks of it, and the list is replaced in one
 * step under a lock, so a watching Baton sees the old list or the new one, and two publishers do not
 * lose each other's entry. What else the list holds is kept.
 */

import { messageOf } from "../errors.ts";
import { ZipWriter } from "@zip.js/zip.js";
import type { Runtime } from "../runtime/runtime.ts";
import { FileMissing } from "../runtime/runtime.ts";
import { CatalogRefused, isVersionName, parseCatalog, parseListText } from "./catalog.ts";
import { withFolderLock } from "./folder_lock.ts";
import { parentOf } from "./state.ts";

export interface PublishOptions {
  readonly runtime: Pick<Runtime, "pid" | "files" | "clock" | "random" | "processes">;
  /** Path of the oracle's JSON; created if it is not there. */
  readonly oracleFile: string;
  readonly name: string;
  /** A zip, a tar.gz, or a bare program (which is put into a zip). */
  readonly file: string;
  /** What a bare program is called in its zip. */
  readonly binaryName: string;
  /** For a tar.gz: the program inside. */
  readonly entryPoint?: string;
}

export interface Published {
  readonly name: string;
  readonly sha256: string;
  /** Path of the artifact. */
  readonly artifact: string;
  /** The build that was listed before under this name. */
  readonly replaced?: string;
  /** False when the list named exactly this build already. */
  readonly changed: boolean;
}

const ARTIFACTS = "artifacts";
const LOCK_TIMEOUT_MS = 30_000;
/** Fixed, so that packing one program twice gives one hash. */
const PACKED_AT = new Date("2020-01-01T00:00:00Z");

/** Publishes one build. Throws an Error whose message tells what to change. */
export async function publish(options: PublishOptions): Promise<Published> {
  const { runtime, oracleFile, name, file } = options;
  const { files } = runtime;
  if (!isVersionName(name)) {
    throw new Error(
      `${JSON.stringify(name)} is not a version name: 1 to 64 of letters, digits, and . _ + ~ - ` +
        `(a letter or digit first)`,
    );
  }
  const info = await files.info(file);
  if (info === undefined) throw new Error(`${file}: there is no such file`);
  if (info.kind === "folder") throw new Error(`${file} is a folder: pack it as a tar.gz first`);
  const folder = parentOf(oracleFile) ?? ".";
  await files.makeFolder(`${folder}/${ARTIFACTS}`, 0o755);
  const temporary = `${folder}/${ARTIFACTS}/.${name}.${runtime.random.uuid()}.tmp`;
  try {
    const extension = await stage(options, temporary);
    const sha256 = await files.sha256(temporary);
    const relative = `${ARTIFACTS}/${name}-${sha256.slice(0, 16)}.${extension}`;
    await files.rename(temporary, `${folder}/${relative}`);
    await files.syncFolder(`${folder}/${ARTIFACTS}`);
    const listed = await withFolderLock(
      { runtime, path: `${oracleFile}.lock`, timeoutMs: LOCK_TIMEOUT_MS },
      () => list(options, sha256, `./${relative}`),
    );
    return { name, sha256, artifact: `${folder}/${relative}`, ...listed };
  } finally {
    await files.remove(temporary).catch(() => {});
  }
}

/** Brings the artifact to the temporary path, synced; returns the ending of its name. */
async function stage(options: PublishOptions, temporary: string): Promise<string> {
  const { files } = options.runtime;
  const start = await firstBytes(files, options.file);
  if (start.startsWith("PK\x03\x04")) {
    await files.copy(options.file, temporary, 0o644);
    return "zip";
  }
  if (start.startsWith("\x1f\x8b")) {
    await files.copy(options.file, temporary, 0o644);
    return "tar.gz";
  }
  if (start === "") throw new Error(`${options.file} is empty`);
  if (!start.startsWith("\x7fELF") && !start.startsWith("#!")) {
    throw new Error(
      `${options.file} is no zip, no tar.gz and no program (an ELF file, or a script with #!)`,
    );
  }
  await packProgram(options, temporary);
  return "zip";
}

async function firstBytes(files: Runtime["files"], path: string): Promise<string> {
  const reader = (await files.stream(path)).getReader();
  const { value } = await reader.read();
  await reader.cancel();
  return String.fromCharCode(...(value ?? new Uint8Array()).subarray(0, 4));
}

async function packProgram(options: PublishOptions, temporary: string): Promise<void> {
  const { files } = options.runtime;
  const writer = await files.openWrite(temporary, { mode: 0o644 });
  const reader = (await files.stream(options.file)).getReader();
  try {
    const program = new ReadableStream<Uint8Array>({
      pull: async (body) => {
        const { done, value } = await reader.read();
        if (done) body.close();
        else body.enqueue(value);
      },
    });
    const zip = new ZipWriter(
      new WritableStream<Uint8Array>({ write: (chunk) => writer.write(chunk.slice()) }),
      { useWebWorkers: false, extendedTimestamp: false, lastModDate: PACKED_AT },
    );
    await zip.add(options.binaryName, program, { unixMode: 0o100755 });
    await zip.close();
    await writer.sync();
  } finally {
    await reader.cancel().catch(() => {});
    await writer.close();
  }
}

/** Names the build in the list. Runs under the lock. */
async function list(
  options: PublishOptions,
  sha256: string,
  binary: string,
): Promise<{ replaced?: string; changed: boolean }> {
  const { runtime, oracleFile, name, entryPoint } = options;
  const current = await readOracle(runtime.files, oracleFile);
  const versions = current.versions;
  const index = versions.findIndex((entry) => entry.name === name);
  const previous = versions[index];
  const entry = {
    ...previous,
    name,
    binary,
    sha256,
    ...(entryPoint === undefined ? {} : { entryPoint }),
  };
  const changed = JSON.stringify(entry) !== JSON.stringify(previous);
  const next = {
    ...current.rest,
    // A list with revisions goes up by one, or its followers would refuse the change.
    ...(typeof current.rest.revision === "number" && changed
      ? { revision: current.rest.revision + 1 }
      : {}),
    versions: index < 0 ? [...versions, entry] : versions.with(index, entry),
  };
  const text = JSON.stringify(next, null, 2) + "\n";
  parseCatalog(text, `file:${oracleFile}`);
  if (changed) await runtime.files.writeAtomic(oracleFile, text, 0o644);
  const replaced = typeof previous?.sha256 === "string" && previous.sha256 !== sha256
    ? { replaced: previous.sha256 }
    : {};
  return { ...replaced, changed };
}

interface OracleFile {
  /** Everything beside the list. */
  readonly rest: Readonly<Record<string, unknown>>;
  readonly versions: readonly Readonly<Record<string, unknown>>[];
}

/** A list that is damaged is not overwritten: somebody has to look at it. */
async function readOracle(files: Runtime["files"], path: string): Promise<OracleFile> {
  let text: string;
  try {
    text = await files.readText(path);
  } catch (error) {
    if (error instanceof FileMissing) return { rest: {}, versions: [] };
    throw error;
  }
  try {
    parseCatalog(text, `file:${path}`);
  } catch (error) {
    if (!(error instanceof CatalogRefused)) throw error;
    throw new Error(
      `${path} is not a valid list of versions, nothing was changed: ${messageOf(error)}`,
    );
  }
  const { versions, ...rest } = parseListText(text) as Record<string, unknown> & {
    versions: Record<string, unknown>[];
  };
  return { rest, versions };
}
