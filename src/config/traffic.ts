/**
 * Limits and trust on the traffic listener.
 */

import * as v from "valibot";
import { parseRange } from "./ip_range.ts";
import { flag, milliseconds, whole } from "./values.ts";

const PROTOCOL_ALLOWED = 'a protocol name, as "websocket" or "name/version"';
const PEER_ALLOWED = 'an address, a CIDR range as "10.0.0.0/8", or "unix"';
const TOKEN_ALLOWED = "a token: letters, digits and !#$%&'*+-.^_`|~";

export const limitsSchema = v.strictObject({
  headerBytes: v.optional(
    whole("Largest header section of a request, in bytes; a larger one is answered 431.", 1024),
    16_384,
  ),
  targetBytes: v.optional(
    whole("Longest request target, in bytes; a longer one is answered 414.", 256),
    8192,
  ),
  bodyBytes: v.optional(
    whole("Largest request body, in bytes; a larger one is answered 413. 0 = no limit."),
    0,
  ),
  headerTimeoutMs: v.optional(
    milliseconds("How long a header section may take to arrive (408).", 100),
    10_000,
  ),
  bodyWindowMs: v.optional(
    milliseconds(
      "A request body must bring `bodyFloorBytes` in every window of this length until its answer " +
        "begins (408). 0 = any pace is taken.",
    ),
    30_000,
  ),
  bodyFloorBytes: v.optional(
    whole("See `bodyWindowMs`.", 1),
    1024,
  ),
  keepAliveMs: v.optional(
    milliseconds("How long a connection may wait for its next request.", 100),
    75_000,
  ),
  writeStallMs: v.optional(
    milliseconds("How long a client may leave an answer unread before it is cut. 0 = for ever."),
    300_000,
  ),
  connections: v.optional(
    whole(
      "Client connections at once; further ones are answered 503. With TLS as many again may be in " +
        "their handshake; further ones are closed. 0 = no limit.",
    ),
    0,
  ),
  streams: v.optional(
    whole("Requests at once on one HTTP/2 connection.", 1, 65_535),
    128,
  ),
  lingerMs: v.optional(
    milliseconds(
      "How long a connection is still read after our last byte, so that it arrives.",
      100,
    ),
    2000,
  ),
});

export const timeoutsSchema = v.strictObject({
  connectMs: v.optional(
    milliseconds("For making a connection to a target (504).", 1),
    5000,
  ),
  firstByteMs: v.optional(
    milliseconds("From a request's last byte to the first one of its answer (504). 0 = no limit."),
    300_000,
  ),
  idleMs: v.optional(
    milliseconds(
      "Longest silence inside an answer; then it is broken off. 0 (the default) lets streams be " +
        "silent for hours.",
    ),
    0,
  ),
});

/** What a service may set for itself: whatever is left out is as in `traffic.timeouts`. */
export const serviceTimeoutsSchema = v.partial(v.strictObject({
  connectMs: milliseconds("For making a connection to a target (504).", 1),
  firstByteMs: milliseconds(
    "From a request's last byte to the first one of its answer (504). 0 = no limit.",
  ),
  idleMs: milliseconds("Longest silence inside an answer. 0 = no limit."),
}));

export const trafficSchema = v.strictObject({
  workers: v.optional(
    whole(
      "Threads that the data path runs in. With more than 1 each has a listener of its own on the " +
        "same TCP port (SO_REUSEPORT). A unix socket and an inherited one cannot be shared: the main " +
        "thread serves those alone.",
      1,
      64,
    ),
    1,
  ),
  trustedProxies: v.optional(
    v.pipe(
      v.array(v.pipe(
        v.string(PEER_ALLOWED),
        v.check((peer) => peer === "unix" || parseRange(peer) !== undefined, PEER_ALLOWED),
      )),
      v.description(
        "Addresses or CIDR ranges of proxies whose X-Forwarded-* and Forwarded headers are " +
          'believed; "unix" for peers on a unix socket.',
      ),
    ),
    [],
  ),
  accessLog: v.optional(
    flag(
      "One log line (event `request`) for each exchange, in order, written within 5 ms together with " +
        "its neighbours; only SIGKILL loses what waits.",
    ),
    true,
  ),
  generationHeader: v.optional(
    flag("Adds `x-baton-generation: <version>#<generation>` to the answers of targets."),
    false,
  ),
  via: v.optional(v.pipe(
    v.string(TOKEN_ALLOWED),
    v.regex(/^[A-Za-z0-9!#$%&'*+.^_`|~-]+$/, TOKEN_ALLOWED),
    v.description(
      "Our name in `Via`, by which circles are found. By default new and random in each process.",
    ),
  )),
  upgrades: v.optional(
    v.pipe(
      v.array(v.pipe(
        v.string(PROTOCOL_ALLOWED),
        v.regex(/^[A-Za-z0-9!#$%&'*+.^_`|~/-]+$/, PROTOCOL_ALLOWED),
      )),
      v.description(
        "Protocols that a connection may switch to. Any other `Upgrade` is answered as if it were " +
          "not there.",
      ),
    ),
    ["websocket"],
  ),
  http2: v.optional(
    v.pipe(
      v.picklist(["always", "never"], '"always" or "never"'),
      v.description(
        "Whether clients may speak HTTP/2 to the traffic listener: with prior knowledge in the " +
          "clear, by ALPN over TLS.",
      ),
    ),
    "always",
  ),
  limits: v.optional(
    v.pipe(limitsSchema, v.description("What a client may ask of the traffic listener.")),
    {},
  ),
  timeouts: v.optional(
    v.pipe(timeoutsSchema, v.description("How long a target may take.")),
    {},
  ),
});
