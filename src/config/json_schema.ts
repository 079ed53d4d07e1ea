/**
 * The JSON Schema of the configuration, generated from the valibot schema, and the list of its keys.
 * Editors, the environment variables and docs/configuration.md all come from here.
 */

import { toJsonSchema } from "@valibot/to-json-schema";
import { configSchema } from "./schema.ts";

/** The part of JSON Schema (draft 2020-12) that the generator produces. */
export interface JsonSchema {
  readonly type?: string | readonly string[];
  readonly description?: string;
  readonly default?: unknown;
  readonly enum?: readonly unknown[];
  readonly const?: unknown;
  readonly properties?: Readonly<Record<string, JsonSchema>>;
  readonly additionalProperties?: boolean | JsonSchema;
  readonly required?: readonly string[];
  readonly items?: JsonSchema;
  readonly anyOf?: readonly JsonSchema[];
  readonly [keyword: string]: unknown;
}

let generated: JsonSchema | undefined;

/** The schema of `baton.json`: what may be written (defaults are optional). */
export function configJsonSchema(): JsonSchema {
  generated ??= {
    ...(toJsonSchema(configSchema, {
      typeMode: "input",
      target: "draft-2020-12",
      // Rules that JSON Schema has no words for are still checked at the start, by valibot.
      errorMode: "ignore",
    }) as JsonSchema),
    title: "Baton",
  };
  return generated;
}

/** One key of the configuration; `*` stands for a name of the operator's choice, `[]` for an item. */
export interface ConfigKey {
  readonly path: readonly string[];
  readonly schema: JsonSchema;
  readonly required: boolean;
}

/** Every key below a schema, outermost first, in the order of the schema. */
export function configKeys(schema: JsonSchema = configJsonSchema()): ConfigKey[] {
  const keys: ConfigKey[] = [];
  const visit = (node: JsonSchema, path: readonly string[]): void => {
    for (const [name, child] of Object.entries(node.properties ?? {})) {
      const inner = [...path, name];
      keys.push({ path: inner, schema: child, required: node.required?.includes(name) ?? false });
      visit(child, inner);
    }
    if (typeof node.additionalProperties === "object") {
      visit(node.additionalProperties, [...path, "*"]);
    }
    if (node.items !== undefined) visit(node.items, [...path, "[]"]);
    for (const alternative of node.anyOf ?? []) visit(alternative, path);
  };
  visit(schema, []);
  return keys;
}
