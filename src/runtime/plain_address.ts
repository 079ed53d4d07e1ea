/** An IPv4 address as such, where a socket for both families tells it as `::ffff:1.2.3.4`. */
export function plainAddress(address: string | undefined): string {
  return (address ?? "").replace(/^::ffff:(?=\d+\.\d+\.\d+\.\d+$)/i, "");
}
