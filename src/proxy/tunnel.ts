/**
 * An upgraded connection: bytes both ways, half-close kept, each side paused while the other is full.
 *
 * The only bytes of our own are the two Close frames of `warn`, each between two frames.
 */

import type { RawSide, TunnelEnd } from "./client_side.ts";
import { CLOSE_GOING_AWAY, FrameBoundaries, MASKED_CLOSE_GOING_AWAY } from "./websocket_frames.ts";

/** Called once, when both sides are closed; `cutReason` is set when we ended it. */
type Ended = (cutReason: string | undefined, bytesToClient: number) => void;

export class Tunnel {
  /** What the client's connection pushes into, and what the target's does. */
  readonly client: TunnelEnd;
  readonly upstream: TunnelEnd;
  readonly #up: Flow;
  readonly #down: Flow;
  readonly #ended: Ended;
  #cutReason: string | undefined;
  #isDone = false;

  constructor(isWebSocket: boolean, ended: Ended) {
    this.#ended = ended;
    const closed = () => this.#checkDone();
    this.#up = new Flow(isWebSocket ? MASKED_CLOSE_GOING_AWAY : undefined, closed);
    this.#down = new Flow(isWebSocket ? CLOSE_GOING_AWAY : undefined, closed);
    this.client = new End(this.#up, this.#down);
    this.upstream = new End(this.#down, this.#up);
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

  #checkDone(): void {
    if (this.#up.sourceClosed && this.#down.sourceClosed) this.#finish();
  }

  #finish(): void {
    if (this.#isDone) return;
    this.#isDone = true;
    this.#ended(this.#cutReason, this.#down.bytes);
  }
}

/** One direction. */
class Flow {
  bytes = 0;
  sourceClosed = false;
  readonly #frames: FrameBoundaries | undefined;
  readonly #goodbye: Uint8Array | undefined;
  readonly #closed: () => void;
  #from: RawSide | undefined;
  #to: RawSide | undefined;
  #wantsGoodbye = false;
  #saidGoodbye = false;
  #hasFin = false;

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
    if (this.#goodbye === undefined || this.#wantsGoodbye || this.#hasFin) return;
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
    this.#hasFin = true;
    this.#to?.end();
  }

  /** The source is gone altogether: if it never said so, the other side must not wait for it. */
  close(): void {
    this.sourceClosed = true;
    if (!this.#hasFin) this.#to?.destroy();
    this.#closed();
  }

  destroy(): void {
    this.#to?.destroy();
  }
}

class End implements TunnelEnd {
  readonly #out: Flow;
  readonly #back: Flow;

  /** `out` carries what this end sends, `back` what it receives. */
  constructor(out: Flow, back: Flow) {
    this.#out = out;
    this.#back = back;
  }
  onTunnelData(chunk: Uint8Array): void {
    this.#out.push(chunk);
  }
  onTunnelFin(): void {
    this.#out.fin();
  }
  onTunnelDrain(): void {
    this.#back.drained();
  }
  onTunnelClosed(): void {
    this.#out.close();
  }
}
