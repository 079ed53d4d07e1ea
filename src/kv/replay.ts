/**
 * Asking a worker's replay ring (a ROUTER socket) for past batches.
 *
 * Each request has a connection of its own, so that answers to an earlier one cannot be mistaken for
 * it. The answer is one message for each batch, `[seq, payload]` or `[topic, seq, payload]` after an
 * empty delimiter, and a last one with an empty payload. The socket is read as fast as it delivers:
 * a ROUTER throws away what its peer is too slow for.
 */

import { messageOf } from "../errors.ts";
import type { ByteSocket, Clock, Net } from "../runtime/runtime.ts";
import type { ReplayEnd } from "./lane_types.ts";
import { ZmtpConnection, type ZmtpLimits } from "./zmtp.ts";
import { parseZmqEndpoint } from "./zmq_endpoint.ts";

export interface ReplayLimits {
  readonly connectTimeoutMs: number;
  /** Longest wait for the next message of an answer. */
  readonly idleTimeoutMs: number;
  /** Longest time for a whole answer. */
  readonly totalTimeoutMs: number;
}

const REPLAY_LIMITS: ReplayLimits = {
  connectTimeoutMs: 5_000,
  idleTimeoutMs: 5_000,
  totalTimeoutMs: 120_000,
};

export interface ReplayOptions {
  readonly net: Net;
  readonly clock: Clock;
  readonly endpoint: string;
  readonly limits?: Partial<ReplayLimits>;
  readonly zmtp?: Partial<ZmtpLimits>;
}

/** Asks for all batches from `from` on. `take` returns false when no more is wanted. Never rejects. */
export async function requestReplay(
  options: ReplayOptions,
  from: bigint,
  take: (seq: bigint, payload: Uint8Array) => boolean,
  stop: AbortSignal,
): Promise<ReplayEnd> {
  const limits = { ...REPLAY_LIMITS, ...options.limits };
  let socket: ByteSocket;
  try {
    const { address } = parseZmqEndpoint(options.endpoint);
    socket = await options.net.connect(address, { timeoutMs: limits.connectTimeoutMs });
  } catch (error) {
    return { kind: "failed", message: messageOf(error) };
  }
  return await new Promise<ReplayEnd>((resolve) => {
    let end: ReplayEnd | undefined;
    let cancelIdle = (): void => {};
    const finish = (result: ReplayEnd): void => {
      if (end !== undefined) return;
      end = result;
      cancelIdle();
      cancelTotal();
      stop.removeEventListener("abort", aborted);
      connection.close();
      resolve(result);
    };
    const aborted = (): void => finish({ kind: "stopped" });
    const watch = (): void => {
      cancelIdle();
      cancelIdle = options.clock.after(limits.idleTimeoutMs, () => {
        finish({ kind: "timeout", message: `no answer for ${limits.idleTimeoutMs} ms` });
      });
    };
    const connection = new ZmtpConnection(socket, {
      clock: options.clock,
      type: "DEALER",
      ...(options.zmtp === undefined ? {} : { limits: options.zmtp }),
    }, {
      ready: () => {
        connection.send([EMPTY, writeSeq(from)]);
        watch();
      },
      message: (frames) => {
        if (end !== undefined) return;
        const answer = readAnswer(frames);
        if (typeof answer === "string") finish({ kind: "failed", message: answer });
        else if (answer.payload.length === 0) finish({ kind: "complete" });
        else if (!take(answer.seq, answer.payload)) finish({ kind: "stopped" });
        else watch();
      },
      closed: (error) => {
        finish({ kind: "failed", message: error?.message ?? "the connection ended" });
      },
    });
    const cancelTotal = options.clock.after(limits.totalTimeoutMs, () => {
      finish({ kind: "timeout", message: `not complete after ${limits.totalTimeoutMs} ms` });
    });
    watch();
    if (stop.aborted) aborted();
    else stop.addEventListener("abort", aborted);
  });
}

/** The parts of an answer's message, or what is wrong with it. */
function readAnswer(
  frames: readonly Uint8Array[],
): { seq: bigint; payload: Uint8Array } | string {
  // With the delimiter it is 3 or 4 frames; without it 2, or 3 that begin with a topic.
  const rest = frames.length > 2 && frames[0]?.length === 0 ? frames.slice(1) : frames;
  if (rest.length !== 2 && rest.length !== 3) return `an answer of ${frames.length} frames`;
  const payload = rest[rest.length - 1];
  const seq = rest[rest.length - 2];
  if (payload === undefined || seq?.length !== 8) {
    return `an answer with a sequence of ${seq?.length ?? 0} bytes`;
  }
  return { seq: readSeq(seq), payload };
}

/** A sequence number as it is on the wire: 8 bytes, big-endian. */
export function writeSeq(seq: bigint): Uint8Array {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigUint64(0, seq);
  return bytes;
}

/** The bytes must be 8. */
export function readSeq(bytes: Uint8Array): bigint {
  return new DataView(bytes.buffer, bytes.byteOffset, 8).getBigUint64(0);
}

const EMPTY = new Uint8Array(0);
