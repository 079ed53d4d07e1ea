/** Plays the traces of the routing bench on this runtime; prints one line of JSON. */

import process from "node:process";
import { type FleetOptions, type FleetResult, playTrace } from "./routing_model.ts";
import { madeUpTrace, readTrace } from "./routing_traces.ts";

const [folder = ""] = process.argv.slice(2);
const fleet = { workers: 8, cacheBlocks: 2_500, routers: 1, speed: 2, policy: "cost" } as const;
const results: Record<string, FleetResult> = {};
const started = performance.now();
for (const name of ["synthetic", "conversation", "made_up"]) {
  const rows = name === "made_up" ? madeUpTrace() : readTrace(folder, name);
  if (rows === undefined) continue;
  const play = async (label: string, options: Partial<FleetOptions>) => {
    results[`${name}${label}`] = await playTrace(rows, { ...fleet, ...options });
  };
  await play("", {});
  await play("_round_robin", { policy: "round_robin" });
  await play("_random", { policy: "random" });
  await play("_4_replicas", { routers: 4 });
}
console.log(JSON.stringify({ results, took_s: (performance.now() - started) / 1000 }));
