/**
 * The other replicas, and how this one recovers its index from them.
 */

import * as v from "valibot";
import { secret } from "./secret.ts";
import { flag, isLoopback, milliseconds, parseAddress, text, whole } from "./values.ts";

const PEER_URL = "a URL like http://10.0.0.2:8082, without path, query or credentials";

function isPlainUrl(value: string): boolean {
  if (!URL.canParse(value)) return false;
  const url = new URL(value);
  return (url.protocol === "http:" || url.protocol === "https:") && url.username === "" &&
    url.password === "" && url.pathname === "/" && url.search === "" && url.hash === "";
}

const peerUrl = v.pipe(
  v.string(PEER_URL),
  v.trim(),
  v.check(isPlainUrl, PEER_URL),
  v.description("A peer's listener."),
);

const PREDECESSOR = "an address on this machine, like 127.0.0.1:8082";

function isLocal(value: string): boolean {
  const address = parseAddress(value);
  return address?.kind === "tcp" && address.port > 0 && isLoopback(address);
}

const scheme = v.optional(
  v.pipe(v.picklist(["http", "https"], "http or https"), v.description("How peers are called.")),
  "http",
);

const ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount";

export const replicaSchema = v.strictObject({
  peers: v.optional(
    v.pipe(
      v.union(
        [
          v.array(peerUrl),
          v.strictObject({
            dns: text(
              "A name whose addresses are the peers. One that starts with `_` is looked up as SRV " +
                "records, which give the port too.",
            ),
            port: v.optional(whole("The peers' port.", 1, 65_535), 8082),
            scheme,
            refreshMs: v.optional(milliseconds("How often the name is looked up.", 100), 10_000),
          }),
          v.strictObject({
            kubernetes: v.pipe(
              v.strictObject({
                namespace: v.optional(text("Default: the pod's own namespace.")),
                service: text("The Service whose EndpointSlices list the peers."),
                port: text("The name of the Service's peer port."),
                scheme,
                apiServer: v.optional(text("Default: that of the cluster that the pod runs in.")),
                tokenFile: v.optional(
                  text("The service account's token; read anew for each request."),
                  `${ACCOUNT}/token`,
                ),
                caFile: v.optional(text("The cluster's authority."), `${ACCOUNT}/ca.crt`),
              }),
              v.description("The EndpointSlices of a Kubernetes Service."),
            ),
          }),
        ],
        'a list of URLs, { "dns": "name", "port": 8082 } or { "kubernetes": {...} }',
      ),
      v.description("Where the other replicas are."),
    ),
    [],
  ),
  predecessors: v.optional(
    v.pipe(
      v.array(
        v.pipe(
          v.string(PREDECESSOR),
          v.trim(),
          v.check(isLocal, PREDECESSOR),
          v.description("A predecessor's peer listener."),
        ),
        `a list; each one ${PREDECESSOR}`,
      ),
      v.description(
        "The generations before this one, which are asked before all other peers. Not for the file: " +
          "the Baton that supervises this one sets it in the environment, an empty list too, so " +
          "that its child is a replica and says that it began with nothing.",
      ),
    ),
  ),
  self: v.optional(
    text(
      "This replica's own address, as the list of peers shows it (default: the variable POD_IP). " +
        "It is left out of the peers, and peers are reached by its address family.",
    ),
  ),
  token: v.optional(secret("Shared by all replicas; asked of callers of the peer listener.")),
  tls: v.optional(
    v.pipe(
      v.strictObject({
        ca: v.optional(text(
          "The authority of the peers' certificates. With `cert` and `key` it is also asked of whoever " +
            "calls the peer listener (mutual TLS).",
        )),
        cert: v.optional(text(
          "Our certificate, shown to peers that we call. With `key` the peer listener is served by https.",
        )),
        key: v.optional(text("The key of our certificate.")),
      }),
      v.description("Files in PEM form, for https between peers."),
    ),
  ),
  gzip: v.optional(
    flag("Ask for compressed dumps. Hashes hardly shrink, so this is for slow links only."),
    false,
  ),
  onRecoveryFailure: v.optional(
    v.pipe(
      v.picklist(["start-degraded", "stay-unready"], "start-degraded or stay-unready"),
      v.description(
        "What to do when the budget is used up: get ready with the lanes that there are, or go on " +
          "trying without getting ready.",
      ),
    ),
    "start-degraded",
  ),
  recoveryBudgetMs: v.optional(
    milliseconds("How long the recovery may go on without one more lane restored.", 100),
    60_000,
  ),
  recoveryMaxMs: v.optional(milliseconds("How long the recovery may take in all.", 100), 900_000),
  subscribeTimeoutMs: v.optional(
    milliseconds("How long to wait for proof that the workers' events reach us."),
    5000,
  ),
  idleTimeoutMs: v.optional(
    milliseconds("Longest silence of a peer within a dump, and of one that reads ours.", 100),
    10_000,
  ),
  maxBufferedBatches: v.optional(
    whole("Batches of events that a lane keeps back while it recovers.", 1),
    65_536,
  ),
  maxBufferedBytes: v.optional(
    whole("Bytes of events that a lane keeps back while it recovers.", 1024),
    67_108_864,
  ),
  maxDumps: v.optional(whole("Dumps that are served at once.", 1, 64), 2),
  maxLaneBlocks: v.optional(
    whole(
      "Blocks that one lane of a peer's dump may have (one partition of a dump in Dynamo's shape).",
      1,
      2 ** 30,
    ),
    16_777_216,
  ),
});

export type ReplicaConfig = v.InferOutput<typeof replicaSchema>;
