/** An exchange as a standard Request, for the routes that are our own. */

import type { ClientSide } from "./client_side.ts";
import { HOST } from "./head.ts";

/** Makes the Request. It has no body: our own routes on the traffic listener take none. */
export function exchangeRequest(exchange: ClientSide): Request {
  const host = exchange.authority ?? exchange.requestHead.first(HOST) ?? "localhost";
  const headers = new Headers();
  const lines = exchange.headers;
  for (let at = 0; at + 1 < lines.length; at += 2) {
    headers.append(lines[at] as string, lines[at + 1] as string);
  }
  // Request refuses these methods; nothing of ours answers them otherwise than "not here".
  const method = /^(CONNECT|TRACE|TRACK)$/i.test(exchange.method) ? "GET" : exchange.method;
  const url = `http://${host}${exchange.target}`;
  // A Host may be valid and still be none that a URL can have: "a:99999", "1.2.3.999".
  const known = URL.canParse(url) ? url : `http://localhost${exchange.target}`;
  return new Request(known, { method, headers });
}
