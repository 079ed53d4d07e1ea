import { setFlagsFromString } from "node:v8";

/**
 * Has V8 mark its heap only when most of the room for growth is used.
 *
 * By default it begins as soon as less than a new space (up to 32 MiB) is left up to its limit. For a
 * heap of 20 MiB, which is all that Baton has (the index and what is on its way lie outside of it),
 * the limit is some 45: so it would mark again and again, on four threads that take the core from
 * this one. Both figures are percent of the way from what the last collection left to the limit.
 */
export function calmCollector(): void {
  setFlagsFromString("--incremental-marking-soft-trigger=70");
  setFlagsFromString("--incremental-marking-hard-trigger=80");
}
