const encoder = new TextEncoder();

/**
 * Compares two secrets in a time that depends on their lengths only, not on where they differ.
 */
export function sameSecret(given: string, wanted: string): boolean {
  const a = encoder.encode(given);
  const b = encoder.encode(wanted);
  let different = a.length ^ b.length;
  for (let at = 0; at < b.length; at += 1) {
    different |= (b[at] as number) ^ (a[at % Math.max(1, a.length)] ?? 0);
  }
  return different === 0;
}

/** True if `authorization` carries the token as a bearer (RFC 6750, section 2.1). */
export function bearerMatches(authorization: string | undefined, token: string): boolean {
  const match = /^bearer +(.+)$/i.exec(authorization ?? "");
  return sameSecret(match?.[1] ?? "", token);
}
