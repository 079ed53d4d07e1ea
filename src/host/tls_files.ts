/**
 * A listener's certificate: read from files, and read again whenever they change.
 *
 * A pair that is not one (half of it is written, the key belongs to another certificate) changes
 * nothing: the last good one goes on, and log, condition and metric say so until it is put right.
 */

import { messageOf } from "../errors.ts";
import type { Conditions } from "../lifecycle/conditions.ts";
import type { Log } from "../observe/log.ts";
import type { Gauge, Metrics } from "../observe/metrics.ts";
import type { Runtime } from "../runtime/runtime.ts";
import type { CertificateFacts, TlsPair } from "../runtime/tls_contract.ts";

/** After a change the other file may still be about to change. */
const SETTLE_MS = 200;
/** So much later a pair that does not fit is looked at once more before it is called broken. */
const SECOND_LOOK_MS = 1500;
const NAMES = {
  traffic: { setting: "listen.tls", condition: "tls certificate" },
  peer: { setting: "replica.tls", condition: "peer tls certificate" },
} as const;

export interface TlsFilesOptions {
  readonly runtime: Pick<Runtime, "files" | "tls" | "clock">;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly conditions: Pick<Conditions, "set">;
  readonly listener: keyof typeof NAMES;
  readonly cert: string;
  readonly key: string;
  /** The authority of those who call. */
  readonly ca?: string | undefined;
}

/** What the files have in them. */
export interface TlsTexts extends TlsPair {
  readonly ca?: string;
}

export class TlsFiles {
  readonly #options: TlsFilesOptions;
  #texts: TlsTexts;
  #facts: CertificateFacts;
  #isRefused = false;
  #changed: (texts: TlsTexts) => void = () => {};
  readonly #notAfter: Gauge;
  readonly #refused: Gauge;
  readonly #unwatch: (() => void)[] = [];
  #cancel: (() => void) | undefined;

  private constructor(options: TlsFilesOptions, texts: TlsTexts, facts: CertificateFacts) {
    this.#options = options;
    this.#texts = texts;
    this.#facts = facts;
    const { metrics } = options;
    this.#notAfter = metrics.gauge(
      "baton_tls_not_after_seconds",
      "When the certificate in use ends, in seconds since 1970.",
      ["listener"],
    );
    this.#refused = metrics.gauge(
      "baton_tls_refused",
      "1 while the certificate files hold a pair that is refused, and an older one is in use.",
      ["listener"],
    );
  }

  /** Reads the pair. Throws an Error that names the files if there is none, or if it is broken. */
  static async open(options: TlsFilesOptions): Promise<TlsFiles> {
    try {
      const texts = await read(options);
      const facts = options.runtime.tls.check(texts);
      const files = new TlsFiles(options, texts, facts);
      files.#tell();
      return files;
    } catch (error) {
      const { setting } = NAMES[options.listener];
      throw new Error(`${setting}: ${options.cert}, ${options.key}: ${messageOf(error)}`);
    }
  }

  get texts(): TlsTexts {
    return this.#texts;
  }

  /** Calls `changed` with each new good pair from now on. */
  watch(changed: (texts: TlsTexts) => void): void {
    const { runtime: { files }, cert, key, ca } = this.#options;
    this.#changed = changed;
    for (const path of [cert, key, ...(ca === undefined ? [] : [ca])]) {
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
    const { runtime, log, conditions, listener, cert, key } = this.#options;
    try {
      const texts = await read(this.#options);
      const { cert: oldCert, key: oldKey, ca: oldCa } = this.#texts;
      const isKnown = texts.cert === oldCert && texts.key === oldKey && texts.ca === oldCa;
      if (isKnown && !this.#isRefused) return;
      const facts = runtime.tls.check(texts);
      this.#changed(texts);
      this.#texts = texts;
      this.#facts = facts;
      this.#isRefused = false;
      this.#tell();
    } catch (error) {
      if (mayLookAgain) return this.#lookIn(SECOND_LOOK_MS, false);
      this.#isRefused = true;
      this.#refused.set(1, { listener });
      const why = messageOf(error);
      log.error("tls_certificate_refused", { listener, cert, key, error: why });
      conditions.set(
        NAMES[listener].condition,
        true,
        `the files are refused, an older one is in use: ${why}`,
      );
    }
  }

  #tell(): void {
    const { log, conditions, listener } = this.#options;
    const { subject, fingerprint, notAfter } = this.#facts;
    const until = new Date(notAfter).toISOString();
    this.#notAfter.set(notAfter / 1000, { listener });
    this.#refused.set(0, { listener });
    log.info("tls_certificate_loaded", { listener, subject, fingerprint, not_after: until });
    conditions.set(NAMES[listener].condition, true, `valid until ${until}`);
  }
}

async function read(options: TlsFilesOptions): Promise<TlsTexts> {
  const { runtime: { files }, cert, key, ca } = options;
  const pair = { cert: await files.readText(cert), key: await files.readText(key) };
  if (ca === undefined) return pair;
  const authority = await files.readText(ca);
  if (!authority.includes("-----BEGIN CERTIFICATE-----")) {
    throw new Error(`${ca} has no certificate in it`);
  }
  return { ...pair, ca: authority };
}
