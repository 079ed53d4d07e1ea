/**
 * HTTP/2 sessions (prior knowledge) with one target: normally one, more while its streams are full.
 *
 * When the target retires its sessions take no more requests and end with their last stream.
 */

import { ConnectFailed, type Runtime } from "../runtime/runtime.ts";
import type { Deadlines, Timed } from "./deadlines.ts";
import { type ClientSession, connectHttp2 } from "./http2/client_session.ts";
import type { Target } from "./target.ts";

export interface H2SessionOptions {
  readonly runtime: Pick<Runtime, "net" | "clock" | "wire">;
  readonly deadlines: Deadlines;
  /** How long a session without streams is kept. */
  readonly idleMs: number;
  readonly headLimitBytes: number;
}

/** A session and how often it was used: a fresh one is never stale. */
export class H2Session implements Timed {
  deadlineMs = Infinity;
  deadlinePlace = -1;
  uses = 0;
  readonly session: ClientSession;

  constructor(session: ClientSession) {
    this.session = session;
  }

  onDeadline(): void {
    this.deadlineMs = Infinity;
    if (this.session.streams === 0) this.session.closeGently();
  }
}

export class H2Sessions {
  readonly #options: H2SessionOptions;
  readonly #target: Target;
  readonly #sessions = new Set<H2Session>();
  #connecting: Promise<H2Session> | undefined;

  constructor(target: Target, options: H2SessionOptions) {
    this.#target = target;
    this.#options = options;
    target.onRetire(() => {
      for (const { session } of this.#sessions) session.closeGently();
    });
  }

  get open(): number {
    return this.#sessions.size;
  }

  /** A session that takes one more request now. */
  take(): H2Session | undefined {
    for (const one of this.#sessions) if (one.session.room > 0) return one;
    return undefined;
  }

  /** A new session; all who ask at the same time share one. Rejects with ConnectFailed. */
  connect(timeoutMs: number): Promise<H2Session> {
    this.#connecting ??= this.#connect(timeoutMs).finally(() => {
      this.#connecting = undefined;
    });
    return this.#connecting;
  }

  async #connect(timeoutMs: number): Promise<H2Session> {
    const { runtime, deadlines, idleMs, headLimitBytes } = this.#options;
    const session = await connectHttp2({
      net: runtime.net,
      clock: runtime.clock,
      latin1: runtime.wire.latin1,
      soon: runtime.wire.soon,
      address: this.#target.address,
      timeoutMs,
      headerBytes: headLimitBytes,
    });
    if (session.room === 0) {
      session.destroy();
      throw new ConnectFailed("other", "the target takes no streams");
    }
    const one = new H2Session(session);
    // Nobody may want it any more.
    one.deadlineMs = runtime.clock.monotonic() + idleMs;
    this.#sessions.add(one);
    deadlines.add(one);
    session.onClose(() => {
      this.#sessions.delete(one);
      deadlines.remove(one);
    });
    session.onRoom(() => {
      if (session.streams > 0) return;
      // A retired target's session was told to close, and would be kept open by nobody.
      one.deadlineMs = this.#target.retired ? 0 : runtime.clock.monotonic() + idleMs;
    });
    return one;
  }
}
