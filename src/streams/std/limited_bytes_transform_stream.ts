export interface LimitedBytesTransformStreamOptions {
  /** Throw a `RangeError` when the limit is passed, instead of ending the stream. */
  error?: boolean;
}

/** Lets whole chunks through as long as their bytes sum up to at most `size`. */
export class LimitedBytesTransformStream extends TransformStream<Uint8Array, Uint8Array> {
  constructor(size: number, options: LimitedBytesTransformStreamOptions = {}) {
    let seen = 0;
    super({
      transform(chunk, controller) {
        if (seen + chunk.byteLength > size) {
          if (options.error === true) {
            throw new RangeError(`Exceeded byte size limit of '${size}'`);
          }
          controller.terminate();
          return;
        }
        seen += chunk.byteLength;
        controller.enqueue(chunk);
      },
    });
  }
}
