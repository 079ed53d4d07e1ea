/**
 * Exchanges of a thread about which the main thread decides: what is held, what has no service, a
 * choice that takes more than the table. The lease is the main thread's; the bytes stay here.
 */

import type { Exchange, Forward } from "../proxy/exchange.ts";
import { Target } from "../proxy/target.ts";
import type { Moved, PoolBytes } from "../router/pool_bytes.ts";
import type { Clock } from "../runtime/runtime.ts";
import { ForeignLease } from "./foreign_lease.ts";
import type { ToldPrompt, ToMain, ToThread } from "./messages.ts";
import type { Replicas } from "./replicas.ts";
import { errorTold, tellError } from "./told_error.ts";

export interface AskedOptions {
  readonly clock: Pick<Clock, "monotonic">;
  readonly replicas: Replicas;
  readonly post: (message: ToMain) => void;
}

interface Asked {
  readonly exchange: Exchange;
  readonly forward: Forward;
  /** For a pool's exchange. */
  readonly bytes: PoolBytes | undefined;
  lease: ForeignLease | undefined;
  readonly done: () => void;
  readonly failed: (error: unknown) => void;
}

type AboutExchange = Extract<ToThread, { readonly exchange: number }>;
type ToForward = Extract<ToThread, { kind: "forward" }>;

export class AskedExchanges {
  readonly #options: AskedOptions;
  readonly #asked = new Map<number, Asked>();
  readonly #mayWait = new Map<number, (holdMs: number) => void>();
  #last = 0;

  constructor(options: AskedOptions) {
    this.#options = options;
  }

  /** How long a request for the path may wait while the host serves nothing yet. */
  mayWait(path: string): Promise<number> {
    this.#last += 1;
    const question = this.#last;
    return new Promise((resolve) => {
      this.#mayWait.set(question, resolve);
      this.#options.post({ kind: "may_wait", question, path });
    });
  }

  toldHold(question: number, holdMs: number): void {
    this.#mayWait.get(question)?.(holdMs);
    this.#mayWait.delete(question);
  }

  /** Asks, and does what the main thread says. Rejects with what the answer must be. */
  ask(exchange: Exchange, forward: Forward): Promise<void> {
    return this.#ask(exchange, forward, undefined, undefined);
  }

  /** Asks for a pool's worker: with the prompt, if it may be read before anybody wants to know it. */
  async askPool(
    exchange: Exchange,
    forward: Forward,
    bytes: PoolBytes,
    readsFirst: boolean,
  ): Promise<void> {
    const prompt = readsFirst ? await readPrompt(bytes) : undefined;
    if (!exchange.finished) await this.#ask(exchange, forward, bytes, prompt);
  }

  #ask(
    exchange: Exchange,
    forward: Forward,
    bytes: PoolBytes | undefined,
    prompt: ToldPrompt | undefined,
  ): Promise<void> {
    this.#last += 1;
    const id = this.#last;
    return new Promise((resolve, reject) => {
      this.#asked.set(id, {
        exchange,
        forward,
        bytes,
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
      const { requestId, method, target, path, remoteAddress } = exchange;
      this.#options.post({
        kind: "exchange",
        exchange: id,
        requestId,
        method,
        target,
        path,
        headers: exchange.headers.join("\n"),
        remoteAddress,
        host: exchange.header("host") ?? "localhost",
        prompt,
      });
    });
  }

  /** A message of the main thread about one of them; it may be over by now. */
  told(message: AboutExchange): void {
    const asked = this.#asked.get(message.exchange);
    if (asked === undefined) return;
    if ("notes" in message && message.notes !== undefined) asked.exchange.note(message.notes);
    switch (message.kind) {
      case "respond": {
        const { status, headers, body } = message;
        const bytes = body === undefined ? null : new Uint8Array(body);
        const pairs = headers.map(([name, value]): [string, string] => [name, value]);
        return asked.exchange.respond(new Response(bytes, { status, headers: pairs }));
      }
      case "fail":
        return asked.failed(errorTold(message.error));
      case "read_prompt":
        return void this.#readPrompt(asked, message.exchange);
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

  async #readPrompt({ bytes }: Asked, exchange: number): Promise<void> {
    if (bytes === undefined) return;
    this.#options.post({ kind: "prompt", exchange, prompt: await readPrompt(bytes) });
  }

  async #forward(asked: Asked, message: ToForward): Promise<void> {
    const { exchange } = message;
    const lease = new ForeignLease(
      this.#targetOf(message.target),
      asked.exchange.requestId,
      this.#options.clock.monotonic(),
      (leaseKind) => this.#options.post({ kind: "forward_kind", exchange, leaseKind }),
    );
    asked.lease = lease;
    const { outcome, status, cachedTokens } = await this.#move(asked, lease, message);
    asked.lease = undefined;
    const { answered } = asked.exchange;
    const { failure } = lease;
    this.#options.post({
      kind: "outcome",
      exchange,
      outcome,
      answered,
      failure,
      status,
      cachedTokens,
    });
    // Where nothing more can come of it, nobody has to say so.
    if (outcome.result !== "upstream_failed") asked.done();
  }

  async #move(asked: Asked, lease: ForeignLease, message: ToForward): Promise<Moved> {
    const { exchange, path, returnFailure, timeouts, forPool } = message;
    if (forPool && asked.bytes !== undefined) {
      const firstByte = (): void => this.#options.post({ kind: "first_byte", exchange });
      return await asked.bytes.move(lease, firstByte);
    }
    const outcome = await asked.forward(asked.exchange, lease, {
      returnFailure,
      ...(path === undefined ? {} : { target: path }),
      ...(timeouts === undefined ? {} : { timeouts }),
    });
    return { outcome, status: 0, cachedTokens: undefined };
  }

  /**
   * Our copy of the target, with its connections. None is left when the target was retired after the
   * main thread took the lease: then one for this exchange, whose connection nobody uses again.
   */
  #targetOf(told: ToForward["target"]): Target {
    const known = this.#options.replicas.find(told.id);
    if (known !== undefined) return known;
    const target = new Target(told);
    target.onConnectFailure((_failures, error) => {
      this.#options.post({ kind: "connect_failed", target: told.id, message: String(error) });
    });
    void target.retire();
    return target;
  }
}

/** Never rejects: an error is told too. */
async function readPrompt(bytes: PoolBytes): Promise<ToldPrompt> {
  try {
    return { facts: await bytes.readPrompt() };
  } catch (error) {
    return { error: tellError(error) };
  }
}
