/** For tests that spend their time waiting for processes. */

import { test } from "uvu";
import { Slots } from "../../src/supervisor/slots.ts";

/**
 * A `test` whose bodies begin when they are declared, at most `most` at once; each is still reported
 * under its own name, in order. The bodies must share nothing.
 */
export function sideBySide(most: number): (name: string, body: () => Promise<void>) => void {
  const slots = new Slots(most);
  return (name, body) => {
    const ended = slots.take().then((giveBack) => body().finally(giveBack)).then(
      () => undefined,
      // Kept until its test asks: an early failure must not end the process.
      (error: unknown) => ({ error }),
    );
    test(name, async () => {
      const failure = await ended;
      if (failure !== undefined) throw failure.error;
    });
  };
}
