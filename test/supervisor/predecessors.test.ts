/** Which generations a new one is told of. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { Generation, type Role } from "../../src/supervisor/generation.ts";
import { predecessorsOf } from "../../src/supervisor/predecessors.ts";
import type { SupervisedProcess } from "../../src/supervisor/process.ts";
import { runtime } from "../support/runtime.ts";

let number = 0;

function generation(
  role: Role,
  peerPort: number | undefined,
  state: SupervisedProcess["state"] | "none" = "running",
): Generation {
  const made = new Generation({
    service: "s",
    version: "v1",
    number: ++number,
    build: {
      sha256: "0".repeat(64),
      binary: "/bin/x",
      folder: "/bin",
      buildId: "",
      storageMode: "",
      adminApi: false,
    },
    clock: runtime.clock,
    onMove: () => {},
  });
  made.role = role;
  made.peerPort = peerPort;
  if (state !== "none") made.process = { state } as SupervisedProcess;
  return made;
}

test("the one that serves comes first, then who could serve, then who drains, the newest first", () => {
  const all = [
    generation("leaving", 5001),
    generation("leaving", 5002, "terminating"),
    generation("warm", 5003),
    generation("canary", 5004),
    generation("current", 5005),
  ];
  const next = generation("candidate", 5006);
  assert.equal(
    predecessorsOf(next, [...all, next]),
    [5005, 5004, 5003, 5002, 5001].map((port) => `127.0.0.1:${port}`),
  );
});

test("nobody who has not been ready, has ended, or has no peer port", () => {
  const next = generation("candidate", 5001);
  assert.equal(predecessorsOf(next, [next]), []);
  assert.equal(
    predecessorsOf(next, [
      next,
      generation("candidate", 5002),
      generation("current", 5003, "exited"),
      generation("current", 5004, "none"),
      generation("warm", undefined),
    ]),
    [],
  );
});

test.run();
