/**
 * Exchanges of a thread about which the main thread decides: what is held, what has no service, a
 * choice that takes more than the table. The lease is the main thread's; the bytes stay here.
 */

import { BatonError, ERROR_STATUS, type ErrorCode } from "../errors.ts";
import type { Exchange, Forward } from "../proxy/exchange.ts";
import { type Lease, type LeaseKind, Target } from "../proxy/target.ts";
import type { Clock } from "../runtime/runtime.ts";
import type { ToMain, ToThread } from "./messages.ts";
import type { Replicas } from "./replicas.ts";

export interface AskedOptions {
  readonly clock: Pick<Clock, "monotonic">;
  readonly replicas: Replicas;
  readonly post: (message: ToMain) => void;
}

interface Asked {
  readonly exchange: Exchange;
  readonly forward: Forward;
  lease: ForeignLease | undefined;
  readonly done: () => void;
  readonly failed: (error: unknown) => void;
}

type AboutExchange = Extract<ToThread, { readonly exchange: number }>;

export class AskedExchanges {
  readonly #options: AskedOptions;
  readonly #asked = new Map<number, Asked>();
  #last = 0;

  constructor(options: AskedOptions) {
    this.#options = options;
  }

  /** Asks, and does what the main thread says. Rejects with what the answer must be. */
  ask(exchange: Exchange, forward: Forward): Promise<void> {
    this.#last += 1;
    const id = this.#last;
    return new Promise((resolve, reject) => {
      this.#asked.set(id, {
        exchange,
        forward,
        lease: undefined,
        done: () => {
          this.#asked.delete(id);
          resolve();
        },
        failed: (error) => {
          this.#asked.delete(id);
          reject(error);
        },
      });
      exchange.onAbort(() => this.#options.post({ kind: "gone", exchange: id }));
      const { requestId, method, target, path, headers, remoteAddress } = exchange;
      this.#options.post({
        kind: "exchange",
        exchange: id,
        requestId,
        method,
        target,
        path,
        headers,
        remoteAddress,
        host: exchange.header("host") ?? "localhost",
      });
    });
  }

  /** A message of the main thread about one of them; it may be over by now. */
  told(message: AboutExchange): void {
    const asked = this.#asked.get(message.exchange);
    if (asked === undefined) return;
    switch (message.kind) {
      case "note":
        return asked.exchange.note(message.fields);
      case "respond": {
        const { status, headers, body } = message;
        const bytes = body === undefined ? null : new Uint8Array(body);
        const pairs = headers.map(([name, value]): [string, string] => [name, value]);
        return asked.exchange.respond(new Response(bytes, { status, headers: pairs }));
      }
      case "fail": {
        const code = message.code in ERROR_STATUS ? message.code as ErrorCode : "internal";
        const { detail, retryAfterS } = message;
        return asked.failed(
          new BatonError(code, message.message, {
            detail: { ...detail },
            ...(retryAfterS === undefined ? {} : { retryAfterS }),
          }),
        );
      }
      case "forward":
        return void this.#forward(asked, message);
      case "cut_forward":
        return asked.lease?.cut?.(message.reason);
      case "warn_forward":
        return asked.lease?.warn?.();
      case "done":
        return asked.done();
    }
  }

  async #forward(
    asked: Asked,
    message: Extract<ToThread, { kind: "forward" }>,
  ): Promise<void> {
    const { exchange, target, path, returnFailure, timeouts } = message;
    const lease = new ForeignLease(
      this.#options.replicas.find(target.id) ?? new Target(target),
      asked.exchange.requestId,
      this.#options.clock.monotonic(),
      (leaseKind) => this.#options.post({ kind: "forward_kind", exchange, leaseKind }),
    );
    asked.lease = lease;
    const outcome = await asked.forward(asked.exchange, lease, {
      returnFailure,
      ...(path === undefined ? {} : { target: path }),
      ...(timeouts === undefined ? {} : { timeouts }),
    });
    asked.lease = undefined;
    const { answered } = asked.exchange;
    const { failure } = lease;
    this.#options.post({ kind: "outcome", exchange, outcome, answered, failure });
  }
}

/** A lease that the main thread holds, as forwarding here sees it. */
class ForeignLease implements Lease {
  readonly target: Target;
  readonly requestId: string;
  readonly since: number;
  cut?: (reason: string) => void;
  warn?: () => void;
  released = false;
  failure: string | undefined;
  readonly #kindChanged: (kind: LeaseKind) => void;
  #kind: LeaseKind = "request";

  constructor(
    target: Target,
    requestId: string,
    since: number,
    kindChanged: (kind: LeaseKind) => void,
  ) {
    this.target = target;
    this.requestId = requestId;
    this.since = since;
    this.#kindChanged = kindChanged;
  }

  get kind(): LeaseKind {
    return this.#kind;
  }

  set kind(kind: LeaseKind) {
    this.#kind = kind;
    this.#kindChanged(kind);
  }

  release(failure?: string): void {
    this.released = true;
    this.failure = failure;
  }
}
