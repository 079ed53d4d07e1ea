/**
 * A service: what is mounted at a path prefix.
 */

import * as v from "valibot";
import { poolSchema } from "./pool.ts";
import { serviceTimeoutsSchema } from "./traffic.ts";
import { versionsSchema } from "./versions.ts";

const MOUNT_ALLOWED = 'a path such as "/" or "/v1": no trailing slash, no "..", "//", "?" or "#"';

const UPSTREAM_ALLOWED =
  '"http://host:port" without a path ("h2c://..." for HTTP/2 in the clear), or "unix:/path"';

function isUpstream(value: string): boolean {
  if (value.startsWith("unix:")) return value.length > "unix:".length;
  if (!URL.canParse(value)) return false;
  const { protocol, hostname, pathname, search, hash, username, password } = new URL(value);
  return (protocol === "http:" || protocol === "h2c:") && hostname !== "" &&
    (pathname === "/" || pathname === "") &&
    search + hash + username + password === "";
}

const mountPath = v.pipe(
  v.string(MOUNT_ALLOWED),
  v.trim(),
  v.regex(/^\/$|^(\/(?!\.{1,2}(\/|$))[^/\\?#%\s]+)+$/, MOUNT_ALLOWED),
);

export const serviceSchema = v.pipe(
  v.strictObject({
    mount: v.pipe(
      v.union(
        [mountPath, v.pipe(v.array(mountPath, MOUNT_ALLOWED), v.minLength(1))],
        MOUNT_ALLOWED,
      ),
      v.description(
        "The path prefix of the service, or several. The longest mount that a path is under wins.",
      ),
    ),
    versions: v.optional(v.pipe(
      versionsSchema,
      v.description(
        "Supervised programs: the path segment after the mount is the version's name, the rest is " +
          "forwarded to it.",
      ),
    )),
    pool: v.optional(v.pipe(
      poolSchema,
      v.description("A set of inference workers behind one model; the path is kept."),
    )),
    upstream: v.optional(v.pipe(
      v.string(UPSTREAM_ALLOWED),
      v.trim(),
      v.check(isUpstream, UPSTREAM_ALLOWED),
      v.description(
        `One fixed target that somebody else runs: ${UPSTREAM_ALLOWED}. The path is kept.`,
      ),
    )),
    timeouts: v.optional(v.pipe(
      serviceTimeoutsSchema,
      v.description("How long a target of this service may take, where it is not as elsewhere."),
    )),
  }),
  v.check(
    (service) =>
      [service.versions, service.pool, service.upstream].filter((kind) => kind !== undefined)
        .length === 1,
    'exactly one of "versions", "pool" and "upstream"',
  ),
);

export type ServiceConfig = v.InferOutput<typeof serviceSchema>;

/** The mounts of a service as a list. */
export function mountsOf(service: Pick<ServiceConfig, "mount">): readonly string[] {
  return typeof service.mount === "string" ? [service.mount] : service.mount;
}
