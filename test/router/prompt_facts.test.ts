/** What a choice reads of a body. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { BatonError } from "../../src/errors.ts";
import { readPromptFacts } from "../../src/router/prompt_facts.ts";

test("a body that is nested too deeply is refused, and is no error of ours", () => {
  const reading = { tokenizer: undefined, asksWorkers: true };
  const read = (depth: number) => {
    const deep = "[".repeat(depth) + "]".repeat(depth);
    const body = `{"model":"m","messages":[{"role":"user","content":${deep}}]}`;
    return readPromptFacts(new TextEncoder().encode(body), reading);
  };
  assert.is(read(10).model, "m");
  for (const depth of [100_000, 1_000_000]) {
    try {
      // How deep is too deep is the runtime's.
      assert.is(read(depth).model, "m");
    } catch (error) {
      assert.instance(error, BatonError);
      assert.is((error as BatonError).code, "bad_request");
    }
  }
});

test.run();
