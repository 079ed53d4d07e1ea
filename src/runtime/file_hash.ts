import { createHash } from "node:crypto";
import { open } from "node:fs/promises";
import type { Sha256 } from "./runtime.ts";

/** Small enough that hashing one piece takes well under a millisecond of the event loop. */
const PIECE_BYTES = 256 * 1024;

/** SHA-256 of a file in lower-case hex; holds one piece in memory, whatever the size. */
export async function sha256OfFile(path: string): Promise<string> {
  const file = await open(path, "r");
  try {
    const hash = createHash("sha256");
    const piece = new Uint8Array(PIECE_BYTES);
    for (;;) {
      const { bytesRead } = await file.read(piece, 0, piece.length, null);
      if (bytesRead === 0) return hash.digest("hex");
      hash.update(piece.subarray(0, bytesRead));
    }
  } finally {
    await file.close();
  }
}

/** See `Files.hasher`. */
export function createHasher(): Sha256 {
  const hash = createHash("sha256");
  return {
    update(bytes) {
      hash.update(bytes);
    },
    hex: () => hash.digest("hex"),
  };
}
