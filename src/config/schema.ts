/**
 * The whole configuration: one schema, one value.
 */

import * as v from "valibot";
import { adminSchema } from "./admin.ts";
import { listenSchema } from "./listen.ts";
import { eventsSchema, logSchema } from "./observe.ts";
import { replicaSchema } from "./replica.ts";
import { serviceSchema } from "./service.ts";
import { shutdownSchema } from "./shutdown.ts";
import { trafficSchema } from "./traffic.ts";
import { text } from "./values.ts";

const NAME_ALLOWED =
  "a name of letters, digits, '.', '_' and '-' that starts with a letter or digit";

export const configSchema = v.strictObject({
  $schema: v.optional(text("For editors: where the JSON Schema of this file is.")),
  listen: v.optional(v.pipe(listenSchema, v.description("The listeners.")), {}),
  stateDir: v.optional(
    text("The folder for everything that must survive a restart. One Baton to a folder."),
    "./.baton",
  ),
  services: v.optional(
    v.pipe(
      v.record(
        v.pipe(v.string(), v.regex(/^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/, NAME_ALLOWED)),
        serviceSchema,
      ),
      v.description("What is served, by name."),
    ),
    {},
  ),
  replica: v.optional(v.pipe(
    replicaSchema,
    v.description("The other replicas of this Baton. Absent: it runs alone."),
  )),
  traffic: v.optional(
    v.pipe(trafficSchema, v.description("Limits and trust on the traffic listener.")),
    {},
  ),
  admin: v.optional(v.pipe(adminSchema, v.description("Who may use the admin listener.")), {}),
  shutdown: v.optional(v.pipe(shutdownSchema, v.description("How Baton itself goes down.")), {}),
  log: v.optional(v.pipe(logSchema, v.description("The log.")), {}),
  events: v.optional(v.pipe(eventsSchema, v.description("The journal of events.")), {}),
});

/** The configuration as it may be written. */
export type ConfigInput = v.InferInput<typeof configSchema>;
/** The configuration as it is used: every default filled in, frozen when it is loaded. */
export type Config = v.InferOutput<typeof configSchema>;
