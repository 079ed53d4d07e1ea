import { setFlagsFromString } from "node:v8";

/**
 * Has V8 mark its heap only when most of the room for growth is used.
 *
 * A heap of 20 MiB, which is all that Baton has (the index and what is on its way lie outside of it),
 * has a limit of some 45. By V8's own rule, which looks at what is left in MiB, marking then often
 * begins again as soon as it is done, on four threads that take the core from this one
 * (docs/performance.md, Recovery). Both figures are percent of the way from what the last collection
 * left to the limit.
 */
export function calmCollector(): void {
  setFlagsFromString("--incremental-marking-soft-trigger=70");
  setFlagsFromString("--incremental-marking-hard-trigger=80");
}
