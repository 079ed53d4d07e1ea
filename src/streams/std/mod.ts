/**
 * Stand-in for `jsr:@std/streams`: the functions that Baton uses, with the same names and semantics.
 *
 * JSR is not reachable everywhere that Baton is built; where it is, one line in deno.json's imports
 * (`"@std/streams": "jsr:@std/streams@1"`) replaces this package. So nothing here may do more than
 * the original: helpers of our own (byte limits on lines, NDJSON) live in src/streams/.
 */

export { TextLineStream, type TextLineStreamOptions } from "./text_line_stream.ts";
export {
  LimitedBytesTransformStream,
  type LimitedBytesTransformStreamOptions,
} from "./limited_bytes_transform_stream.ts";
export { mergeReadableStreams } from "./merge_readable_streams.ts";
export { toArrayBuffer, toJson, toText } from "./collect.ts";
