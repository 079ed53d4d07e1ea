/**
 * A tree from a tar.gz. Every path is checked before anything is created; no entry may lie below a
 * link, come twice, or lead out of the tree; only files, folders and links inside are taken.
 */

import { createTarDecoder, type ParsedTarEntry } from "modern-tar";
import { Allowance, badArchive, onDisk, type UnpackOptions, writeEntry } from "./archive_entry.ts";
import { RolloutFailure } from "./failure.ts";
import { parentOf } from "./state.ts";

/** See `unpack`. Returns the program's path inside the tree. */
export async function unpackTree(options: UnpackOptions): Promise<string> {
  const tree = new Tree(options);
  const decoder = createTarDecoder({ strict: true });
  const feeding = (async () => {
    const packed = await options.files.stream(options.archive);
    // Bounded here too: a header that announces gigabytes must not get to the decoder's memory.
    const limit = new Allowance(options.maxExtractedBytes + options.maxArchiveEntries * 1_536);
    await packed
      .pipeThrough(new DecompressionStream("gzip") as TransformStream<Uint8Array, Uint8Array>)
      .pipeThrough(
        new TransformStream<Uint8Array, Uint8Array>({
          transform(chunk, controller) {
            limit.spend(chunk.length);
            controller.enqueue(chunk);
          },
        }),
      )
      .pipeTo(decoder.writable);
  })();
  feeding.catch(() => {});
  const reader = decoder.readable.getReader();
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) break;
      await tree.add(value);
    }
    await feeding;
    await tree.finish();
  } catch (error) {
    await reader.cancel(error).catch(() => {});
    // A limit that was passed upstream arrives here as whatever the decoder made of it.
    const cause = await feeding.then(() => error, (first) => first);
    throw badArchive(cause instanceof RolloutFailure ? cause : error, options.signal);
  }
  return tree.program();
}

class Tree {
  readonly #options: UnpackOptions;
  readonly #allowance: Allowance;
  readonly #kinds = new Map<string, "file" | "folder" | "link">();
  readonly #folders = new Set<string>();
  #program: string | undefined;

  constructor(options: UnpackOptions) {
    this.#options = options;
    this.#allowance = new Allowance(options.maxExtractedBytes);
  }

  async add(entry: ParsedTarEntry): Promise<void> {
    const { header, body } = entry;
    const type = header.type ?? "file";
    if (type === "pax-global-header") return await body.cancel();
    const path = cleanPath(header.name);
    if (path === "") return await body.cancel();
    if (this.#kinds.size >= this.#options.maxArchiveEntries) {
      throw bad(`more than ${this.#options.maxArchiveEntries} entries`);
    }
    if (type === "directory") {
      await body.cancel();
      return await this.#folder(path);
    }
    if (this.#kinds.has(path)) throw bad(`${path} comes twice`);
    await this.#folder(parentOf(path) ?? "");
    switch (type) {
      case "file": {
        const runs = ((header.mode ?? 0) & 0o111) !== 0;
        const mode = runs ? 0o755 : 0o644;
        await writeEntry(
          this.#options,
          { relative: path, mode, allowance: this.#allowance },
          body,
        );
        this.#kinds.set(path, "file");
        this.#consider(path);
        return;
      }
      case "symlink": {
        await body.cancel();
        const target = header.linkname ?? "";
        resolveInside(path, target);
        await onDisk(this.#options.files.symlink(target, this.#at(path)));
        this.#kinds.set(path, "link");
        return;
      }
      case "link": {
        await body.cancel();
        const source = cleanPath(header.linkname ?? "");
        if (this.#kinds.get(source) !== "file") throw bad(`${path} is linked to no file before it`);
        const info = await this.#options.files.info(this.#at(source));
        this.#allowance.spend(info?.size ?? 0);
        await onDisk(this.#options.files.copy(this.#at(source), this.#at(path), info?.mode));
        this.#kinds.set(path, "file");
        this.#consider(path);
        return;
      }
      default:
        throw bad(`${path} is a ${type}`);
    }
  }

  /** Makes the program runnable and syncs every folder. */
  async finish(): Promise<void> {
    const { files } = this.#options;
    await onDisk(files.chmod(this.#at(this.program()), 0o755));
    for (const folder of this.#folders) await onDisk(files.syncFolder(this.#at(folder)));
    await onDisk(files.syncFolder(this.#options.into));
  }

  program(): string {
    if (this.#program !== undefined) return this.#program;
    const { entryPoint, binaryName } = this.#options;
    throw bad(`there is no ${entryPoint ?? binaryName} in the tree`);
  }

  #consider(path: string): void {
    const { entryPoint, binaryName } = this.#options;
    const wanted = entryPoint === undefined
      ? path.slice(path.lastIndexOf("/") + 1) === binaryName
      : path === cleanPath(entryPoint);
    if (wanted) this.#program ??= path;
  }

  /** Creates a folder and its parents, none of which may be anything else. */
  async #folder(path: string): Promise<void> {
    let at = "";
    for (const part of path.split("/")) {
      if (part === "") continue;
      at = at === "" ? part : `${at}/${part}`;
      const kind = this.#kinds.get(at);
      if (kind === "folder") continue;
      if (kind !== undefined) throw bad(`${path} lies below ${at}, which is a ${kind}`);
      await onDisk(this.#options.files.makeFolder(this.#at(at), 0o755));
      this.#kinds.set(at, "folder");
      this.#folders.add(at);
    }
  }

  #at(path: string): string {
    return `${this.#options.into}/${path}`;
  }
}

/** The path without `.` parts and slashes at its end; throws if it is absolute or goes up. */
function cleanPath(path: string): string {
  if (path.startsWith("/") || path.includes("\0")) {
    throw bad(`${JSON.stringify(path)} is not relative`);
  }
  const parts = path.split("/").filter((part) => part !== "" && part !== ".");
  if (parts.includes("..")) throw bad(`${JSON.stringify(path)} leads out of the tree`);
  return parts.join("/");
}

/**
 * Throws unless a link at `path` with this target stays inside the tree. `..` is taken only at the
 * target's start, where it climbs real folders; behind a name it could climb out through a link.
 */
function resolveInside(path: string, target: string): void {
  if (target === "" || target.startsWith("/") || target.includes("\0")) {
    throw bad(`${path} is a link to ${JSON.stringify(target)}`);
  }
  const parts = target.split("/").filter((part) => part !== "" && part !== ".");
  const down = parts.findIndex((part) => part !== "..");
  const ups = down < 0 ? parts.length : down;
  const depth = path.split("/").length - 1;
  if (ups > depth || parts.slice(ups).includes("..")) {
    throw bad(`${path} is a link out of the tree (${target})`);
  }
}

function bad(message: string): RolloutFailure {
  return new RolloutFailure("download", `the artifact is refused: ${message}`);
}
