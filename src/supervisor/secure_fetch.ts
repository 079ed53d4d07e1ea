/**
 * GET with redirects followed by hand, so that each address on the way is one that may be asked.
 */

import { messageOf } from "../errors.ts";
import type { Http } from "../runtime/runtime.ts";
import { assertSecure, printableUrl } from "./address.ts";

const MAX_REDIRECTS = 5;
const REDIRECTS: readonly number[] = [301, 302, 303, 307, 308];

/** An address on the way may not be asked, or the way does not end. */
export class RedirectRefused extends Error {
  override readonly name = "RedirectRefused";
}

export interface SecureGet {
  readonly allowInsecure: boolean;
  readonly headers: Readonly<Record<string, string>>;
  readonly signal: AbortSignal;
}

/** The first answer that is no redirect. Throws RedirectRefused, or what the call throws. */
export async function secureGet(http: Http, start: string, get: SecureGet): Promise<Response> {
  const { allowInsecure, headers, signal } = get;
  let url = new URL(start);
  for (let hops = 0; hops <= MAX_REDIRECTS; hops++) {
    try {
      assertSecure(url, allowInsecure);
    } catch (error) {
      const message = messageOf(error);
      throw new RedirectRefused(message, { cause: error });
    }
    const response = await http.fetch(url, { headers, signal });
    if (!REDIRECTS.includes(response.status)) return response;
    await dismiss(response);
    const location = response.headers.get("location");
    if (location === null || !URL.canParse(location, url)) {
      throw new RedirectRefused(`${printableUrl(url)} redirects to no address`);
    }
    url = new URL(location, url);
  }
  throw new RedirectRefused(`${printableUrl(start)}: more than ${MAX_REDIRECTS} redirects`);
}

/** Lets go of a body that nobody reads. */
export async function dismiss(response: Response): Promise<void> {
  await response.body?.cancel().catch(() => {});
}
