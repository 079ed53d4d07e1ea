/** Sockets that whoever started us has opened already. */

import type { Runtime } from "../runtime/runtime.ts";

/** The first descriptor that systemd hands over (sd_listen_fds(3)). */
const FIRST = 3;

/** The descriptor of socket activation, if the environment says that one was passed to us. */
export function activatedDescriptor(runtime: Pick<Runtime, "env" | "pid">): number | undefined {
  const { LISTEN_PID, LISTEN_FDS } = runtime.env();
  if (LISTEN_PID !== String(runtime.pid)) return undefined;
  return Number(LISTEN_FDS) >= 1 ? FIRST : undefined;
}
