import { base64Length, encodeBase64 } from "./base64.ts";

const encoder = new TextEncoder();

/** Collects output in one buffer of a fixed first size, which is handed out and never used again. */
export class SliceBuffer {
  #bytes: Uint8Array<ArrayBuffer>;
  #length = 0;

  constructor(size: number) {
    this.#bytes = new Uint8Array(size);
  }

  get length(): number {
    return this.#length;
  }

  text(text: string): void {
    this.#reserve(text.length * 3);
    this.#length += encoder.encodeInto(text, this.#bytes.subarray(this.#length)).written;
  }

  bytes(bytes: Uint8Array): void {
    this.#reserve(bytes.length);
    this.#bytes.set(bytes, this.#length);
    this.#length += bytes.length;
  }

  base64(bytes: Uint8Array): void {
    this.#reserve(base64Length(bytes.length));
    this.#length = encodeBase64(bytes, this.#bytes, this.#length);
  }

  /** What was collected; the buffer starts anew with fresh memory. */
  take(): Uint8Array<ArrayBuffer> {
    const taken = this.#bytes.subarray(0, this.#length);
    this.#bytes = new Uint8Array(this.#bytes.length);
    this.#length = 0;
    return taken;
  }

  #reserve(more: number): void {
    if (this.#length + more <= this.#bytes.length) return;
    const larger = new Uint8Array(Math.max(this.#bytes.length * 2, this.#length + more));
    larger.set(this.#bytes.subarray(0, this.#length));
    this.#bytes = larger;
  }
}
