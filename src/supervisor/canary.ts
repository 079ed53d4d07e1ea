/**
 * Which requests go to a new build while it is on trial.
 *
 * The share is exact, not drawn by lot: of any run of requests the canary gets the whole part of
 * their number times the share. A request that names the canary by header goes there and does not
 * count towards the share.
 */

/** Parts of a percent that a share is kept to: a millionth. */
const SCALE = 1_000_000;

export interface CanaryRule {
  /** 0 to 100. */
  readonly percent: number;
  /** `name` or `name=value`; empty for none. */
  readonly header: string;
}

export class CanaryShare {
  readonly #share: number;
  readonly #headerName: string;
  readonly #headerValue: string | undefined;
  #owed = 0;

  constructor(rule: CanaryRule) {
    this.#share = Math.round(rule.percent * SCALE);
    const cut = rule.header.indexOf("=");
    this.#headerName = (cut < 0 ? rule.header : rule.header.slice(0, cut)).toLowerCase();
    this.#headerValue = cut < 0 ? undefined : rule.header.slice(cut + 1);
  }

  /** True when this request is the canary's. Call it once a request. */
  takes(header: (name: string) => string | undefined): boolean {
    if (this.#headerName !== "") {
      const value = header(this.#headerName);
      if (value !== undefined && (this.#headerValue ?? value) === value) return true;
    }
    this.#owed += this.#share;
    if (this.#owed < 100 * SCALE) return false;
    this.#owed -= 100 * SCALE;
    return true;
  }
}
