/**
 * The traffic listener's certificate: read from files, and read again whenever they change.
 *
 * A pair that is not one (half of it is written, the key belongs to another certificate) changes
 * nothing: the last good one goes on, and log, condition and metric say so until it is put right.
 */

import { messageOf } from "../errors.ts";
import type { Conditions } from "../lifecycle/conditions.ts";
import type { Log } from "../observe/log.ts";
import type { Metrics } from "../observe/metrics.ts";
import type { Runtime } from "../runtime/runtime.ts";
import type { CertificateFacts, TlsPair } from "../runtime/tls_contract.ts";

/** After a change the other file may still be about to change. */
const SETTLE_MS = 200;
/** So much later a pair that does not fit is looked at once more before it is called broken. */
const SECOND_LOOK_MS = 1500;
const CONDITION = "tls certificate";

export interface TlsFilesOptions {
  readonly runtime: Pick<Runtime, "files" | "tls" | "clock">;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly conditions: Pick<Conditions, "set">;
  readonly cert: string;
  readonly key: string;
}

export class TlsFiles {
  readonly #options: TlsFilesOptions;
  #pair: TlsPair;
  #facts: CertificateFacts;
  #isRefused = false;
  #changed: (pair: TlsPair) => void = () => {};
  readonly #unwatch: (() => void)[] = [];
  #cancel: (() => void) | undefined;

  private constructor(options: TlsFilesOptions, pair: TlsPair, facts: CertificateFacts) {
    this.#options = options;
    this.#pair = pair;
    this.#facts = facts;
    const { metrics } = options;
    metrics.gauge(
      "baton_tls_not_after_seconds",
      "When the certificate in use ends, in seconds since 1970.",
    ).collect((gauge) => gauge.set(this.#facts.notAfter / 1000));
    metrics.gauge(
      "baton_tls_refused",
      "1 while the certificate files hold a pair that is refused, and an older one is in use.",
    ).collect((gauge) => gauge.set(this.#isRefused ? 1 : 0));
  }

  /** Reads the pair. Throws an Error that names the files if there is none, or if it is broken. */
  static async open(options: TlsFilesOptions): Promise<TlsFiles> {
    try {
      const pair = await readPair(options);
      const facts = options.runtime.tls.check(pair);
      const files = new TlsFiles(options, pair, facts);
      files.#tell();
      return files;
    } catch (error) {
      throw new Error(`listen.tls: ${options.cert}, ${options.key}: ${messageOf(error)}`);
    }
  }

  get pair(): TlsPair {
    return this.#pair;
  }

  /** Calls `changed` with each new good pair from now on. */
  watch(changed: (pair: TlsPair) => void): void {
    const { files } = this.#options.runtime;
    this.#changed = changed;
    for (const path of [this.#options.cert, this.#options.key]) {
      this.#unwatch.push(files.watch(path, () => this.#lookIn(SETTLE_MS, true)));
    }
  }

  close(): void {
    for (const unwatch of this.#unwatch.splice(0)) unwatch();
    this.#cancel?.();
  }

  #lookIn(delayMs: number, mayLookAgain: boolean): void {
    this.#cancel?.();
    this.#cancel = this.#options.runtime.clock.after(delayMs, () => {
      this.#cancel = undefined;
      void this.#look(mayLookAgain);
    });
  }

  async #look(mayLookAgain: boolean): Promise<void> {
    const { runtime, log, conditions, cert, key } = this.#options;
    try {
      const pair = await readPair(this.#options);
      const isKnown = pair.cert === this.#pair.cert && pair.key === this.#pair.key;
      if (isKnown && !this.#isRefused) return;
      const facts = runtime.tls.check(pair);
      this.#changed(pair);
      this.#pair = pair;
      this.#facts = facts;
      this.#isRefused = false;
      this.#tell();
    } catch (error) {
      if (mayLookAgain) return this.#lookIn(SECOND_LOOK_MS, false);
      this.#isRefused = true;
      log.error("tls_certificate_refused", { cert, key, error: messageOf(error) });
      conditions.set(CONDITION, true, `the files are refused, an older one is in use: ${error}`);
    }
  }

  #tell(): void {
    const { log, conditions } = this.#options;
    const { subject, fingerprint, notAfter } = this.#facts;
    const until = new Date(notAfter).toISOString();
    log.info("tls_certificate_loaded", { subject, fingerprint, not_after: until });
    conditions.set(CONDITION, true, `valid until ${until}`);
  }
}

async function readPair(options: TlsFilesOptions): Promise<TlsPair> {
  const { files } = options.runtime;
  return { cert: await files.readText(options.cert), key: await files.readText(options.key) };
}
