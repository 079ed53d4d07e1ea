/**
 * A response whose end is known: `done` runs once when its last byte was read, its body failed, or
 * the reader went away. A handler that has returned has not answered yet; its bytes have.
 */

/** Wraps the body. `forced` makes a body that is still open fail when it fires. */
export function countedBody(response: Response, done: () => void, forced?: AbortSignal): Response {
  const body = response.body;
  if (body === null) {
    done();
    return response;
  }
  const reader = body.getReader();
  let controller: ReadableStreamDefaultController<Uint8Array> | undefined;
  const finish = (): void => {
    forced?.removeEventListener("abort", cut);
    done();
  };
  const cut = (): void => {
    const reason = new Error("the process was told to stop at once");
    controller?.error(reason);
    reader.cancel(reason).catch(() => {});
    finish();
  };
  const counted = new ReadableStream<Uint8Array>({
    start(own) {
      controller = own;
      if (forced?.aborted === true) cut();
      else forced?.addEventListener("abort", cut, { once: true });
    },
    async pull(own) {
      try {
        for (;;) {
          const { done: ended, value } = await reader.read();
          if (ended) {
            finish();
            own.close();
            return;
          }
          if (value.byteLength === 0) continue;
          own.enqueue(value);
          return;
        }
      } catch (error) {
        // The reader must see a broken transfer, never a clean end.
        finish();
        own.error(error);
      }
    },
    async cancel(reason) {
      finish();
      await reader.cancel(reason);
    },
  }, { highWaterMark: 0 });
  return new Response(counted, response);
}
