/**
 * The three listeners.
 */

import * as v from "valibot";
import { flag, listenAddress, text, whole } from "./values.ts";

const tlsSchema = v.strictObject({
  cert: text(
    "A PEM file with the certificate, then those that sign it. Read again when it changes.",
  ),
  key: text("A PEM file with the certificate's private key. Read again when it changes."),
  minVersion: v.optional(
    v.pipe(
      v.picklist(["TLSv1.2", "TLSv1.3"], '"TLSv1.2" or "TLSv1.3"'),
      v.description("The oldest version of TLS that is spoken."),
    ),
    "TLSv1.2",
  ),
});

export const listenSchema = v.strictObject({
  traffic: v.optional(
    listenAddress("Where clients' requests arrive: proxied routes, `/healthz`, `/readyz`."),
    "0.0.0.0:8080",
  ),
  admin: v.optional(
    listenAddress(
      "Where operators and supervisors ask: `/ready`, `/drain`, `/metrics`, `/api/v1/...`, `/ui/`. " +
        "Off loopback it needs `admin.token`.",
    ),
    "127.0.0.1:8081",
  ),
  tls: v.optional(v.pipe(
    tlsSchema,
    v.description(
      "Makes the traffic listener speak TLS only, with HTTP/2 and HTTP/1.1 by ALPN. Without it the " +
        "listener speaks both in the clear.",
    ),
  )),
  reusePort: v.optional(
    flag(
      "Lets several processes listen on the traffic port at once (SO_REUSEPORT); the kernel spreads " +
        "the connections.",
    ),
    false,
  ),
  descriptor: v.optional(whole(
    "An inherited descriptor that traffic is accepted on instead of binding `listen.traffic`. Under " +
      "systemd's socket activation (LISTEN_PID, LISTEN_FDS) it is 3 without being told.",
    3,
    65_535,
  )),
  peer: v.optional(listenAddress(
    "Where replicas and workers talk to Baton: `/dump`, the index API, `/events`. Off unless set; " +
      "0.0.0.0:8082 once `replica` is configured. On a public address it needs `replica.token`.",
  )),
  allowOpenPeer: v.optional(
    flag(
      "Lets the peer listener start on a public address without a token: for networks that are " +
        "closed by other means.",
    ),
    false,
  ),
});
