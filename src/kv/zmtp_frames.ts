/**
 * Frames of ZMTP 3 (rfc.zeromq.org/spec/23 and /37): cutting a byte stream into frames, and writing
 * them.
 *
 * A frame is a flag byte (1 = more follows, 2 = long, 4 = command), its length in 1 or 8 bytes, and
 * its body.
 */

/** The other side does not keep to the protocol, or to our limits. */
export class ZmtpError extends Error {
  override readonly name = "ZmtpError";
}

export const FLAG_MORE = 1;
const FLAG_LONG = 2;
export const FLAG_COMMAND = 4;

/** A body up to this size is allocated at once; larger ones grow with what really arrives. */
const EAGER_BYTES = 1024 * 1024;

export class FrameCutter {
  readonly #maxFrameBytes: number;
  readonly #onFrame: (flags: number, body: Uint8Array) => void;
  readonly #head = new Uint8Array(9);
  #headLength = 0;
  #flags = 0;
  #body: Uint8Array | undefined;
  #bodyLength = 0;
  #bodyFilled = 0;

  /** `onFrame` gets each body in memory of its own. */
  constructor(
    maxFrameBytes: number,
    onFrame: (flags: number, body: Uint8Array) => void,
  ) {
    this.#maxFrameBytes = maxFrameBytes;
    this.#onFrame = onFrame;
  }

  /** Takes the next bytes of the stream. Throws `ZmtpError`. */
  push(chunk: Uint8Array): void {
    let at = 0;
    while (at < chunk.length) {
      if (this.#body === undefined) {
        const byte = chunk[at] ?? 0;
        at += 1;
        this.#head[this.#headLength++] = byte;
        if (this.#headLength === 1 && (byte & ~(FLAG_MORE | FLAG_LONG | FLAG_COMMAND)) !== 0) {
          throw new ZmtpError(`a frame with reserved flags ${byte}`);
        }
        if (this.#headLength < ((this.#head[0] ?? 0) & FLAG_LONG ? 9 : 2)) continue;
        this.#begin();
        if (this.#bodyLength > 0) continue;
        this.#finish();
        continue;
      }
      const size = Math.min(chunk.length - at, this.#bodyLength - this.#bodyFilled);
      this.#ensure(this.#bodyFilled + size);
      this.#body.set(chunk.subarray(at, at + size), this.#bodyFilled);
      this.#bodyFilled += size;
      at += size;
      if (this.#bodyFilled === this.#bodyLength) this.#finish();
    }
  }

  #begin(): void {
    const view = new DataView(this.#head.buffer);
    this.#flags = view.getUint8(0);
    const isLong = (this.#flags & FLAG_LONG) !== 0;
    const length = isLong ? Number(view.getBigUint64(1)) : view.getUint8(1);
    if (length > this.#maxFrameBytes) {
      throw new ZmtpError(`a frame of ${length} bytes, over the limit of ${this.#maxFrameBytes}`);
    }
    this.#bodyLength = length;
    this.#bodyFilled = 0;
    this.#body = new Uint8Array(Math.min(length, EAGER_BYTES));
  }

  #ensure(size: number): void {
    const body = this.#body;
    if (body === undefined || size <= body.length) return;
    const larger = new Uint8Array(Math.min(this.#bodyLength, Math.max(size, 2 * body.length)));
    larger.set(body.subarray(0, this.#bodyFilled));
    this.#body = larger;
  }

  #finish(): void {
    const body = this.#body ?? EMPTY;
    this.#body = undefined;
    this.#headLength = 0;
    this.#onFrame(this.#flags & ~FLAG_LONG, body);
  }
}

const EMPTY = new Uint8Array(0);

/** One frame as bytes. */
export function writeFrame(flags: number, body: Uint8Array): Uint8Array {
  const isLong = body.length > 255;
  const head = isLong ? 9 : 2;
  const frame = new Uint8Array(head + body.length);
  frame[0] = flags | (isLong ? FLAG_LONG : 0);
  if (isLong) new DataView(frame.buffer).setBigUint64(1, BigInt(body.length));
  else frame[1] = body.length;
  frame.set(body, head);
  return frame;
}

/** A message of several frames as bytes. */
export function writeMessage(frames: readonly Uint8Array[]): Uint8Array {
  const parts = frames.map((frame, i) => writeFrame(i < frames.length - 1 ? FLAG_MORE : 0, frame));
  return join(parts);
}

/** A command: its name, then its body. */
export function writeCommand(name: string, body: Uint8Array): Uint8Array {
  const label = new TextEncoder().encode(name);
  return writeFrame(FLAG_COMMAND, join([Uint8Array.of(label.length), label, body]));
}

/** Splits a command's body into name and rest. Throws `ZmtpError`. */
export function readCommand(frame: Uint8Array): { name: string; body: Uint8Array } {
  const length = frame[0] ?? 0;
  if (length === 0 || frame.length < 1 + length) throw new ZmtpError("a command without a name");
  return {
    name: new TextDecoder().decode(frame.subarray(1, 1 + length)),
    body: frame.subarray(1 + length),
  };
}

/** The properties of a READY command: name (1-byte length) and value (4-byte length) pairs. */
export function writeProperties(properties: Readonly<Record<string, string>>): Uint8Array {
  const encoder = new TextEncoder();
  const parts: Uint8Array[] = [];
  for (const [key, value] of Object.entries(properties)) {
    const name = encoder.encode(key);
    const bytes = encoder.encode(value);
    const size = new Uint8Array(4);
    new DataView(size.buffer).setUint32(0, bytes.length);
    parts.push(Uint8Array.of(name.length), name, size, bytes);
  }
  return join(parts);
}

/** Reads what `writeProperties` writes; names in lower case. Throws `ZmtpError`. */
export function readProperties(body: Uint8Array): Map<string, string> {
  const decoder = new TextDecoder();
  const view = new DataView(body.buffer, body.byteOffset, body.byteLength);
  const properties = new Map<string, string>();
  let at = 0;
  while (at < body.length) {
    const nameEnd = at + 1 + view.getUint8(at);
    if (nameEnd + 4 > body.length) throw new ZmtpError("a property is cut short");
    const valueEnd = nameEnd + 4 + view.getUint32(nameEnd);
    if (valueEnd > body.length) throw new ZmtpError("a property is cut short");
    const name = decoder.decode(body.subarray(at + 1, nameEnd)).toLowerCase();
    properties.set(name, decoder.decode(body.subarray(nameEnd + 4, valueEnd)));
    at = valueEnd;
  }
  return properties;
}

function join(parts: readonly Uint8Array[]): Uint8Array {
  let length = 0;
  for (const part of parts) length += part.length;
  const whole = new Uint8Array(length);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

// ---------------------------------------------------------------------------------------- greeting

export const GREETING_BYTES = 64;

/** Our greeting: ZMTP 3.1, mechanism NULL. */
export function writeGreeting(): Uint8Array {
  const greeting = new Uint8Array(GREETING_BYTES);
  greeting[0] = 0xff;
  greeting[9] = 0x7f;
  greeting[10] = 3;
  greeting[11] = 1;
  greeting.set(new TextEncoder().encode("NULL"), 12);
  return greeting;
}

/** The other side's minor version. Throws `ZmtpError` for what is not ZMTP 3 with mechanism NULL. */
export function readGreeting(greeting: Uint8Array): { minor: number } {
  if (greeting[0] !== 0xff || greeting[9] !== 0x7f) throw new ZmtpError("not a ZMTP peer");
  const major = greeting[10] ?? 0;
  if (major < 3) throw new ZmtpError(`ZMTP version ${major} is too old, 3 is needed`);
  let mechanism = "";
  for (const byte of greeting.subarray(12, 32)) {
    if (byte === 0) break;
    mechanism += String.fromCharCode(byte);
  }
  if (mechanism !== "NULL") throw new ZmtpError(`mechanism ${mechanism}; only NULL is supported`);
  return { minor: greeting[11] ?? 0 };
}
