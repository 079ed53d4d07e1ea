/**
 * One stream with the chunks of all, each as soon as it is there. An error of any of them is an
 * error of the whole; cancelling the whole cancels all.
 */
export function mergeReadableStreams<T>(...streams: ReadableStream<T>[]): ReadableStream<T> {
  const readers = streams.map((stream) => stream.getReader());
  let open = readers.length;
  return new ReadableStream<T>({
    start(controller) {
      if (open === 0) controller.close();
      for (const reader of readers) void pump(reader, controller);
    },
    async cancel(reason) {
      await Promise.all(readers.map((reader) => reader.cancel(reason)));
    },
  });

  async function pump(
    reader: ReadableStreamDefaultReader<T>,
    controller: ReadableStreamDefaultController<T>,
  ): Promise<void> {
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        controller.enqueue(value);
      }
      open -= 1;
      if (open === 0) controller.close();
    } catch (error) {
      controller.error(error);
    }
  }
}
