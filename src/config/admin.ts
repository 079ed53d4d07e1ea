/**
 * Who may use the admin listener.
 */

import * as v from "valibot";
import { secret } from "./secret.ts";

export const adminSchema = v.strictObject({
  token: v.optional(secret(
    "The bearer token of the admin listener (`authorization: Bearer ...`). Required when " +
      "`listen.admin` is not a loopback address; `/ready`, `/drain` and `/metrics` need it too then.",
  )),
});
