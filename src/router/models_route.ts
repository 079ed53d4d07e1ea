/**
 * `GET /v1/models` of a pool: what all its workers serve, each model once. A worker that does not
 * answer in time is left out; the pool's own model is always there.
 */

import type { Clock, Http } from "../runtime/runtime.ts";
import type { PoolWorker } from "./pool_worker.ts";

const TIMEOUT_MS = 2_000;

type Model = Readonly<Record<string, unknown>> & { readonly id: string };

export async function mergedModels(
  options: { http: Http; clock: Clock; model: string; path: string },
  workers: readonly PoolWorker[],
): Promise<Response> {
  const lists = await Promise.all(workers.map((worker) => modelsOf(options, worker)));
  const merged = new Map<string, Model>();
  for (const model of lists.flat()) if (!merged.has(model.id)) merged.set(model.id, model);
  if (!merged.has(options.model)) {
    merged.set(options.model, { id: options.model, object: "model", owned_by: "baton" });
  }
  return Response.json({ object: "list", data: [...merged.values()] });
}

async function modelsOf(
  { http, clock, path }: { http: Http; clock: Clock; path: string },
  worker: PoolWorker,
): Promise<Model[]> {
  const timeout = new AbortController();
  const cancel = clock.after(TIMEOUT_MS, () => timeout.abort());
  try {
    const response = await http.fetch(worker.url + path, { signal: timeout.signal });
    const { data } = await response.json() as { data?: unknown };
    if (response.status !== 200 || !Array.isArray(data)) return [];
    return data.filter((model): model is Model => typeof model?.id === "string");
  } catch {
    return [];
  } finally {
    cancel();
  }
}
