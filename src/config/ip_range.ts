/**
 * IP addresses and CIDR ranges of both families, as bytes.
 */

export interface IpRange {
  readonly bytes: Uint8Array;
  /** How many bits from the front count. */
  readonly bits: number;
}

/** An address or a CIDR range; undefined when the text is neither. */
export function parseRange(entry: string): IpRange | undefined {
  const slash = entry.indexOf("/");
  const bytes = parseIp(slash < 0 ? entry : entry.slice(0, slash));
  if (bytes === undefined) return undefined;
  if (slash < 0) return { bytes, bits: bytes.length * 8 };
  const bits = entry.slice(slash + 1);
  if (!/^\d{1,3}$/.test(bits) || Number(bits) > bytes.length * 8) return undefined;
  return { bytes, bits: Number(bits) };
}

export function contains(range: IpRange, bytes: Uint8Array): boolean {
  if (range.bytes.length !== bytes.length) return false;
  let left = range.bits;
  for (let at = 0; left > 0; at++, left -= 8) {
    const mask = left >= 8 ? 0xff : (0xff << (8 - left)) & 0xff;
    if (((range.bytes[at] as number) & mask) !== ((bytes[at] as number) & mask)) return false;
  }
  return true;
}

/** Four or sixteen bytes; undefined when the text is no IP address. */
export function parseIp(text: string): Uint8Array | undefined {
  const zone = text.indexOf("%");
  const address = zone < 0 ? text : text.slice(0, zone);
  if (!address.includes(":")) return parseIpv4(address);
  const bytes = parseIpv6(address);
  if (bytes === undefined) return undefined;
  const isMapped = bytes.subarray(0, 10).every((byte) => byte === 0) && bytes[10] === 0xff &&
    bytes[11] === 0xff;
  return isMapped ? bytes.slice(12) : bytes;
}

function parseIpv4(text: string): Uint8Array | undefined {
  const parts = text.split(".");
  if (parts.length !== 4) return undefined;
  const bytes = new Uint8Array(4);
  for (const [at, part] of parts.entries()) {
    if (!/^\d{1,3}$/.test(part) || Number(part) > 255) return undefined;
    bytes[at] = Number(part);
  }
  return bytes;
}

function parseIpv6(text: string): Uint8Array | undefined {
  let address = text;
  const lastColon = address.lastIndexOf(":");
  if (address.includes(".")) {
    const v4 = parseIpv4(address.slice(lastColon + 1));
    if (v4 === undefined) return undefined;
    const [a = 0, b = 0, c = 0, d = 0] = v4;
    address = `${address.slice(0, lastColon + 1)}${(a * 256 + b).toString(16)}:${
      (c * 256 + d).toString(16)
    }`;
  }
  const halves = address.split("::");
  if (halves.length > 2) return undefined;
  const groups = (half: string | undefined): string[] =>
    half === undefined || half === "" ? [] : half.split(":");
  const front = groups(halves[0]);
  const back = groups(halves[1]);
  const missing = 8 - front.length - back.length;
  if (halves.length === 1 ? missing !== 0 : missing < 1) return undefined;
  const all = [...front, ...Array<string>(missing).fill("0"), ...back];
  const bytes = new Uint8Array(16);
  for (const [at, group] of all.entries()) {
    if (!/^[0-9a-fA-F]{1,4}$/.test(group)) return undefined;
    const value = parseInt(group, 16);
    bytes[at * 2] = value >> 8;
    bytes[at * 2 + 1] = value & 0xff;
  }
  return bytes;
}
