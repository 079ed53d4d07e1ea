/** Errors as messages: what the other side throws in its place. */

import { BatonError, ERROR_STATUS, type ErrorCode } from "../errors.ts";

export interface ToldError {
  readonly code: string;
  readonly message: string;
  readonly detail: Readonly<Record<string, unknown>>;
  readonly retryAfterS: number | undefined;
}

/** Of an error that has no answer of its own nothing is told but that it was one. */
export function tellError(error: unknown): ToldError {
  const known = error instanceof BatonError ? error : new BatonError("internal", "internal error");
  const { code, message, detail, retryAfterS } = known;
  return { code, message, detail, retryAfterS };
}

export function errorTold({ code, message, detail, retryAfterS }: ToldError): BatonError {
  return new BatonError(code in ERROR_STATUS ? code as ErrorCode : "internal", message, {
    detail: { ...detail },
    ...(retryAfterS === undefined ? {} : { retryAfterS }),
  });
}
