/**
 * Secrets stay out of the configuration: a key names the environment variable or the file that
 * holds one. The value is read where it is used and is never printed.
 */

import * as v from "valibot";
import { FileMissing, type Runtime } from "../runtime/runtime.ts";

const ALLOWED = '{ "env": "NAME" } or { "file": "/path" }';

/** A reference to a secret. */
export function secret(description: string) {
  return v.pipe(
    v.union([
      v.strictObject({ env: v.pipe(v.string(), v.regex(/^[A-Za-z_][A-Za-z0-9_]*$/)) }),
      v.strictObject({ file: v.pipe(v.string(), v.nonEmpty()) }),
    ], ALLOWED),
    v.description(`${description} Written as ${ALLOWED}.`),
  );
}

export type Secret = { readonly env: string } | { readonly file: string };

/**
 * Reads the secret, without surrounding white space. Throws an Error that says what is missing,
 * without any value, when there is none or it is empty. Files are read each time, so that a
 * rotated secret is taken without a restart.
 */
export async function readSecret(
  runtime: Pick<Runtime, "env" | "files">,
  reference: Secret,
): Promise<string> {
  if ("env" in reference) {
    const value = runtime.env()[reference.env]?.trim() ?? "";
    if (value === "") throw new Error(`the environment variable ${reference.env} is not set`);
    return value;
  }
  let value: string;
  try {
    value = (await runtime.files.readText(reference.file)).trim();
  } catch (error) {
    const why = error instanceof FileMissing ? "does not exist" : "cannot be read";
    throw new Error(`the secret's file ${reference.file} ${why}`, { cause: error });
  }
  if (value === "") throw new Error(`the secret's file ${reference.file} is empty`);
  return value;
}
