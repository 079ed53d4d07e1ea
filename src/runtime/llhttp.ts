/**
 * llhttp, the request parser of Node itself, as the WebAssembly module that undici ships.
 *
 * One message at a time: `execute` stops after a message's last byte, so that whoever owns the
 * connection decides what the following bytes are. All parsers share one instance and one input
 * buffer: a handler must not call `execute` of any parser.
 */

import { createRequire } from "node:module";
import type { MessageHandlers, MessageParser } from "./runtime.ts";
import { latin1 } from "./latin1.ts";

/** Results of `llhttp_execute` that are no errors (llhttp's constants.ts). */
const OK = 0;
const PAUSED = 21;
const PAUSED_UPGRADE = 22;

interface Exports {
  memory: WebAssembly.Memory;
  _initialize?(): void;
  malloc(size: number): number;
  free(at: number): void;
  llhttp_alloc(type: number): number;
  llhttp_free(parser: number): void;
  llhttp_reset(parser: number): void;
  llhttp_execute(parser: number, at: number, length: number): number;
  llhttp_finish(parser: number): number;
  llhttp_resume(parser: number): void;
  llhttp_resume_after_upgrade(parser: number): void;
  llhttp_get_error_pos(parser: number): number;
  llhttp_get_error_reason(parser: number): number;
  llhttp_get_http_major(parser: number): number;
  llhttp_get_http_minor(parser: number): number;
}

const EMPTY = new Uint8Array(0);
const REQUEST = 1;
const RESPONSE = 2;

let instance: Exports | undefined;
let current: LlhttpParser | undefined;
let memory: Uint8Array = new Uint8Array(0);
let input = 0;
let inputSize = 0;

function load(): Exports {
  if (instance !== undefined) return instance;
  const require = createRequire(import.meta.url);
  const bytes = require("undici/lib/llhttp/llhttp-wasm.js") as Uint8Array<ArrayBuffer>;
  const env = {
    wasm_on_message_begin: () => 0,
    wasm_on_url: (_: number, at: number, length: number) => current?.onUrl(at, length) ?? 0,
    wasm_on_status: (_: number, at: number, length: number) => current?.onReason(at, length) ?? 0,
    wasm_on_header_field: (_: number, at: number, length: number) =>
      current?.onName(at, length) ?? 0,
    wasm_on_header_value: (_: number, at: number, length: number) =>
      current?.onValue(at, length) ?? 0,
    wasm_on_headers_complete: (_: number, status: number, _up: number, keep: number) =>
      current?.onHead(status, keep === 1) ?? 0,
    wasm_on_body: (_: number, at: number, length: number) => current?.onBody(at, length) ?? 0,
    wasm_on_message_complete: () => current?.onEnd() ?? 0,
  };
  const made = new WebAssembly.Instance(new WebAssembly.Module(bytes), { env });
  instance = made.exports as unknown as Exports;
  instance._initialize?.();
  return instance;
}

/** Makes a parser for requests, or for answers (then `withoutBody` says so for HEAD). */
export function createMessageParser(
  kind: "request" | "response",
  handlers: MessageHandlers,
): MessageParser {
  return new LlhttpParser(load(), kind === "request" ? REQUEST : RESPONSE, handlers);
}

function span(at: number, length: number): string {
  return latin1(memory, at, at + length);
}

class LlhttpParser implements MessageParser {
  readonly #wasm: Exports;
  readonly #handlers: MessageHandlers;
  #parser: number;
  #target = "";
  #reason = "";
  #lines = "";
  #name = "";
  #value = "";
  #isInValue = false;
  #hasHead = false;
  #chunk: Uint8Array = EMPTY;
  #start = 0;
  #isComplete = false;
  error: string | undefined;
  withoutBody = false;

  constructor(wasm: Exports, type: number, handlers: MessageHandlers) {
    this.#wasm = wasm;
    this.#handlers = handlers;
    this.#parser = wasm.llhttp_alloc(type);
  }

  get complete(): boolean {
    return this.#isComplete;
  }

  get targetLength(): number {
    return this.#target.length;
  }

  reset(): void {
    this.#wasm.llhttp_reset(this.#parser);
    this.#target =
      this.#reason =
      this.#lines =
      this.#name =
      this.#value =
        "";
    this.#isInValue =
      this.#hasHead =
      this.#isComplete =
      this.withoutBody =
        false;
    this.error = undefined;
  }

  execute(chunk: Uint8Array, start: number): number {
    const wasm = this.#wasm;
    const length = chunk.length - start;
    if (length > inputSize) {
      if (input !== 0) wasm.free(input);
      inputSize = Math.ceil(length / 16384) * 16384;
      input = wasm.malloc(inputSize);
    }
    if (memory.buffer !== wasm.memory.buffer) memory = new Uint8Array(wasm.memory.buffer);
    memory.set(start === 0 ? chunk : chunk.subarray(start), input);
    this.#chunk = chunk;
    this.#start = start - input;
    current = this;
    let result: number;
    try {
      result = wasm.llhttp_execute(this.#parser, input, length);
    } finally {
      current = undefined;
      this.#chunk = EMPTY;
    }
    if (result === OK) return chunk.length;
    const stop = wasm.llhttp_get_error_pos(this.#parser) - input + start;
    if (result === PAUSED || result === PAUSED_UPGRADE) {
      if (this.#isComplete) return stop;
    }
    this.error ??= this.#errorReason();
    return stop;
  }

  finish(): boolean {
    current = this;
    try {
      const result = this.#wasm.llhttp_finish(this.#parser);
      return result === OK || this.#isComplete;
    } finally {
      current = undefined;
    }
  }

  free(): void {
    if (this.#parser === 0) return;
    this.#wasm.llhttp_free(this.#parser);
    this.#parser = 0;
  }

  onUrl(at: number, length: number): number {
    this.#target += span(at, length);
    return 0;
  }

  onReason(at: number, length: number): number {
    this.#reason += span(at, length);
    return 0;
  }

  onName(at: number, length: number): number {
    if (this.#isInValue) this.#commitLine();
    this.#name += span(at, length);
    return 0;
  }

  onValue(at: number, length: number): number {
    this.#isInValue = true;
    this.#value += span(at, length);
    return 0;
  }

  #commitLine(): void {
    if (this.#name === "") return;
    this.#lines += `${this.#name}: ${this.#value.replace(/[ \t]+$/, "")}\r\n`;
    this.#name = this.#value = "";
    this.#isInValue = false;
  }

  onHead(status: number, keepAlive: boolean): number {
    this.#commitLine();
    this.#hasHead = true;
    const lines = this.#lines;
    this.#lines = "";
    const version = this.#wasm.llhttp_get_http_major(this.#parser) * 10 +
      this.#wasm.llhttp_get_http_minor(this.#parser);
    this.#handlers.head({
      target: this.#target,
      status,
      reason: this.#reason,
      lines,
      version,
      keepAlive,
    });
    return this.withoutBody ? 1 : 0;
  }

  onBody(at: number, length: number): number {
    const from = at + this.#start;
    this.#handlers.body(this.#chunk.subarray(from, from + length));
    return 0;
  }

  onEnd(): number {
    this.#commitLine();
    const trailers = this.#hasHead ? this.#lines : "";
    this.#lines = "";
    this.#isComplete = true;
    this.#handlers.end(trailers);
    return PAUSED;
  }

  #errorReason(): string {
    const at = this.#wasm.llhttp_get_error_reason(this.#parser);
    if (at === 0) return "malformed message";
    let end = at;
    while (end < memory.length && memory[end] !== 0) end += 1;
    return span(at, end - at);
  }
}
