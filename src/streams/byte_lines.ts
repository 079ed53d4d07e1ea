/**
 * Lines of a byte stream, with a limit on the bytes of one line.
 *
 * An endless line would otherwise be buffered for ever, so every reader of lines from outside goes
 * through here. Lines come in batches, one array for each chunk: an await for each line costs more
 * than reading the line.
 */

export interface ByteLinesOptions {
  /** Bytes of the longest line that is accepted, without its line feed. */
  readonly maxLineBytes: number;
  /**
   * What a last line without a line feed is: a line like others (`accept`, the default), or the sign
   * of a body that was cut (`refuse`).
   */
  readonly unendedLine?: "accept" | "refuse";
}

/** A line is longer than allowed. */
export class LineTooLong extends Error {
  override readonly name = "LineTooLong";
}

/** The stream ended inside a line although each line has to end with a line feed. */
export class LineCut extends Error {
  override readonly name = "LineCut";
}

const LINE_FEED = 10;

/**
 * Batches of lines without their line feeds; empty lines are kept. A line that lies within one
 * chunk is a view of that chunk, valid until the next batch is asked for.
 */
export async function* byteLines(
  chunks: AsyncIterable<Uint8Array>,
  options: ByteLinesOptions,
): AsyncGenerator<Uint8Array[], void> {
  const { maxLineBytes } = options;
  let pieces: Uint8Array[] = [];
  let pieceBytes = 0;
  const keep = (piece: Uint8Array): void => {
    pieceBytes += piece.length;
    if (pieceBytes > maxLineBytes) throw new LineTooLong(`a line has over ${maxLineBytes} bytes`);
    // A copy: whoever owns the chunk may use its memory again.
    if (piece.length > 0) pieces.push(piece.slice());
  };
  for await (const chunk of chunks) {
    const lines: Uint8Array[] = [];
    let start = 0;
    for (;;) {
      const end = chunk.indexOf(LINE_FEED, start);
      if (end === -1) break;
      if (pieceBytes > 0) {
        keep(chunk.subarray(start, end));
        lines.push(join(pieces, pieceBytes));
        pieces = [];
        pieceBytes = 0;
      } else {
        if (end - start > maxLineBytes) {
          throw new LineTooLong(`a line has over ${maxLineBytes} bytes`);
        }
        lines.push(chunk.subarray(start, end));
      }
      start = end + 1;
    }
    if (lines.length > 0) yield lines;
    keep(chunk.subarray(start));
  }
  if (pieceBytes === 0) return;
  if (options.unendedLine === "refuse") throw new LineCut("the stream ended inside a line");
  yield [join(pieces, pieceBytes)];
}

function join(pieces: readonly Uint8Array[], length: number): Uint8Array {
  const [only] = pieces;
  if (pieces.length === 1 && only !== undefined) return only;
  const line = new Uint8Array(length);
  let at = 0;
  for (const piece of pieces) {
    line.set(piece, at);
    at += piece.length;
  }
  return line;
}
