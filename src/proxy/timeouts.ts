/** How long a target may take: the values of `traffic.timeouts`; a service may have its own. */

import * as v from "valibot";
import { timeoutsSchema } from "../config/traffic.ts";

export type Timeouts = Readonly<v.InferOutput<typeof timeoutsSchema>>;

export const DEFAULT_TIMEOUTS: Timeouts = v.parse(timeoutsSchema, {});
