import { base64Length, encodeBase64 } from "./base64.ts";

const encoder = new TextEncoder();

/** Collects output in one buffer of a fixed first size. */
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

  /** What was collected, in memory of its own. */
  take(): Uint8Array<ArrayBuffer> {
    const length = this.#length;
    this.#length = 0;
    // A short piece is copied, so that it does not keep a whole buffer.
    if (length * 2 < this.#bytes.length) return this.#bytes.slice(0, length);
    const taken = this.#bytes.subarray(0, length);
    this.#bytes = new Uint8Array(this.#bytes.length);
    return taken;
  }

  #reserve(more: number): void {
    if (this.#length + more <= this.#bytes.length) return;
    const larger = new Uint8Array(Math.max(this.#bytes.length * 2, this.#length + more));
    larger.set(this.#bytes.subarray(0, this.#length));
    this.#bytes = larger;
  }
}
