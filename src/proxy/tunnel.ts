/**
 * An upgraded connection: bytes both ways, half-close kept, each side paused while the other is full.
 *
 * The only bytes of our own are the two Close frames of `warn`, each between two frames.
 */

import type { RawSide, TunnelEnd } from "./client_side.ts";
import type { Deadlines, Timed } from "./deadlines.ts";
import { CLOSE_GOING_AWAY, FrameBoundaries, MASKED_CLOSE_GOING_AWAY } from "./websocket_frames.ts";

/** Called once, when both sides are closed; `cutReason` is set when we ended it. */
type Ended = (cutReason: string | undefined, bytesToClient: number) => void;

export interface TunnelOptions {
  readonly isWebSocket: boolean;
  readonly deadlines: Deadlines;
  readonly now: () => number;
  /** How long a side may be silent once the other has sent FIN: the other may be gone for good. */
  readonly halfClosedMs: number;
  readonly ended: Ended;
}

export class Tunnel implements Timed {
  deadlineMs = Infinity;
  deadlinePlace = -1;
  /** What the client's connection pushes into, and what the target's does. */
  readonly client: TunnelEnd;
  readonly upstream: TunnelEnd;
  readonly #up: Flow;
  readonly #down: Flow;
  readonly #options: TunnelOptions;
  #cutReason: string | undefined;
  #isDone = false;

  constructor(options: TunnelOptions) {
    this.#options = options;
    const { isWebSocket, deadlines } = options;
    const closed = () => this.#checkDone();
    this.#up = new Flow(isWebSocket ? MASKED_CLOSE_GOING_AWAY : undefined, closed);
    this.#down = new Flow(isWebSocket ? CLOSE_GOING_AWAY : undefined, closed);
    deadlines.add(this);
    const moved = () => this.#watchHalfClosed();
    const cut = (reason: string) => {
      this.warn();
      this.destroy(reason);
    };
    this.client = new End(this.#up, this.#down, moved, cut);
    this.upstream = new End(this.#down, this.#up, moved, cut);
  }

  /** Starts the flow. `rest` came from the target with its 101. */
  connect(client: RawSide, upstream: RawSide, rest: Uint8Array): void {
    this.#up.connect(client, upstream);
    this.#down.connect(upstream, client);
    if (rest.length > 0) this.#down.push(rest);
    client.resume();
    upstream.resume();
  }

  /** Close 1001 to both sides, as soon as each is between two frames; data ends with it. */
  warn(): void {
    this.#down.sayGoodbye();
    this.#up.sayGoodbye();
  }

  /** Cuts both sides. */
  destroy(reason: string): void {
    if (this.#isDone) return;
    this.#cutReason ??= reason;
    this.#up.destroy();
    this.#down.destroy();
    this.#finish();
  }

  #watchHalfClosed(): void {
    if (!this.#up.hasFin && !this.#down.hasFin) return;
    this.deadlineMs = this.#options.now() + this.#options.halfClosedMs;
  }

  onDeadline(): void {
    this.deadlineMs = Infinity;
    this.destroy("half_closed");
  }

  #checkDone(): void {
    if (this.#up.sourceClosed && this.#down.sourceClosed) this.#finish();
  }

  #finish(): void {
    if (this.#isDone) return;
    this.#isDone = true;
    this.#options.deadlines.remove(this);
    this.#options.ended(this.#cutReason, this.#down.bytes);
  }
}

/** One direction. */
class Flow {
  bytes = 0;
  sourceClosed = false;
  hasFin = false;
  readonly #frames: FrameBoundaries | undefined;
  readonly #goodbye: Uint8Array | undefined;
  readonly #closed: () => void;
  #from: RawSide | undefined;
  #to: RawSide | undefined;
  #wantsGoodbye = false;
  #saidGoodbye = false;

  constructor(goodbye: Uint8Array | undefined, closed: () => void) {
    this.#goodbye = goodbye;
    this.#frames = goodbye === undefined ? undefined : new FrameBoundaries();
    this.#closed = closed;
  }

  connect(from: RawSide, to: RawSide): void {
    this.#from = from;
    this.#to = to;
  }

  push(chunk: Uint8Array): void {
    if (this.#saidGoodbye) return;
    if (!this.#wantsGoodbye) {
      this.#frames?.advance(chunk);
      return this.#write(chunk);
    }
    const end = this.#frames?.toBoundary(chunk) ?? -1;
    if (end < 0) return this.#write(chunk);
    this.#write(chunk.subarray(0, end));
    this.#sendGoodbye();
  }

  #write(chunk: Uint8Array): void {
    this.bytes += chunk.length;
    if (this.#to?.write(chunk) === false) this.#from?.pause();
  }

  sayGoodbye(): void {
    if (this.#goodbye === undefined || this.#wantsGoodbye || this.hasFin) return;
    this.#wantsGoodbye = true;
    if (this.#frames?.atBoundary === true) this.#sendGoodbye();
  }

  #sendGoodbye(): void {
    if (this.#goodbye !== undefined) this.#to?.write(this.#goodbye);
    this.#saidGoodbye = true;
  }

  drained(): void {
    this.#from?.resume();
  }

  fin(): void {
    this.hasFin = true;
    this.#to?.end();
  }

  /** The source is gone altogether: if it never said so, the other side must not wait for it. */
  close(): void {
    this.sourceClosed = true;
    if (!this.hasFin) this.#to?.destroy();
    this.#closed();
  }

  destroy(): void {
    this.#to?.destroy();
  }
}

class End implements TunnelEnd {
  readonly #out: Flow;
  readonly #back: Flow;
  readonly #moved: () => void;
  readonly cutTunnel: (reason: string) => void;

  /** `out` carries what this end sends, `back` what it receives; `moved` hears of each arrival. */
  constructor(out: Flow, back: Flow, moved: () => void, cut: (reason: string) => void) {
    this.#out = out;
    this.#back = back;
    this.#moved = moved;
    this.cutTunnel = cut;
  }

  onTunnelData(chunk: Uint8Array): void {
    this.#out.push(chunk);
    this.#moved();
  }

  onTunnelFin(): void {
    this.#out.fin();
    this.#moved();
  }

  onTunnelDrain(): void {
    this.#back.drained();
  }

  onTunnelClosed(): void {
    this.#out.close();
  }
}
