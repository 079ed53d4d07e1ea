/**
 * Builds of the child program as zip artifacts, each with a hash of its own, and a file oracle that
 * lists them.
 *
 * An artifact holds one shell script. It answers the print flags by itself (so that a test does not
 * wait for Node four times) and otherwise becomes Node with child_program.ts.
 */

import { createHash } from "node:crypto";
import { mkdir, rename, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { TextReader, Uint8ArrayWriter, ZipWriter } from "@zip.js/zip.js";
import type { ChildOptions } from "./child_program.ts";

const here = (path: string): string => fileURLToPath(new URL(path, import.meta.url));
export const NODE = here("../../node_modules/.bin/node");
const PROGRAM = here("./child_program.ts");
const CACHE = here("../../node_modules/.cache/child-program");

export interface BuildOptions extends ChildOptions {
  /** What it calls itself; answers carry it. */
  readonly id: string;
  /** The program's name inside the zip. */
  readonly binaryName?: string;
  /** Seconds that the first print flag takes. */
  readonly printDelayS?: number;
  /** Answers to the print flags; a flag without one is "unknown". */
  readonly print?: {
    readonly binaryVersion?: string;
    readonly protocolVersion?: string;
    readonly adminApiVersion?: string;
    readonly storageMode?: string;
  };
}

export interface TestBuild {
  readonly id: string;
  readonly sha256: string;
  readonly bytes: Uint8Array;
  readonly script: string;
}

/** The shell script that is the program. */
export function childScript(options: BuildOptions): string {
  const { id, print = {}, binaryName: _binaryName, printDelayS, ...child } = options;
  const answers: [string, string | undefined][] = [
    ["--print-binary-version", print.binaryVersion ?? id],
    ["--print-protocol-version", print.protocolVersion],
    ["--print-admin-api-version", print.adminApiVersion ?? (child.adminApi ? "1" : undefined)],
    ["--print-storage-mode", print.storageMode],
  ];
  const cases = answers.filter(([, answer]) => answer !== undefined)
    .map(([flag, answer]) => `  ${flag}) echo ${quoted(answer ?? "")}; exit 0;;`);
  return [
    "#!/bin/sh",
    ...(printDelayS === undefined
      ? []
      : [`[ "$1" = --print-binary-version ] && sleep ${printDelayS}`]),
    'case "$1" in',
    ...cases,
    '  --print-*) echo "unknown flag: $1" >&2; exit 2;;',
    "esac",
    ...(child.helper ? [`(trap '' TERM; while :; do sleep 1; done) &`] : []),
    // The program is loaded hundreds of times in a test run.
    `export NODE_COMPILE_CACHE=${quoted(CACHE)}`,
    `exec ${quoted(NODE)} --no-warnings ${quoted(PROGRAM)} ${quoted(id)} ${
      quoted(JSON.stringify(child))
    } "$@"`,
    "",
  ].join("\n");
}

/** Makes the artifact. */
export async function makeBuild(options: BuildOptions): Promise<TestBuild> {
  const script = childScript(options);
  const zip = new ZipWriter(new Uint8ArrayWriter(), { useWebWorkers: false });
  await zip.add(`dist/${options.binaryName ?? "child"}`, new TextReader(script), {
    lastModDate: new Date(2020, 0, 1),
  });
  const bytes = await zip.close();
  const sha256 = createHash("sha256").update(bytes).digest("hex");
  return { id: options.id, sha256, bytes, script };
}

/** A file oracle in a folder, with its artifacts beside it. */
export class FileOracle {
  readonly folder: string;
  readonly #listed = new Map<string, { sha256: string; binary: string }>();

  constructor(folder: string) {
    this.folder = folder;
  }

  get path(): string {
    return `${this.folder}/versions.json`;
  }

  /** Puts the artifact beside the list and lists it. */
  async publish(name: string, build: TestBuild, sha256 = build.sha256): Promise<void> {
    await mkdir(this.folder, { recursive: true });
    const file = `${this.folder}/${build.sha256}.zip`;
    await writeFile(file, build.bytes);
    await this.list(name, { sha256, binary: `./${build.sha256}.zip` });
  }

  /** Lists an artifact that is elsewhere, or nowhere. */
  async list(name: string, entry: { sha256: string; binary: string }): Promise<void> {
    this.#listed.set(name, entry);
    await this.write();
  }

  async remove(name: string): Promise<void> {
    this.#listed.delete(name);
    await this.write();
  }

  async write(text?: string): Promise<void> {
    await mkdir(this.folder, { recursive: true });
    const versions = [...this.#listed].map(([name, entry]) => ({ name, ...entry }));
    await writeFile(`${this.path}.tmp`, text ?? JSON.stringify({ versions }));
    await rename(`${this.path}.tmp`, this.path);
  }
}

function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
