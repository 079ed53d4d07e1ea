/** docs/quick-start.md: its blocks, one after the other in one shell, in a copy of the tree. */

import { test } from "uvu";
import * as assert from "uvu/assert";
import { spawn } from "node:child_process";
import { readFileSync, symlinkSync } from "node:fs";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { basePort, plainEnvironment } from "../support/baton_process.ts";
import { inScratch } from "../support/scratch.ts";

const root = fileURLToPath(new URL("../../", import.meta.url));
const page = readFileSync(`${root}docs/quick-start.md`, "utf8");

test("every block of the quick start runs, and says what the page says", async () => {
  const blocks = [...page.matchAll(/```sh\n([\s\S]*?)```/g)].map(([, block]) => block ?? "");
  assert.is(blocks.length, 8);
  const ports = { 8080: String(basePort()), 8081: String(basePort()) };
  // A block that fails must not leave Baton and its children behind.
  const pid = "quick-start/baton.pid";
  const cleanUp = `trap 'if [ -f ${pid} ]; then kill -TERM $(cat ${pid}); sleep 3; fi' EXIT`;
  let script = `set -e\n${cleanUp}\n${blocks.join("echo ---\n")}`;
  for (const [port, free] of Object.entries(ports)) script = script.replaceAll(port, free);
  if ("Deno" in globalThis) {
    const [, line] = /With Deno the last line is `(BATON=.*?)`/.exec(page) ?? [];
    assert.ok(line, "the page says how it is with Deno");
    script = script.replace(/^BATON=.*$/m, line);
  }
  // Other tests run beside this one, with children of their own.
  script = script.replace('"bakeMs": 1000', `"bakeMs": 1000, "basePort": ${basePort()}`);
  // Set-up is what brought this test here; the page's own is for a fresh clone.
  script = script.replace("scripts/setup\n", "");
  await inScratch(async (folder) => {
    for (const name of ["src", "node_modules", "package.json", "deno.json"]) {
      symlinkSync(`${root}${name}`, `${folder}/${name}`);
    }
    const shell = spawn("bash", ["-c", script], {
      cwd: folder,
      env: plainEnvironment(),
      detached: true,
      stdio: ["ignore", "pipe", "pipe"],
    });
    let output = "";
    for (const stream of [shell.stdout, shell.stderr]) {
      stream.on("data", (chunk) => (output += chunk));
    }
    const code = await new Promise<number | null>((resolve) => shell.on("exit", resolve));
    try {
      process.kill(-(shell.pid ?? 0), "SIGKILL");
    } catch {
      // Nothing of it is left, as it should be.
    }
    assert.is(code, 0, output);
    const parts = output.split("---\n");
    assert.match(parts[2] ?? "", /service hello at \/hello: versions from file:.*\nok\n/);
    assert.match(parts[3] ?? "", "hello from build one");
    assert.match(parts[4] ?? "", "hello from build two");
    assert.match(parts[5] ?? "", /ready, \d+ in flight/);
    assert.match(parts[6] ?? "", '"verb":"rollback"');
    assert.match(parts[7] ?? "", '"cut":0,"forced":false');
  });
});

test.run();
