/**
 * Request targets: the normalised path for decisions, and cutting a mount off the raw one.
 *
 * Decisions are taken on a copy on which every spelling of the same path looks alike; what is sent
 * on are the client's own bytes. So the copy must be at least as eager as any server behind us: it
 * drops path parameters (`;x`), decodes escapes once, takes `\` for `/`, folds `//`, and resolves
 * `.` and `..` (RFC 3986 5.2.4).
 */

/** What `%2f` becomes at first: no character of a target, which is latin1. */
const ESCAPED_SLASH = "\u0100";

/** The path of an origin-form target, normalised. Always starts with `/`. */
export function normalisePath(target: string): string {
  const path = pathOf(target);
  if (isPlain(path)) return path;
  const decoded = decodeOnce(withoutParameters(path));
  return withoutDots(decoded.replaceAll(ESCAPED_SLASH, "/").replaceAll("\\", "/"), true);
}

function pathOf(target: string): string {
  const query = target.indexOf("?");
  return query < 0 ? target : target.slice(0, query);
}

/** True when all servers read it alike: no escape, backslash, parameter, `//`, nor a dot segment. */
function isPlain(path: string): boolean {
  let last = 0;
  for (let at = 0; at < path.length; at++) {
    const code = path.charCodeAt(at);
    if (code === 0x25 || code === 0x5c || code === 0x3b) return false;
    if (last === 0x2f && (code === 0x2f || code === 0x2e)) return false;
    last = code;
  }
  return true;
}

/** Servers of Java drop what stands between a `;` and the next `/`: `..;x` is `..` to them. */
function withoutParameters(path: string): string {
  return path.replace(/;[^/]*/g, "");
}

function decodeOnce(path: string): string {
  const parts = path.split("%");
  let decoded = parts[0] as string;
  for (const part of parts.slice(1)) {
    const code = /^[0-9a-f]{2}/i.test(part) ? parseInt(part.slice(0, 2), 16) : -1;
    if (code < 0) decoded += `%${part}`;
    else decoded += (code === 0x2f ? ESCAPED_SLASH : String.fromCharCode(code)) + part.slice(2);
  }
  return decoded;
}

/** `folds`: `//` counts as one slash, so that `..` takes away the segment before it. */
function withoutDots(path: string, folds: boolean): string {
  const kept: string[] = [];
  const segments = path.slice(1).split("/");
  const last = segments.at(-1);
  for (const segment of segments) {
    if (segment === "." || (segment === "" && folds)) continue;
    if (segment === "..") kept.pop();
    else kept.push(segment);
  }
  const isFolder = last === "" || last === "." || last === "..";
  return "/" + kept.join("/") + (isFolder && kept.length > 0 ? "/" : "");
}

/**
 * The target without the mount: `/v1/x?q` under `/v1` is `/x?q`; the mount alone becomes `/`.
 * undefined when the raw bytes do not spell the mount plainly (`/%761/x`), or when what is left
 * climbs out of it again: such a request is refused rather than sent where the path does not lead.
 */
export function stripMount(target: string, mount: string): string | undefined {
  if (mount === "/") return target;
  if (!target.startsWith(mount)) return undefined;
  const rest = target.slice(mount.length);
  if (rest === "") return "/";
  const next = rest.charCodeAt(0);
  if (next === 0x3f) return "/" + rest;
  if (next !== 0x2f) return undefined;
  const path = normalisePath(target);
  if (path !== mount && !path.startsWith(mount + "/")) return undefined;
  return rest;
}

/** The first segment of a normalised path behind the mount; "" if there is none. */
export function segmentBehind(path: string, mount: string): string {
  const from = mount === "/" ? 1 : mount.length + 1;
  const end = path.indexOf("/", from);
  return end < 0 ? path.slice(from) : path.slice(from, end);
}

/**
 * Makes the judge of whether some server might take a target for one of these paths, however it reads
 * paths, and if it routes without regard to case, to a slash at the end, to an ending (`.json`), or to
 * what comes after a space or control byte.
 */
export function pathGuard(paths: readonly string[]): (target: string) => boolean {
  if (paths.length === 0) return () => false;
  const wanted = new Set(paths.map((path) => withoutSlashes(path.toLowerCase())));
  const names = [...wanted].map((path) => path.slice(path.lastIndexOf("/") + 1));
  const suspect = new RegExp(["%", ...names.map(escaped)].join("|"), "i");
  return (target) => {
    const path = pathOf(target);
    if (!suspect.test(path)) return false;
    return readings(path).some((reading) => {
      const read = withoutSlashes(reading.toLowerCase());
      return wanted.has(read) || wanted.has(withoutEnding(read));
    });
  };
}

/**
 * All ways in which servers read a path. None of them is the eager one: who takes more for a slash
 * also has more that a `..` takes away.
 */
function readings(path: string): string[] {
  if (isPlain(path)) return [path];
  let texts = path.includes(";") ? [path, withoutParameters(path)] : [path];
  texts = texts.map(decodeOnce);
  texts = withAndWithout(texts, ESCAPED_SLASH);
  texts = withAndWithout(texts, "\\");
  return texts.flatMap((text) => [withoutDots(text, true), withoutDots(text, false)]);
}

/** The texts as they are, and with slashes for each `what`. */
function withAndWithout(texts: readonly string[], what: string): string[] {
  return texts.flatMap((text) => text.includes(what) ? [text, text.replaceAll(what, "/")] : [text]);
}

function escaped(text: string): string {
  return text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
}

/** Without slashes at the end, and with one where there are several. */
function withoutSlashes(path: string): string {
  return path.replace(/\/{2,}/g, "/").replace(/\/$/, "");
}

/** The last segment up to its first dot, space or control byte. */
function withoutEnding(path: string): string {
  const from = path.lastIndexOf("/") + 1;
  const length = path.slice(from).search(/[^!-\-\/-~\x80-\xff]/);
  return length < 0 ? path : path.slice(0, from + length);
}
