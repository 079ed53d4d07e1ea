/** HTTP/2 clients for the tests of the traffic listener: node:http2, and raw frames. */

import { Buffer } from "node:buffer";
import http2, { type ClientHttp2Session, type ClientHttp2Stream } from "node:http2";
import { connect, type Socket } from "node:net";
import { eventually } from "./wire.ts";

type Fields = Record<string, string | string[]>;

/** One request and what came back for it. */
export class H2Request {
  status = 0;
  /** Name, value, ... as they came, pseudo fields included. */
  fields: string[] = [];
  trailers: string[] = [];
  readonly interim: number[] = [];
  readonly interimFields: string[][] = [];
  body = "";
  bytes = 0;
  ended = false;
  closed = false;
  code = 0;
  readonly stream: ClientHttp2Stream;

  constructor(stream: ClientHttp2Stream) {
    this.stream = stream;
    stream.on("headers", (headers, _flags, raw?: string[]) => {
      this.interim.push(Number(headers[":status"]));
      this.interimFields.push(raw ?? []);
    });
    stream.on("continue", () => this.interim.push(100));
    stream.on("response", (headers, _flags, raw?: string[]) => {
      this.status = Number(headers[":status"]);
      this.fields = raw ?? [];
    });
    stream.on("trailers", (_headers, _flags, raw?: string[]) => (this.trailers = raw ?? []));
    stream.on("data", (chunk: Uint8Array) => {
      this.bytes += chunk.length;
      this.body += Buffer.from(chunk).toString("latin1");
    });
    stream.on("end", () => (this.ended = (stream.rstCode ?? 0) === 0));
    stream.on("error", () => {});
    stream.on("close", () => {
      this.closed = true;
      this.code = stream.rstCode ?? 0;
    });
  }

  values(name: string): string[] {
    return valuesOf(this.fields, name);
  }

  async done(): Promise<this> {
    await eventually(`stream ends (status ${this.status})`, () => this.closed);
    return this;
  }

  async headed(): Promise<this> {
    await eventually("stream is answered", () => this.status > 0);
    return this;
  }

  async until(text: string): Promise<this> {
    await eventually(`stream receives ${text}`, () => this.body.includes(text));
    return this;
  }
}

export function valuesOf(fields: readonly string[], name: string): string[] {
  return fields.flatMap((field, at) =>
    at % 2 === 0 && field === name ? [fields[at + 1] ?? ""] : []
  );
}

export class H2Client {
  goaways: { code: number; last: number }[] = [];
  closed = false;
  readonly session: ClientHttp2Session;

  constructor(session: ClientHttp2Session) {
    this.session = session;
    session.on("error", () => {});
    session.on("goaway", (code: number, last: number) => this.goaways.push({ code, last }));
    session.on("close", () => (this.closed = true));
  }

  static async to(
    port: number,
    options: http2.ClientSessionOptions | http2.SecureClientSessionOptions = {},
    scheme = "http",
  ): Promise<H2Client> {
    const client = new H2Client(http2.connect(`${scheme}://127.0.0.1:${port}`, options));
    let told = false;
    client.session.once("remoteSettings", () => (told = true));
    await eventually("the HTTP/2 settings arrive", () => told || client.closed);
    return client;
  }

  /** Sends a whole request. */
  ask(path: string, fields: Fields = {}, body?: string | Uint8Array): H2Request {
    const request = this.begin(path, fields, body === undefined);
    if (body !== undefined) request.stream.end(body);
    return request;
  }

  /** Begins a request; unless `ends` its body follows. */
  begin(path: string, fields: Fields = {}, ends = false, trailers?: Fields): H2Request {
    const stream = this.session.request(
      { ":path": path, ":method": ends ? "GET" : "POST", ":authority": "a.test", ...fields },
      { endStream: ends, waitForTrailers: trailers !== undefined },
    );
    if (trailers !== undefined) stream.on("wantTrailers", () => stream.sendTrailers(trailers));
    return new H2Request(stream);
  }

  destroy(): void {
    this.session.destroy();
  }
}

// ------------------------------------------------------------------------------------ raw frames

export const PREFACE = Buffer.from("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");

export interface Frame {
  readonly type: number;
  readonly flags: number;
  readonly stream: number;
  readonly payload: Uint8Array;
}

export const DATA = 0;
export const HEADERS = 1;
export const RST_STREAM = 3;
export const SETTINGS = 4;
export const PING = 6;
export const GOAWAY = 7;
export const END_STREAM = 1;
export const END_HEADERS = 4;

export function frame(type: number, flags: number, stream: number, payload: Uint8Array): Buffer {
  const head = Buffer.alloc(9);
  head.writeUIntBE(payload.length, 0, 3);
  head.writeUInt8(type, 3);
  head.writeUInt8(flags, 4);
  head.writeUInt32BE(stream, 5);
  return Buffer.concat([head, payload]);
}

/** Fields as literals without indexing (RFC 7541 section 6.2.2); all lengths below 127. */
export function literals(fields: readonly (readonly [string, string])[]): Buffer {
  const parts: Uint8Array[] = [];
  for (const [name, value] of fields) {
    parts.push(Buffer.from([0, name.length]), Buffer.from(name, "latin1"));
    parts.push(Buffer.from([value.length]), Buffer.from(value, "latin1"));
  }
  return Buffer.concat(parts);
}

/** A client that speaks frames, well-formed or not. */
export class FrameClient {
  readonly frames: Frame[] = [];
  closed = false;
  readonly socket: Socket;
  #rest: Buffer = Buffer.alloc(0);

  constructor(port: number) {
    this.socket = connect({ port, host: "127.0.0.1", noDelay: true });
    this.socket.on("data", (chunk: Uint8Array) => this.#read(chunk));
    this.socket.on("error", () => {});
    this.socket.on("close", () => (this.closed = true));
  }

  #read(chunk: Uint8Array): void {
    this.#rest = Buffer.concat([this.#rest, chunk]);
    while (this.#rest.length >= 9) {
      const length = this.#rest.readUIntBE(0, 3);
      if (this.#rest.length < 9 + length) return;
      this.frames.push({
        type: this.#rest.readUInt8(3),
        flags: this.#rest.readUInt8(4),
        stream: this.#rest.readUInt32BE(5) & 0x7fffffff,
        payload: this.#rest.subarray(9, 9 + length),
      });
      this.#rest = this.#rest.subarray(9 + length);
    }
  }

  send(...parts: Uint8Array[]): this {
    this.socket.write(Buffer.concat(parts));
    return this;
  }

  hello(): this {
    return this.send(PREFACE, frame(SETTINGS, 0, 0, Buffer.alloc(0)));
  }

  ask(stream: number, fields: readonly (readonly [string, string])[], flags = 5): this {
    return this.send(frame(HEADERS, flags, stream, literals(fields)));
  }

  async until(what: string, wanted: (frame: Frame) => boolean): Promise<Frame> {
    return await eventually(
      `frame: ${what}`,
      () => this.frames.find(wanted) as Frame,
    );
  }

  destroy(): void {
    this.socket.destroy();
  }
}

export const GET_FIELDS: readonly (readonly [string, string])[] = [
  [":method", "GET"],
  [":scheme", "http"],
  [":path", "/"],
  [":authority", "a.test"],
];
