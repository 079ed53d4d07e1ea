import { test } from "uvu";
import * as assert from "uvu/assert";
import { readFile } from "node:fs/promises";
import { compileIndex, moduleSource } from "../../scripts/build_wasm.ts";
import { IndexModule } from "../../src/kv/wasm/load.ts";

test("the committed module is what the source compiles to", async () => {
  const committed = await readFile(new URL("../../src/kv/wasm/module.ts", import.meta.url), "utf8");
  assert.ok(
    committed === moduleSource(await compileIndex()),
    "src/kv/wasm/module.ts is out of date: run scripts/build-wasm",
  );
});

test("the views of an instance follow the growth of its memory", async () => {
  const module = await IndexModule.create();
  const at = module.call.stagingAt();
  module.u8[at] = 7;
  const before = module.u8;
  module.call.memory.grow(10);
  assert.is(before.length, 0, "the old view is dead");
  assert.is(module.u8[at], 7);
  assert.is(module.u16[at >>> 1], 7);
  assert.is(module.u32[at >>> 2], 7);
  assert.is(module.u64[at >>> 3], 7n);
  assert.is(module.memoryBytes, module.u8.length);
});

test("instances have nothing in common", async () => {
  const one = await IndexModule.create(), two = await IndexModule.create();
  one.u8[one.call.stagingAt()] = 1;
  assert.is(two.u8[two.call.stagingAt()], 0);
});

test.run();
