/**
 * Brings one artifact to disk and knows that it is the right one.
 *
 * Bytes are hashed while they are written. A transfer that breaks goes on where it stopped (Range),
 * also after a restart: what was left is kept as `.<sha>.part` beside the installs. Each running
 * download works on a file of its own, so two managers that share the folder never mix their bytes;
 * and what was continued is hashed again as a whole before it counts.
 */

import { messageOf } from "../errors.ts";
import type { Clock, Files, FileWriter, Http, Random, Sha256 } from "../runtime/runtime.ts";
import { FileMissing } from "../runtime/runtime.ts";
import { fileUrlPath, printableUrl } from "./address.ts";
import { onDisk } from "./archive_entry.ts";
import { abortReason, RolloutFailure, throwIfAborted } from "./failure.ts";
import { dismiss, RedirectRefused, secureGet } from "./secure_fetch.ts";
import { sleep } from "./wait.ts";

export interface DownloadOptions {
  readonly runtime: {
    readonly files: Files;
    readonly http: Http;
    readonly clock: Clock;
    readonly random: Random;
  };
  readonly url: string;
  /** Lower-case hex. */
  readonly sha256: string;
  /** Exists; the file that is brought, and what is left of a broken try, lie here. */
  readonly folder: string;
  readonly maxDownloadBytes: number;
  readonly downloadTimeoutMs: number;
  readonly downloadStallMs: number;
  readonly allowInsecure: boolean;
  readonly signal?: AbortSignal;
  /** Bytes so far, and in all if the server said so. */
  readonly onProgress?: (bytes: number, total: number | undefined) => void;
}

/** Tries in a row that bring no byte before the failure is handed up (where it is backed off). */
const MAX_IDLE_TRIES = 3;
const FIRST_RETRY_MS = 200;

/**
 * Returns the path of a synced file with exactly this hash; the caller removes it. Throws
 * `RolloutFailure` (`transient`: network, disk; `download`: refused or too large; `hash`: other
 * bytes), or the signal's reason. Whatever is thrown, no file that could pass as complete is left.
 */
export async function download(options: DownloadOptions): Promise<string> {
  const { clock } = options.runtime;
  const deadline = new AbortController();
  const cancelDeadline = clock.after(options.downloadTimeoutMs, () => {
    deadline.abort(
      new RolloutFailure("transient", `not downloaded within ${options.downloadTimeoutMs} ms`),
    );
  });
  const stop = options.signal === undefined
    ? deadline.signal
    : AbortSignal.any([options.signal, deadline.signal]);
  try {
    return await new Download(options, stop).run();
  } finally {
    cancelDeadline();
  }
}

class Download {
  readonly #options: DownloadOptions;
  readonly #stop: AbortSignal;
  /** The address as it may be shown. */
  readonly #name: string;
  readonly #kept: string;
  readonly #path: string;
  #hash: Sha256;
  #bytes = 0;
  /** Some of the bytes came by an earlier connection or an earlier run. */
  #continued = false;
  /** The end of the last body was marked by length or chunks, not only by the end of the line. */
  #endKnown = true;
  /** Sent with Range, so that a changed artifact starts over (RFC 9110 13.1.5). */
  #validator: string | undefined;

  constructor(options: DownloadOptions, stop: AbortSignal) {
    this.#options = options;
    this.#stop = stop;
    const { folder, sha256, runtime } = options;
    this.#kept = `${folder}/.${sha256}.part`;
    this.#path = `${folder}/.${sha256}.${runtime.random.uuid()}.part`;
    this.#hash = runtime.files.hasher();
    this.#name = printableUrl(options.url);
  }

  async run(): Promise<string> {
    try {
      await onDisk(this.#claim());
      let mismatch = await this.#whole();
      if (mismatch !== undefined && this.#continued) {
        await this.#startOver();
        mismatch = await this.#whole();
      }
      if (mismatch !== undefined) throw mismatch;
      return this.#path;
    } catch (error) {
      const failure = this.#stop.aborted ? abortReason(this.#stop) : error;
      await this.#leave(failure);
      throw failure;
    }
  }

  /** Takes over what an earlier try left; the rename decides between two that want it. */
  async #claim(): Promise<void> {
    const { files } = this.#options.runtime;
    const left = await this.#abandoned() ?? this.#kept;
    try {
      await files.rename(left, this.#path);
    } catch (error) {
      if (error instanceof FileMissing) return;
      throw error;
    }
    const reader = (await files.stream(this.#path)).getReader();
    try {
      while (!this.#stop.aborted) {
        const { done, value } = await reader.read();
        if (done) break;
        this.#hash.update(value);
        this.#bytes += value.length;
      }
    } finally {
      await reader.cancel().catch(() => {});
    }
    throwIfAborted(this.#stop);
    this.#continued = this.#bytes > 0;
  }

  /** The file of a download that died: a living one writes, or gives up, within `downloadStallMs`. */
  async #abandoned(): Promise<string | undefined> {
    const { folder, sha256, runtime, downloadStallMs } = this.#options;
    for (const name of await runtime.files.list(folder)) {
      if (!name.startsWith(`.${sha256}.`) || !name.endsWith(".part")) continue;
      const info = await runtime.files.info(`${folder}/${name}`);
      if (info !== undefined && info.mtimeMs + 2 * downloadStallMs < runtime.clock.now()) {
        return `${folder}/${name}`;
      }
    }
    return undefined;
  }

  /** All bytes, over as many connections as it takes; then the verdict: undefined = right. */
  async #whole(): Promise<RolloutFailure | undefined> {
    const { clock } = this.#options.runtime;
    for (let idle = 0;;) {
      const before = this.#bytes;
      try {
        await this.#connection();
        break;
      } catch (error) {
        throwIfAborted(this.#stop);
        if (!(error instanceof Broken)) throw error;
        idle = this.#bytes > before ? 0 : idle + 1;
        if (idle >= MAX_IDLE_TRIES) throw new RolloutFailure("transient", error.message);
        await sleep(clock, FIRST_RETRY_MS * 2 ** idle, this.#stop);
      }
    }
    return await this.#verdict();
  }

  async #verdict(): Promise<RolloutFailure | undefined> {
    const { files } = this.#options.runtime;
    const { sha256 } = this.#options;
    let actual = this.#hash.hex();
    if (actual === sha256 && this.#continued) actual = await onDisk(files.sha256(this.#path));
    if (actual === sha256) return undefined;
    return new RolloutFailure(
      // A body that just stopped may have been cut: then it is not the artifact that is wrong.
      this.#endKnown ? "hash" : "transient",
      `${this.#name}: sha256 is ${actual}, listed is ${sha256} (${this.#bytes} bytes)`,
    );
  }

  async #startOver(): Promise<void> {
    this.#hash = this.#options.runtime.files.hasher();
    this.#bytes = 0;
    this.#continued = false;
    this.#validator = undefined;
    await onDisk(this.#options.runtime.files.remove(this.#path));
  }

  /** One connection (or one reading of a local file), appended to what is there. */
  async #connection(): Promise<void> {
    const stall = new AbortController();
    const signal = AbortSignal.any([this.#stop, stall.signal]);
    const { clock } = this.#options.runtime;
    const { downloadStallMs } = this.#options;
    let cancelStall = (): void => {};
    const alive = (): void => {
      cancelStall();
      cancelStall = clock.after(downloadStallMs, () => {
        stall.abort(new Broken(`no byte for ${downloadStallMs} ms`));
      });
    };
    alive();
    try {
      const body = await this.#open(signal);
      if (body !== undefined) await this.#append(body, signal, alive);
    } catch (error) {
      if (stall.signal.aborted) throw stall.signal.reason;
      throw error;
    } finally {
      cancelStall();
    }
  }

  /** The body from where we are; undefined when there is nothing left to bring. */
  async #open(signal: AbortSignal): Promise<Body | undefined> {
    const { url } = this.#options;
    if (url.startsWith("file:")) return await this.#openFile(fileUrlPath(url));
    const response = await this.#get(signal);
    const { status, headers } = response;
    if (status === 206 && this.#bytes > 0) {
      const range = /^bytes (\d+)-\d+\/(\d+|\*)$/.exec(headers.get("content-range") ?? "");
      if (Number(range?.[1]) === this.#bytes) {
        this.#continued = true;
        return this.#body(response, Number(range?.[2]));
      }
    }
    if (status === 200) {
      if (this.#bytes > 0) await this.#startOver();
      return this.#body(response, contentLength(headers));
    }
    await dismiss(response);
    if (status === 206 || status === 416) {
      // 416 when there is no more: it may be whole already, and the hash tells; else start over.
      if (status === 416 && endsAt(headers) === this.#bytes) return undefined;
      await this.#startOver();
      throw new Broken(`${this.#name} answered ${status} to a range`);
    }
    // What is not there may be published in a minute, so even 404 does not blame the build.
    const retryable = status >= 500 || status === 408 || status === 425 || status === 429;
    if (retryable) throw new Broken(`${this.#name} answered ${status}`);
    throw new RolloutFailure("transient", `${this.#name} answered ${status}`);
  }

  async #get(signal: AbortSignal): Promise<Response> {
    const { runtime, url, allowInsecure } = this.#options;
    const headers: Record<string, string> = {
      // The hash is of the file as it is stored: no coding may be put on the way.
      "accept-encoding": "identity",
    };
    if (this.#bytes > 0) {
      headers.range = `bytes=${this.#bytes}-`;
      if (this.#validator !== undefined) headers["if-range"] = this.#validator;
    }
    try {
      return await secureGet(runtime.http, url, { allowInsecure, headers, signal });
    } catch (error) {
      if (!(error instanceof RedirectRefused)) {
        throw new Broken(`${this.#name}: ${messageOf(error)}`);
      }
      throw new RolloutFailure("download", error.message, { cause: error });
    }
  }

  #body(response: Response, total: number | undefined): Body {
    const { headers } = response;
    const etag = headers.get("etag");
    // A weak tag is no promise about bytes (RFC 9110 13.1.5).
    this.#validator = etag !== null && !etag.startsWith("W/") ? etag : undefined;
    this.#endKnown = contentLength(headers) !== undefined || headers.has("transfer-encoding");
    const stream = response.body ?? new ReadableStream({ start: (body) => body.close() });
    return { stream, total: Number.isSafeInteger(total) ? total : undefined };
  }

  async #openFile(path: string): Promise<Body> {
    const { files } = this.#options.runtime;
    try {
      const info = await files.info(path);
      if (info === undefined) throw new FileMissing(`${path}: no such file`);
      return { stream: await files.stream(path, this.#bytes), total: info.size };
    } catch (error) {
      throw new RolloutFailure("transient", messageOf(error), { cause: error });
    }
  }

  async #append(body: Body, signal: AbortSignal, alive: () => void): Promise<void> {
    const { runtime, onProgress } = this.#options;
    const { total } = body;
    const reader = body.stream.getReader();
    let writer: FileWriter | undefined;
    const onAbort = (): void => void reader.cancel(signal.reason).catch(() => {});
    signal.addEventListener("abort", onAbort);
    try {
      this.#assertSize(total ?? this.#bytes);
      writer = await onDisk(
        runtime.files.openWrite(this.#path, { append: this.#bytes > 0, mode: 0o600 }),
      );
      while (true) {
        const { done, value } = await readOrBroken(reader);
        throwIfAborted(signal);
        if (done) break;
        alive();
        this.#assertSize(this.#bytes + value.length);
        await onDisk(writer.write(value));
        this.#hash.update(value);
        this.#bytes += value.length;
        onProgress?.(this.#bytes, total);
      }
      if (total !== undefined && this.#bytes < total) {
        throw new Broken(`ended after ${this.#bytes} of ${total} bytes`);
      }
      await onDisk(writer.sync());
    } catch (error) {
      await reader.cancel(error).catch(() => {});
      throw error;
    } finally {
      signal.removeEventListener("abort", onAbort);
      await writer?.close();
    }
  }

  #assertSize(bytes: number): void {
    const { maxDownloadBytes } = this.#options;
    if (bytes <= maxDownloadBytes) return;
    throw new RolloutFailure(
      "download",
      `${this.#name} is larger than the ${maxDownloadBytes} bytes that are taken`,
    );
  }

  /** Keeps what a later try can go on from; never for a disk that is full or bytes that are wrong. */
  async #leave(error: unknown): Promise<void> {
    const { files } = this.#options.runtime;
    const transient = error instanceof RolloutFailure ? error.class === "transient" : true;
    const diskFailed = error instanceof RolloutFailure && error.message.startsWith("disk:");
    try {
      if (transient && !diskFailed && this.#endKnown && this.#bytes > 0) {
        await files.rename(this.#path, this.#kept);
      } else {
        await files.remove(this.#path);
      }
    } catch {
      // Nothing there, or the disk refuses: a leftover never counts, and old ones are swept.
    }
  }
}

interface Body {
  readonly stream: ReadableStream<Uint8Array>;
  /** Size of the whole artifact, if known. */
  readonly total: number | undefined;
}

/** The connection or the server failed, not the artifact: worth another try at once. */
class Broken extends Error {
  override readonly name = "Broken";
}

async function readOrBroken(
  reader: ReadableStreamDefaultReader<Uint8Array>,
): Promise<ReadableStreamReadResult<Uint8Array>> {
  try {
    return await reader.read();
  } catch (error) {
    throw new Broken(`the transfer broke: ${messageOf(error)}`);
  }
}

function contentLength(headers: Headers): number | undefined {
  const text = headers.get("content-length");
  return text !== null && /^\d{1,15}$/.test(text) ? Number(text) : undefined;
}

/** The size that a 416 tells (`bytes *\/n`). */
function endsAt(headers: Headers): number | undefined {
  const size = /^bytes \*\/(\d{1,15})$/.exec(headers.get("content-range") ?? "")?.[1];
  return size === undefined ? undefined : Number(size);
}
