/**
 * Where a text stops being JSON. The engines' own messages quote the text around the place, which may
 * be a secret, and name no line.
 */

/** The offset of the first character that cannot be there; undefined when the text is JSON. */
export function jsonErrorOffset(text: string): number | undefined {
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
  const string = (): boolean => take(/^"([^"\\\p{Cc}]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/u);
  const value = (): boolean => {
    space();
    if (text[at] === "[") return items("]", value);
    if (text[at] === "{") {
      return items("}", () => {
        if (!string()) return false;
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
export function lineAndColumn(text: string, offset: number): string {
  const before = text.slice(0, offset).split("\n");
  return `line ${before.length}, column ${(before.at(-1)?.length ?? 0) + 1}`;
}
