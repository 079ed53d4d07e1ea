/**
 * The log and the journal of events.
 */

import * as v from "valibot";
import { whole } from "./values.ts";

export const logSchema = v.strictObject({
  level: v.optional(
    v.pipe(
      v.picklist(["debug", "info", "warn", "error"], '"debug", "info", "warn" or "error"'),
      v.description("The least important lines that are written (JSON lines, standard error)."),
    ),
    "info",
  ),
});

export const eventsSchema = v.strictObject({
  keep: v.optional(
    whole("Events kept in memory for readers who come back with `Last-Event-ID`.", 1, 1_000_000),
    2_000,
  ),
  maxFileBytes: v.optional(
    whole("Size at which the journal on disk is rotated; two files are kept.", 4_096),
    4 * 1024 * 1024,
  ),
});
