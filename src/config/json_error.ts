/**
 * What is wrong with a text that should be JSON, and where. The engines' own messages quote the text
 * around the place, which may be a secret, and name no line; and of a key that is there twice they take
 * the last without a word.
 */

/** The first fault, as "is not JSON: see line 3, column 7 (...)"; undefined when there is none. */
export function jsonFault(text: string): string | undefined {
  let repeated: string | undefined;
  const offset = scan(text, (key, at) => {
    repeated ??= `has the key ${key} twice in one object: see ${lineAndColumn(text, at)}`;
  });
  if (offset === undefined) return repeated;
  return `is not JSON: see ${lineAndColumn(text, offset)}${hintAt(text, offset)}`;
}

function hintAt(text: string, offset: number): string {
  if (/^(\/\/|\/\*|#)/.test(text.slice(offset, offset + 2))) return " (JSON has no comments)";
  if (/^[}\]]/.test(text.slice(offset)) && /,\s*$/.test(text.slice(0, offset))) {
    return " (a comma before it is one too many)";
  }
  if (/^['A-Za-z_]/.test(text.slice(offset))) {
    return " (text and keys are written in double quotes)";
  }
  return "";
}

/**
 * The offset of the first character that cannot be there; undefined when the text is JSON. Tells of
 * each key, as it is written, that its object has already.
 */
function scan(text: string, onRepeated: (key: string, at: number) => void): number | undefined {
  let at = 0;
  const space = (): void => {
    at += /^[ \t\r\n]*/.exec(text.slice(at))?.[0].length ?? 0;
  };
  const take = (pattern: RegExp): boolean => {
    const length = pattern.exec(text.slice(at))?.[0].length ?? 0;
    at += length;
    return length > 0;
  };
  const items = (close: string, item: () => boolean): boolean => {
    at += 1;
    space();
    if (text[at] === close) return take(/^./);
    for (;;) {
      if (!item()) return false;
      space();
      if (text[at] === close) return take(/^./);
      if (text[at] !== ",") return false;
      at += 1;
      space();
    }
  };
  const string = (): boolean => take(/^"([ !#-[\]-\u{10ffff}]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/u);
  const value = (): boolean => {
    space();
    if (text[at] === "[") return items("]", value);
    if (text[at] === "{") {
      const keys = new Set<unknown>();
      return items("}", () => {
        const from = at;
        if (!string()) return false;
        const written = text.slice(from, at);
        const key: unknown = JSON.parse(written);
        if (keys.has(key)) onRepeated(written, from);
        keys.add(key);
        space();
        if (text[at] !== ":") return false;
        at += 1;
        return value();
      });
    }
    return string() || take(/^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?|^(true|false|null)/);
  };
  if (!value()) return at;
  space();
  return at === text.length ? undefined : at;
}

/** `line 3, column 7`, counted from 1. */
function lineAndColumn(text: string, offset: number): string {
  const before = text.slice(0, offset).split("\n");
  return `line ${before.length}, column ${(before.at(-1)?.length ?? 0) + 1}`;
}
