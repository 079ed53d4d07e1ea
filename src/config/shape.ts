/**
 * What valibot lets pass without a word: a list where an object belongs (its indexes become keys), and
 * names that every JavaScript object has (it leaves them out).
 */

import { configJsonSchema, type JsonSchema } from "./json_schema.ts";
import { printPath, type Problem, showValue } from "./problems.ts";

type Path = readonly (string | number)[];

const RESERVED: ReadonlySet<string> = new Set(["__proto__", "constructor", "prototype"]);

/** Both kinds of problems, wherever they are. `written` has not been checked against the schema. */
export function shapeProblems(written: unknown): Problem[] {
  const problems: Problem[] = [];
  const visit = (value: unknown, nodes: readonly JsonSchema[], path: Path): void => {
    if (typeof value !== "object" || value === null || nodes.length === 0) return;
    if (Array.isArray(value)) {
      const items = nodes.flatMap((node) => node.items === undefined ? [] : [node.items]);
      if (nodes.every((node) => node.type === "object")) {
        const shown = showValue(path, value);
        problems.push({ key: printPath(path), value: shown, allowed: "an object, not a list" });
      }
      for (const [at, item] of value.entries()) visit(item, alternatives(items), [...path, at]);
      return;
    }
    for (const [key, inner] of Object.entries(value)) {
      if (RESERVED.has(key)) {
        problems.push({ key: printPath([...path, key]), allowed: "this name is reserved" });
      }
      const children = nodes.flatMap(({ properties, additionalProperties: others }) => {
        const child = properties?.[key] ?? others;
        return typeof child === "object" ? [child] : [];
      });
      visit(inner, alternatives(children), [...path, key]);
    }
  };
  visit(written, [configJsonSchema()], []);
  return problems;
}

function alternatives(nodes: readonly JsonSchema[]): JsonSchema[] {
  return nodes.flatMap((node) => node.anyOf === undefined ? [node] : alternatives(node.anyOf));
}
