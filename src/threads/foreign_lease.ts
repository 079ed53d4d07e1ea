/** A lease that the main thread holds, as forwarding in a thread sees it. */

import type { Lease, LeaseKind, Target } from "../proxy/target.ts";

export class ForeignLease implements Lease {
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
