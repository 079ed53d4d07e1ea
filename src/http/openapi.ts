/**
 * The OpenAPI 3.1 description of the admin API, from one table of its calls.
 */

import { ERROR_STATUS } from "../errors.ts";
import {
  type OperatorOptions,
  type OperatorVerb,
  VERB_OPTIONS,
  VERBS,
} from "../supervisor/operators.ts";

type Json = Readonly<Record<string, unknown>>;

interface Call {
  readonly method: "get" | "post";
  readonly path: string;
  readonly summary: string;
  readonly answer: Json;
  readonly contentType?: string;
  readonly more?: Readonly<Record<string, string>>;
  readonly body?: Json;
  readonly parameters?: readonly Json[];
}

const TEXT = { type: "string" } as const;
const YES_NO = { type: "boolean" } as const;
const COUNT = { type: "integer", minimum: 0 } as const;
const list = (name: string, of: Json): Json => object({ [name]: { type: "array", items: of } });
const OPEN = { type: "object", additionalProperties: true } as const;

function object(properties: Json): Json {
  return { type: "object", properties, required: Object.keys(properties) };
}

const CONDITION = object({ name: TEXT, ok: YES_NO, reason: TEXT });
const READY = object({
  ready: YES_NO,
  draining: YES_NO,
  inflight: COUNT,
  conditions: { type: "array", items: CONDITION },
});
const DRAIN = object({
  ready: YES_NO,
  draining: YES_NO,
  inflight: COUNT,
  targets: { type: "array", items: OPEN },
});
const SERVICE = {
  name: "service",
  in: "query",
  required: false,
  schema: TEXT,
  description: "Chooses when several services have a version of this name.",
};

const CONTROL_SUMMARY: Readonly<Record<OperatorVerb, string>> = {
  pause: "Begin no roll-out; with `traffic` also hold new requests (bounded), then refuse them",
  resume: "End a pause",
  pin: "Stay on this build whatever the oracle publishes",
  unpin: "Follow the oracle again",
  rollback: "Go back to the build before, from its retained install",
  promote: "End a canary in favour of the new build",
  deny: "Never start this build again until it is allowed",
  allow: "Forget that a build failed or was denied",
  restart: "Start a new generation of the same build and hand over to it",
};

const CONTROL_FIELD: Readonly<Record<keyof OperatorOptions, Json>> = {
  sha256: { type: "string", pattern: "^[0-9A-Fa-f]{64}$" },
  reason: TEXT,
  traffic: YES_NO,
};

const CALLS: readonly Call[] = [
  {
    method: "get",
    path: "/ready",
    summary: "Is this Baton ready for new work",
    answer: READY,
    more: { "503": "Not ready; the same body says why" },
  },
  {
    method: "post",
    path: "/drain",
    summary: "Begin to drain this Baton; never taken back",
    answer: DRAIN,
  },
  { method: "get", path: "/drain/status", summary: "What still owes an answer", answer: DRAIN },
  {
    method: "get",
    path: "/api/v1/versions",
    summary: "Every version of every versions service, with its generations",
    answer: list("versions", OPEN),
  },
  {
    method: "get",
    path: "/api/v1/versions/{name}",
    summary: "One version",
    answer: OPEN,
    more: { "404": "No such version", "409": "Several services have one" },
    parameters: [SERVICE],
  },
  ...VERBS.map((verb): Call => ({
    method: "post",
    path: `/api/v1/versions/{name}/${verb}`,
    summary: CONTROL_SUMMARY[verb],
    // `saved: false` and `warning`: in effect, but the disk refused to keep it.
    answer: OPEN,
    more: { "404": "No such version", "409": "It cannot be now; the message says why" },
    parameters: [SERVICE],
    body: {
      type: "object",
      properties: Object.fromEntries(VERB_OPTIONS[verb].map((name) => [name, CONTROL_FIELD[name]])),
      additionalProperties: false,
    },
  })),
  {
    method: "get",
    path: "/api/v1/workers",
    summary: "Workers of all pools with their lanes: state, cursor, blocks, load",
    answer: list("workers", OPEN),
  },
  {
    method: "get",
    path: "/api/v1/peers",
    summary: "The other replicas, as last seen",
    answer: list("peers", OPEN),
  },
  {
    method: "get",
    path: "/api/v1/recovery",
    summary: "The recovery of the index: state, progress, attempts",
    answer: OPEN,
  },
  {
    method: "get",
    path: "/api/v1/events",
    summary: "The journal of events: SSE (which follows) or NDJSON by Accept",
    answer: TEXT,
    contentType: "application/x-ndjson",
    parameters: [
      {
        name: "Last-Event-ID",
        in: "header",
        required: false,
        schema: COUNT,
        description: "Only events after this number.",
      },
      {
        name: "since",
        in: "query",
        required: false,
        schema: COUNT,
        description: "The same, for clients that cannot set the header.",
      },
      {
        name: "follow",
        in: "query",
        required: false,
        schema: { type: "string", enum: ["true", "false"] },
        description: "NDJSON only: stay, and send what comes.",
      },
    ],
  },
  {
    method: "get",
    path: "/metrics",
    summary: "Prometheus metrics",
    answer: TEXT,
    contentType: "text/plain",
  },
  {
    method: "get",
    path: "/openapi.json",
    summary: "This document",
    answer: OPEN,
  },
  {
    method: "get",
    path: "/ui/",
    summary: "The status page",
    answer: TEXT,
    contentType: "text/html",
  },
];

/** The document. `version` is Baton's own. */
export function adminOpenApi(version: string): Json {
  const paths: Record<string, Record<string, Json>> = {};
  for (const call of CALLS) {
    paths[call.path] ??= {};
    const operations = paths[call.path] as Record<string, Json>;
    operations[call.method] = operation(call);
  }
  return {
    openapi: "3.1.0",
    info: {
      title: "Baton admin API",
      version,
      description: "Served on the admin listener. Off loopback every call needs the bearer token.",
    },
    paths,
    security: [{}, { token: [] }],
    components: {
      securitySchemes: { token: { type: "http", scheme: "bearer" } },
      schemas: {
        Error: object({
          error: {
            type: "object",
            properties: {
              code: { type: "string", enum: Object.keys(ERROR_STATUS) },
              message: TEXT,
            },
            required: ["code", "message"],
            additionalProperties: true,
          },
        }),
      },
    },
  };
}

function operation(call: Call): Json {
  const error = {
    content: { "application/json": { schema: { $ref: "#/components/schemas/Error" } } },
  };
  const responses: Record<string, Json> = {
    "200": {
      description: "Done",
      content: { [call.contentType ?? "application/json"]: { schema: call.answer } },
    },
    "401": { description: "The token is missing or wrong", ...error },
  };
  for (const [status, description] of Object.entries(call.more ?? {})) {
    responses[status] = status === "503" && call.path === "/ready"
      ? { description, content: { "application/json": { schema: call.answer } } }
      : { description, ...error };
  }
  const names = [...call.path.matchAll(/\{(\w+)\}/g)].map(([, name]) => ({
    name,
    in: "path",
    required: true,
    schema: TEXT,
  }));
  return {
    operationId: call.method +
      call.path.replace(/[^A-Za-z0-9]+(.)?/g, (_all, next?: string) => next?.toUpperCase() ?? ""),
    summary: call.summary,
    parameters: [...names, ...(call.parameters ?? [])],
    ...(call.body === undefined ? {} : {
      requestBody: { required: false, content: { "application/json": { schema: call.body } } },
    }),
    responses,
  };
}
