/**
 * Request targets: the normalised path for decisions, and cutting a mount off the raw one.
 *
 * Decisions are taken on a copy on which every spelling of the same path looks alike; what is sent
 * on are the client's own bytes. So the copy must be at least as eager as any server behind us: it
 * decodes escapes once, takes `\` for `/`, folds `//`, and resolves `.` and `..` (RFC 3986 5.2.4).
 */

/** The path of an origin-form target, normalised. Always starts with `/`. */
export function normalisePath(target: string): string {
  const query = target.indexOf("?");
  const path = query < 0 ? target : target.slice(0, query);
  return isPlain(path) ? path : resolve(path);
}

/** True when normalising would change nothing: no escape, backslash, `//`, nor a dot segment. */
function isPlain(path: string): boolean {
  let last = 0;
  for (let at = 0; at < path.length; at++) {
    const code = path.charCodeAt(at);
    if (code === 0x25 || code === 0x5c) return false;
    if (last === 0x2f && (code === 0x2f || code === 0x2e)) return false;
    last = code;
  }
  return true;
}

function resolve(path: string): string {
  const decoded = path
    .replace(/%([0-9a-fA-F]{2})/g, (_, hex: string) => String.fromCharCode(parseInt(hex, 16)))
    .replaceAll("\\", "/");
  const kept: string[] = [];
  const segments = decoded.split("/");
  const last = segments.at(-1);
  for (const segment of segments) {
    if (segment === "" || segment === ".") continue;
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

/**
 * Whether a normalised path is one of these, compared as loosely as frameworks route: without regard
 * to case and to a slash at the end.
 */
export function isAnyOf(path: string, paths: readonly string[]): boolean {
  const plain = path.replace(/\/+$/, "").toLowerCase();
  return paths.some((one) => one.toLowerCase() === plain);
}
