/** What a request would like, by its Accept and Accept-Encoding (RFC 9110, section 12). */

/** The quality that `header` gives to `name`, 0 to 1; `fallback` names are tried when it is absent. */
function quality(header: string, names: readonly string[]): number {
  for (const name of names) {
    for (const part of header.split(",")) {
      const [token, ...parameters] = part.split(";").map((piece) => piece.trim().toLowerCase());
      if (token !== name) continue;
      const q = parameters.find((parameter) => parameter.startsWith("q="))?.slice(2);
      const value = q === undefined ? 1 : Number(q);
      return Number.isFinite(value) ? value : 0;
    }
  }
  return 0;
}

/** True if plain JSON is preferred over NDJSON, which is what is given when nothing is asked for. */
export function prefersJson(accept: string | undefined): boolean {
  if (accept === undefined) return false;
  const json = quality(accept, ["application/json"]);
  const lines = quality(accept, ["application/x-ndjson", "application/*", "*/*"]);
  return json > lines || (json > 0 && !accept.toLowerCase().includes("ndjson"));
}

export function acceptsGzip(acceptEncoding: string | undefined): boolean {
  return quality(acceptEncoding ?? "", ["gzip", "x-gzip"]) > 0;
}
