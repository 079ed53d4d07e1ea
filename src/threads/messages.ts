/**
 * What the main thread and the threads of the data path say to each other. Both directions are
 * ordered; docs/threads.md says why that is enough.
 */

import type { ForwardOutcome } from "../proxy/exchange.ts";
import type { LeaseKind, TargetOptions } from "../proxy/target.ts";
import type { Timeouts } from "../proxy/timeouts.ts";
import type { TrafficOptions, TrafficSettings } from "../proxy/traffic.ts";
import type { PoolConfig } from "../config/pool.ts";
import type { Level } from "../observe/log.ts";
import type { PromptFacts } from "../router/prompt_facts.ts";
import type { Address, ListenOptions } from "../runtime/runtime.ts";
import type { TlsPair } from "../runtime/tls_contract.ts";
import type { ToldError } from "./told_error.ts";

/** A target as a thread has to know it. */
export interface SharedTarget extends TargetOptions {
  readonly id: number;
  /** Open leases of the thread, by kind in the order of `KINDS`; the thread writes, main reads. */
  readonly counts: SharedArrayBuffer;
}

export const KINDS: readonly LeaseKind[] = ["request", "stream", "tunnel"];

/** A service as a thread has to know it. */
export interface SharedService {
  readonly name: string;
  readonly mounts: readonly string[];
  /**
   * Where requests go without asking: by version, or "" for all of them. What is not listed is asked
   * of the main thread.
   */
  readonly direct: readonly (readonly [version: string, target: number])[];
  readonly byVersion: boolean;
  /** Paths behind the version that are not the target's to answer. */
  readonly hidden: readonly string[];
  /** The bodies of POSTs are read before asking: what they say is all that is missing to choose. */
  readonly readsFirst: boolean;
  readonly timeouts: Partial<Timeouts> | undefined;
}

/** How a thread reads the prompts of a pool's requests. */
export interface PoolReading
  extends Pick<PoolConfig, "maxBodyBytes" | "tokenizer" | "tokenizeTimeoutMs"> {}

/** A prompt that a thread has read, or why it has not. */
export type ToldPrompt = { readonly facts: PromptFacts } | { readonly error: ToldError };

export interface Table {
  /** Counts up with every table. */
  readonly number: number;
  readonly services: readonly SharedService[];
  /** Every target that may still be used; one that is missing is retired. */
  readonly targets: readonly SharedTarget[];
}

export interface ListenerSettings extends TrafficSettings, Pick<TrafficOptions, "tls"> {
  readonly listen: ListenOptions;
  readonly logLevel: Level;
}

export interface HostGate {
  readonly accepting: boolean;
  readonly draining: boolean;
}

export type ToThread =
  | {
    readonly kind: "start";
    readonly settings: ListenerSettings;
    readonly gate: HostGate;
    /** Services that are pools, by name. */
    readonly pools: readonly (readonly [service: string, reading: PoolReading])[];
    /** Exchanges of the thread that are in flight: the thread writes, main reads. */
    readonly inflight: SharedArrayBuffer;
    /** Client connections: of all threads, and of this one. */
    readonly connections: { readonly total: SharedArrayBuffer; readonly own: SharedArrayBuffer };
  }
  | { readonly kind: "table"; readonly table: Table }
  | { readonly kind: "gate"; readonly gate: HostGate }
  | { readonly kind: "certificate"; readonly pair: TlsPair }
  | { readonly kind: "drain" | "close" | "destroy" }
  | { readonly kind: "tell_idle"; readonly question: number }
  | { readonly kind: "cut"; readonly lease: number; readonly reason: string }
  | { readonly kind: "warn"; readonly lease: number }
  | { readonly kind: "start_hold"; readonly question: number; readonly holdMs: number }
  | { readonly kind: "read_prompt"; readonly exchange: number }
  | Noted & {
    readonly kind: "forward";
    readonly exchange: number;
    /** Whoever asked for it wants to know what the answer says (PoolBytes). */
    readonly forPool: boolean;
    readonly target: TargetOptions & { readonly id: number };
    readonly path: string | undefined;
    readonly returnFailure: boolean;
    readonly timeouts: Readonly<Record<string, number>> | undefined;
  }
  | { readonly kind: "cut_forward"; readonly exchange: number; readonly reason: string }
  | { readonly kind: "warn_forward"; readonly exchange: number }
  | Noted & {
    readonly kind: "respond";
    readonly exchange: number;
    readonly status: number;
    readonly headers: readonly (readonly [string, string])[];
    readonly body: Uint8Array | undefined;
  }
  | Noted & { readonly kind: "fail"; readonly exchange: number; readonly error: ToldError }
  | Noted & { readonly kind: "done"; readonly exchange: number };

/** What of an exchange is to stand on its log line; it goes along with what is told next. */
interface Noted {
  readonly notes?: Readonly<Record<string, unknown>>;
}

/** A lease that a thread holds on a target that is retired. */
export interface OpenLease {
  readonly lease: number;
  readonly requestId: string;
  readonly ageMs: number;
  readonly leaseKind: LeaseKind;
}

export type ToMain =
  | { readonly kind: "listening"; readonly address: Address }
  | { readonly kind: "listen_failed"; readonly message: string }
  | {
    readonly kind: "acknowledged";
    readonly number: number;
    readonly retired: readonly { readonly target: number; readonly open: readonly OpenLease[] }[];
  }
  | { readonly kind: "lease_kind"; readonly lease: number; readonly leaseKind: LeaseKind }
  | { readonly kind: "lease_ended"; readonly target: number; readonly lease: number }
  | {
    readonly kind: "lost";
    readonly target: number;
    readonly failure: string;
    readonly lease: OpenLease;
  }
  | { readonly kind: "connect_failed"; readonly target: number; readonly message: string }
  | {
    readonly kind: "exchange";
    readonly exchange: number;
    readonly requestId: string;
    readonly method: string;
    readonly target: string;
    readonly path: string;
    /** The header lines, name and value by turns, each on a line: one text crosses sooner. */
    readonly headers: string;
    readonly remoteAddress: string;
    readonly host: string;
    readonly prompt: ToldPrompt | undefined;
  }
  | { readonly kind: "may_wait"; readonly question: number; readonly path: string }
  | { readonly kind: "gone"; readonly exchange: number }
  | { readonly kind: "prompt"; readonly exchange: number; readonly prompt: ToldPrompt }
  | { readonly kind: "first_byte"; readonly exchange: number }
  | {
    readonly kind: "outcome";
    readonly exchange: number;
    readonly outcome: ForwardOutcome;
    readonly answered: boolean;
    readonly failure: string | undefined;
    /** For a pool: the status of the target's answer, and what its usage says. */
    readonly status: number;
    readonly cachedTokens: number | undefined;
  }
  | { readonly kind: "forward_kind"; readonly exchange: number; readonly leaseKind: LeaseKind }
  | { readonly kind: "idle"; readonly question: number }
  | { readonly kind: "connections"; readonly count: number }
  | {
    readonly kind: "metrics";
    readonly declared: readonly MetricName[];
    readonly counted: readonly (readonly [name: string, labels: Labels, by: number])[];
    readonly observed: readonly (readonly [name: string, labels: Labels, values: number[]])[];
  }
  | { readonly kind: "closed" };

export type Labels = Readonly<Record<string, string>>;

export interface MetricName {
  readonly type: "counter" | "histogram";
  readonly name: string;
  readonly help: string;
  readonly labels: readonly string[];
  readonly buckets: readonly number[] | undefined;
}
