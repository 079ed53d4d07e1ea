/** HTTP servers that misbehave: every byte of an answer is the test's. */

import { createServer, type Socket } from "node:net";
import type { AddressInfo } from "node:net";

export interface RawRequest {
  readonly target: string;
  /** Lower-case names. */
  readonly headers: Readonly<Record<string, string>>;
  /** Counts up from 1 over all connections. */
  readonly number: number;
}

export interface RawServer {
  readonly url: string;
  readonly port: number;
  readonly requests: RawRequest[];
  close(): Promise<void>;
}

/** Calls `answer` with each request's head; whatever it writes to the socket is the answer. */
export async function rawServer(
  answer: (socket: Socket, request: RawRequest) => void,
): Promise<RawServer> {
  const sockets = new Set<Socket>();
  const requests: RawRequest[] = [];
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on("close", () => sockets.delete(socket));
    socket.on("error", () => {});
    let head = "";
    socket.on("data", (chunk) => {
      head += chunk.toString("latin1");
      const end = head.indexOf("\r\n\r\n");
      if (end < 0) return;
      const [start = "", ...lines] = head.slice(0, end).split("\r\n");
      head = "";
      const request: RawRequest = {
        target: start.split(" ")[1] ?? "",
        headers: Object.fromEntries(lines.map((line) => {
          const at = line.indexOf(":");
          return [line.slice(0, at).toLowerCase(), line.slice(at + 1).trim()];
        })),
        number: requests.length + 1,
      };
      requests.push(request);
      answer(socket, request);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}`,
    port,
    requests,
    close: () =>
      new Promise((resolve) => {
        for (const socket of sockets) socket.destroy();
        server.close(() => resolve());
      }),
  };
}

/** A whole answer with its length, and the connection closed behind it. */
export function reply(
  socket: Socket,
  status: number,
  body: Uint8Array | string,
  headers: Readonly<Record<string, string>> = {},
): void {
  const bytes = typeof body === "string" ? new TextEncoder().encode(body) : body;
  socket.write(head(status, { "content-length": String(bytes.length), ...headers }));
  socket.end(bytes);
}

/** Start line and headers; `connection: close` is added. */
export function head(status: number, headers: Readonly<Record<string, string>>): string {
  const lines = Object.entries({ connection: "close", ...headers });
  return `HTTP/1.1 ${status} X\r\n${
    lines.map(([name, value]) => `${name}: ${value}\r\n`).join("")
  }\r\n`;
}
