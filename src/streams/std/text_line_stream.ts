export interface TextLineStreamOptions {
  /** Also end a line at a lone `\r`. */
  allowCR?: boolean;
}

/**
 * Cuts a stream of text into lines at `\n` and `\r\n`; line ends are not part of the lines. A last
 * line without a line end is a line too, unless it is empty.
 */
export class TextLineStream extends TransformStream<string, string> {
  constructor(options: TextLineStreamOptions = {}) {
    const allowCR = options.allowCR ?? false;
    let rest = "";
    super({
      transform(chunk, controller) {
        let text = rest + chunk;
        // A trailing \r may be the first half of \r\n, so it waits for the next chunk.
        let held = "";
        if (text.endsWith("\r")) {
          held = "\r";
          text = text.slice(0, -1);
        }
        let start = 0;
        for (;;) {
          const end = nextEnd(text, start, allowCR);
          if (end === undefined) break;
          controller.enqueue(text.slice(start, end.at));
          start = end.next;
        }
        rest = text.slice(start) + held;
      },
      flush(controller) {
        if (rest === "") return;
        if (allowCR && rest.endsWith("\r")) rest = rest.slice(0, -1);
        controller.enqueue(rest);
      },
    });
  }
}

function nextEnd(text: string, start: number, allowCR: boolean) {
  const feed = text.indexOf("\n", start);
  if (allowCR) {
    const carriage = text.indexOf("\r", start);
    if (carriage !== -1 && (feed === -1 || carriage < feed - 1)) {
      return { at: carriage, next: carriage + 1 };
    }
  }
  if (feed === -1) return undefined;
  const at = feed > start && text[feed - 1] === "\r" ? feed - 1 : feed;
  return { at, next: feed + 1 };
}
