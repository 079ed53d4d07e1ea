/**
 * Compiles the index (src/kv/wasm/assembly, AssemblyScript) and writes it as a TypeScript file that
 * both runtimes import: there is no build step at run time. Run after every change of the source; a
 * test compares the committed module with what the source compiles to.
 *
 *   scripts/build-wasm
 */
import { readFile, writeFile } from "node:fs/promises";
import asc from "assemblyscript/asc";

const SOURCE = new URL("../src/kv/wasm/assembly/", import.meta.url);
const OUTPUT = new URL("../src/kv/wasm/module.ts", import.meta.url);

/** Compiles the source; throws with the compiler's messages when it cannot. */
export async function compileIndex(): Promise<Uint8Array> {
  let binary: Uint8Array | undefined;
  const { error, stderr } = await asc.main(
    [
      "index.ts",
      "-O3",
      "--enable",
      "simd",
      "--runtime",
      "stub",
      "--noAssert",
      "--outFile",
      "index.wasm",
    ],
    {
      readFile: (name: string) => readFile(new URL(name, SOURCE), "utf8").catch(() => null),
      writeFile: (_name: string, contents: string | Uint8Array) => {
        if (typeof contents !== "string") binary = contents;
      },
      listFiles: () => [],
    },
  );
  if (error || binary === undefined) throw new Error(`asc: ${error?.message}\n${stderr}`);
  return binary;
}

/** The text of the TypeScript file for a module. */
export function moduleSource(binary: Uint8Array): string {
  let text = "";
  for (const byte of binary) text += String.fromCharCode(byte);
  const lines = btoa(text).match(/.{1,96}/g) ?? [];
  return `// Made by scripts/build-wasm from src/kv/wasm/assembly. Do not edit.
// deno-fmt-ignore-file

/** The index as a WebAssembly module, base64. */
export const MODULE =
${lines.map((line) => `  "${line}"`).join(" +\n")};
`;
}

if (import.meta.main) await writeFile(OUTPUT, moduleSource(await compileIndex()));
