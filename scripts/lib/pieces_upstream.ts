/**
 * Answers every request with 100 chunks of 64 bytes, one in each turn of the event loop; prints the
 * port that it listens on.
 */

import { createServer, type Socket } from "node:net";

const PIECES = 100;
const HEAD = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
const PIECE = `40\r\n${"x".repeat(64)}\r\n`;

const server = createServer({ noDelay: true }, (socket) => {
  socket.on("error", () => {});
  // A request of the bench is a head in one read, and the next one comes after its answer.
  socket.on("data", () => {
    socket.write(HEAD);
    writePiece(socket, PIECES);
  });
});
server.listen(0, "127.0.0.1", () => {
  const address = server.address();
  if (address !== null && typeof address === "object") console.log(address.port);
});

function writePiece(socket: Socket, left: number): void {
  if (socket.destroyed) return;
  if (left === 0) return void socket.write("0\r\n\r\n");
  socket.write(PIECE);
  setImmediate(() => writePiece(socket, left - 1));
}
