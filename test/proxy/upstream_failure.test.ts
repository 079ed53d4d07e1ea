/** What a client is told about a target that failed before it had answered. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { upstreamFailure } from "../../src/proxy/upstream_failure.ts";

test("each way in which a target can fail has its code and says what happened", () => {
  const messages = new Set<string>();
  for (
    const reason of [
      "upstream_connect_failed",
      "upstream_reset",
      "upstream_bad_response",
      "upstream_timeout",
    ]
  ) {
    const error = upstreamFailure(reason, "the worker");
    assert.is(error.code, reason);
    assert.match(error.message, /^the worker /);
    messages.add(error.message);
  }
  assert.is(messages.size, 4);
  for (const other of [undefined, "something"]) {
    assert.is(upstreamFailure(other, "it").code, "upstream_reset");
  }
});

test.run();
