/**
 * The choice of a worker over HTTP, call by call as Dynamo's selection service has it, for gateways
 * that forward requests themselves. Pools are those of the configuration; `model_name` and
 * `routing_group` may be left out while there is one.
 */

import { type Context, Hono } from "hono";
import { BatonError } from "../errors.ts";
import { type Json, printU64Json, workerNumber } from "../kv/u64_json.ts";
import type { ChoiceOptions } from "../router/choice.ts";
import type { CostWeights } from "../router/cost.ts";
import type { Selected, Selector } from "../router/selector.ts";
import type { ChoiceContent } from "../router/worker_choice.ts";
import type { Random } from "../runtime/runtime.ts";
import {
  bad,
  count,
  DEFAULT_GROUP,
  type Fields,
  hashes,
  list,
  MAX_BODY_BYTES,
  rank,
  readFields,
  required,
  text,
  tokens,
  worker,
} from "./json_fields.ts";

export interface SelectionApiOptions {
  /** One for each pool. */
  readonly selectors: () => readonly Selector[];
  readonly random: Pick<Random, "uuid">;
}

/** Names of `router_config_override`, and the weights that they are. */
const OVERRIDES: Readonly<Record<string, keyof CostWeights>> = {
  overlap_score_credit: "deviceCredit",
  overlap_score_credit_decay: "creditDecay",
  prefill_load_scale: "prefillScale",
  overlap_score_weight: "prefillScale",
};

/** Makes the routes, for an app that turns errors into answers and that only the cluster reaches. */
export function createSelectionApi(options: SelectionApiOptions): Hono {
  const app = new Hono();
  const fieldsOf = (context: Context): Promise<Fields> =>
    readFields(context.req.raw, MAX_BODY_BYTES);
  const poolOf = (fields: Fields): Selector =>
    selectorOf(options.selectors(), text(fields, "model_name"), text(fields, "routing_group"));

  app.post("/select", async (context) => {
    const fields = await fieldsOf(context);
    const id = text(fields, "selection_id");
    const selected = poolOf(fields).select(contentOf(fields), choiceOf(fields), id);
    return json({ ...selectedJson(selected), ...(id === undefined ? {} : { selection_id: id }) });
  });

  app.post("/select_and_reserve", async (context) => {
    const fields = await fieldsOf(context);
    const id = text(fields, "selection_id") ?? options.random.uuid();
    const selected = poolOf(fields).selectAndReserve(contentOf(fields), choiceOf(fields), id);
    return json({
      ...selectedJson(selected),
      selection_id: id,
      isl_tokens: selected.promptTokens,
      track_prefill_tokens: true,
    });
  });

  app.post("/reservations", async (context) => {
    const fields = await fieldsOf(context);
    const id = required(text(fields, "selection_id"), "selection_id");
    const pool = poolOf(fields);
    const named = worker(fields, "worker_id");
    if (named === undefined) {
      const { rank: booked } = pool.reservations.reserveSelected(id);
      return json({ selection_id: id, ...rankJson(booked) }, 201);
    }
    const { id: workerId, dpRank } = pool.worker(named);
    const asked = rank(fields) ?? dpRank;
    if (asked !== dpRank) throw new BatonError("not_found", `worker ${workerId} has no such rank`);
    const promptTokens = required(count(fields, "isl_tokens"), "isl_tokens");
    pool.reservations.reserve(id, {
      rank: { worker: workerId, dpRank },
      promptTokens,
      size: {
        prefillTokens: tokensOf(fields, "effective_prefill_tokens") ?? promptTokens,
        promptBlocks: Math.ceil(promptTokens / pool.blockSize),
      },
    });
    return json({ selection_id: id, ...rankJson({ worker: workerId, dpRank }) }, 201);
  });

  const holder = (context: Context): Selector => {
    const { model_name: model, routing_group: group } = context.req.query();
    const id = context.req.param("id") ?? "";
    const pools = options.selectors();
    const found = model === undefined
      ? pools.find(({ reservations }) => reservations.has(id))
      : selectorOf(pools, model, group);
    if (found !== undefined) return found;
    throw new BatonError("not_found", "no reservation of this name");
  };
  const done = (): Response => json({ status: "ok" });

  app.post("/reservations/:id/prefill_complete", (context) => {
    holder(context).reservations.prefillComplete(context.req.param("id"));
    return done();
  });

  app.post("/reservations/:id/output_block", async (context) => {
    const hasBody = context.req.raw.body !== null;
    const fraction = hasBody ? (await fieldsOf(context))["decay_fraction"] ?? undefined : undefined;
    if (fraction !== undefined && typeof fraction !== "number") {
      throw bad("decay_fraction", "a number from 0 to 1");
    }
    holder(context).reservations.outputBlock(context.req.param("id"), fraction);
    return done();
  });

  app.delete("/reservations/:id", (context) => {
    holder(context).reservations.release(context.req.param("id"));
    return done();
  });

  app.get(
    "/loads",
    () =>
      json(
        options.selectors().flatMap((pool) =>
          pool.ranked(undefined).map((one) => ({
            model_name: pool.model,
            routing_group: pool.group,
            ...rankJson(one),
            active_prefill_tokens: one.load?.prefillTokens ?? 0,
            active_decode_blocks: one.load?.decodeBlocks ?? 0,
            active_requests: one.load?.requests ?? 0,
          }))
        ),
      ),
  );

  app.post("/overlap_scores", async (context) => {
    const fields = await fieldsOf(context);
    const pool = poolOf(fields);
    return json(
      pool.ranked(contentOf(fields)).map((one) => ({
        ...rankJson(one),
        overlap_blocks: one.overlap?.device ?? 0,
      })),
    );
  });
  return app;
}

function selectorOf(
  selectors: readonly Selector[],
  model: string | undefined,
  group: string | undefined,
): Selector {
  if (model === undefined) {
    const [only, other] = selectors;
    if (only !== undefined && other === undefined) return only;
    throw new BatonError("bad_request", "model_name is missing, and there is not just one pool");
  }
  const found = selectors.find((one) =>
    one.model === model && one.group === (group ?? DEFAULT_GROUP)
  );
  if (found !== undefined) return found;
  throw new BatonError("not_found", `no pool for model ${model}, group ${group ?? DEFAULT_GROUP}`);
}

/** Tokens, or hashes of all blocks with the number of tokens. */
function contentOf(fields: Fields): ChoiceContent {
  const hasHashes = fields["block_hashes"] !== undefined && fields["block_hashes"] !== null;
  if (!hasHashes) {
    const lora = text(fields, "lora_name");
    const salt = text(fields, "cache_salt");
    return {
      tokens: tokens(fields),
      ...(lora === undefined ? {} : { lora }),
      ...(salt === undefined ? {} : { salt }),
      ...(fields["is_eagle"] === true ? { eagle: true } : {}),
    };
  }
  const locals = hashes(fields);
  if (hashes(fields, "sequence_hashes").length !== locals.length) {
    throw bad("sequence_hashes", "as long as block_hashes");
  }
  return { locals, promptTokens: required(count(fields, "isl_tokens"), "isl_tokens") };
}

function choiceOf(fields: Fields): ChoiceOptions {
  const override = objectOf(fields, "router_config_override");
  const weights: Record<string, number> = {};
  for (const [name, weight] of Object.entries(OVERRIDES)) {
    const value = override?.[name];
    if (value === undefined || value === null) continue;
    if (typeof value !== "number" || !(value >= 0)) throw bad(name, "a number, at least 0");
    weights[weight] = value;
  }
  const temperature = override?.["router_temperature"];
  if (temperature !== undefined && temperature !== null && typeof temperature !== "number") {
    throw bad("router_temperature", "a number");
  }
  const pinned = objectOf(fields, "pinned_worker");
  const pin = pinned === undefined ? undefined : {
    worker: required(worker(pinned, "worker_id"), "pinned_worker.worker_id"),
    dpRank: rank(pinned),
  };
  const allowed = fields["allowed_worker_ids"] ?? undefined;
  return {
    weights,
    ...(temperature === undefined || temperature === null ? {} : { temperature }),
    ...(pin === undefined ? {} : { pinned: pin }),
    ...(allowed === undefined
      ? {}
      : { allowed: new Set(list(fields, "allowed_worker_ids").map(String)) }),
  };
}

function objectOf(fields: Fields, field: string): Fields | undefined {
  const value = fields[field];
  if (value === undefined || value === null) return undefined;
  if (typeof value === "object" && !Array.isArray(value)) {
    return value as { readonly [key: string]: Json };
  }
  throw bad(field, "an object");
}

/** A whole number, 0 or more. */
function tokensOf(fields: Fields, field: string): number | undefined {
  return fields[field] === 0 ? 0 : count(fields, field);
}

function selectedJson({ worker: chosen, overlap, cost, blockSize }: Selected) {
  const { device, host, disk } = overlap;
  return {
    ...rankJson({ worker: chosen.id, dpRank: chosen.dpRank }),
    endpoint: chosen.url,
    block_size: blockSize,
    overlap: {
      longest_matched: Math.max(device, host, disk) * blockSize,
      gpu: device * blockSize,
      dp: { [chosen.dpRank]: device * blockSize },
      cpu: host * blockSize,
      disk: disk * blockSize,
    },
    effective_prefill_tokens: cost.prefillTokens,
    potential_decode_blocks: cost.decodeBlocks,
  };
}

function rankJson({ worker: id, dpRank }: { worker: string; dpRank: number }) {
  return { worker_id: workerNumber(id), dp_rank: dpRank };
}

function json(value: unknown, status = 200): Response {
  return new Response(printU64Json(value), {
    status,
    headers: { "content-type": "application/json", "cache-control": "no-store" },
  });
}
