/** What a client may ask of the traffic listener: the values of `traffic.limits`. */

import * as v from "valibot";
import { limitsSchema } from "../config/traffic.ts";

export type Limits = Readonly<v.InferOutput<typeof limitsSchema>>;

export const DEFAULT_LIMITS: Limits = v.parse(limitsSchema, {});
