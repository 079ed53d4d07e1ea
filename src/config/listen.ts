/**
 * The three listeners.
 */

import * as v from "valibot";
import { flag, listenAddress } from "./values.ts";

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

export type ListenConfig = v.InferOutput<typeof listenSchema>;
