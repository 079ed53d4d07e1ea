/**
 * A reader of the plain part of YAML, strict: what it does not know is an error. Maps and lists by
 * indentation, scalars, JSON's flow forms, `|` blocks, comments on lines of their own, `---`.
 */

export type Yaml = string | number | boolean | null | Yaml[] | { [key: string]: Yaml };

interface Line {
  readonly indent: number;
  readonly text: string;
  readonly number: number;
}

/** Every document of the text. Throws an Error that names the line. */
export function parseYaml(text: string): Yaml[] {
  return text.split(/^---$/m).map((document) => new Reader(document).whole());
}

class Reader {
  readonly #raw: string[];
  #lines: Line[];
  #at = 0;

  constructor(text: string) {
    this.#raw = text.split("\n");
    this.#lines = this.#raw.flatMap((raw, index) => {
      if (/^\s*(#.*)?$/.test(raw)) return [];
      if (raw.includes("\t")) throw new Error(`a tab: ${raw}`);
      const indent = raw.length - raw.trimStart().length;
      return [{ indent, text: raw.trim(), number: index }];
    });
  }

  whole(): Yaml {
    const value = this.#block(0);
    if (this.#at < this.#lines.length) throw this.#wrong("more than one value");
    return value;
  }

  get #line(): Line | undefined {
    return this.#lines[this.#at];
  }

  #wrong(what: string): Error {
    return new Error(`${what}: ${this.#line?.text ?? "the end"}`);
  }

  #block(indent: number): Yaml {
    const line = this.#line;
    if (line === undefined || line.indent !== indent) throw this.#wrong("wrong indentation");
    return line.text.startsWith("- ") ? this.#list(indent) : this.#map(indent);
  }

  #list(indent: number): Yaml[] {
    const list: Yaml[] = [];
    for (let line = this.#line; line?.indent === indent; line = this.#line) {
      if (!line.text.startsWith("- ")) break;
      const rest = line.text.slice(2);
      if (/^[\w./-]+:( |$)/.test(rest)) {
        // The first key of a map stands on the dash's line.
        this.#lines[this.#at] = { ...line, indent: indent + 2, text: rest };
        list.push(this.#map(indent + 2));
      } else {
        this.#at += 1;
        list.push(this.#scalar(rest));
      }
    }
    return list;
  }

  #map(indent: number): { [key: string]: Yaml } {
    const map: { [key: string]: Yaml } = {};
    for (let line = this.#line; line?.indent === indent; line = this.#line) {
      const [, key, rest] = /^([\w./-]+):(?: (.*))?$/.exec(line.text) ?? [];
      if (key === undefined) throw this.#wrong("no key");
      if (key in map) throw this.#wrong("a key twice");
      this.#at += 1;
      map[key] = rest === undefined ? this.#nested(indent) : this.#value(rest, line);
    }
    if (this.#line !== undefined && this.#line.indent > indent) {
      throw this.#wrong("wrong indentation");
    }
    return map;
  }

  #nested(indent: number): Yaml {
    const next = this.#line;
    if (next !== undefined && next.indent > indent) return this.#block(next.indent);
    if (next?.indent === indent && next.text.startsWith("- ")) return this.#list(indent);
    return null;
  }

  #value(rest: string, line: Line): Yaml {
    return rest === "|" ? this.#literal(line) : this.#scalar(rest);
  }

  #literal(key: Line): string {
    const lines: string[] = [];
    let at = key.number + 1;
    for (; at < this.#raw.length; at++) {
      const raw = this.#raw[at] ?? "";
      if (raw.trim() !== "" && raw.length - raw.trimStart().length <= key.indent) break;
      lines.push(raw);
    }
    while ((this.#line?.number ?? Infinity) < at) this.#at += 1;
    const margin = (lines[0] ?? "").length - (lines[0] ?? "").trimStart().length;
    return lines.map((line) => line.slice(margin)).join("\n").trimEnd() + "\n";
  }

  #scalar(text: string): Yaml {
    if (/^["[{]|^-?\d+(\.\d+)?$|^(true|false|null)$/.test(text)) return JSON.parse(text) as Yaml;
    if (/^[&*!|>'%@`]|: | #/.test(text)) throw new Error(`not plain: ${text}`);
    return text;
  }
}
