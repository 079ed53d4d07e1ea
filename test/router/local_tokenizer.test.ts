/** Tokens and chat templates here, with a vocabulary made for the purpose. */

import { writeFile } from "node:fs/promises";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { LocalTokenizer } from "../../src/router/local_tokenizer.ts";
import { readOpenAiRequest } from "../../src/router/openai_request.ts";
import { startBatonProcess } from "../support/baton_process.ts";
import { inScratch } from "../support/scratch.ts";
import { MODEL, withPool, worldOf } from "./pool_world.ts";

const WORDS = ["<unk>", "<s>", "user", "assistant", "system", ":", "hello", "world", "tool", "end"];
const TOKENIZER = JSON.stringify({
  version: "1.0",
  added_tokens: [
    { id: 0, content: "<unk>", special: true },
    { id: 1, content: "<s>", special: true },
  ].map((token) => ({
    ...token,
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized: false,
  })),
  normalizer: null,
  pre_tokenizer: { type: "Whitespace" },
  post_processor: {
    type: "TemplateProcessing",
    single: [{ SpecialToken: { id: "<s>", type_id: 0 } }, { Sequence: { id: "A", type_id: 0 } }],
    pair: [{ Sequence: { id: "A", type_id: 0 } }, { Sequence: { id: "B", type_id: 1 } }],
    special_tokens: { "<s>": { id: "<s>", ids: [1], tokens: ["<s>"] } },
  },
  decoder: null,
  model: {
    type: "WordLevel",
    unk_token: "<unk>",
    vocab: Object.fromEntries(WORDS.map((word, id) => [word, id])),
  },
});
const CONFIG = JSON.stringify({
  bos_token: { content: "<s>" },
  unk_token: "<unk>",
  chat_template: "{{ bos_token }}{% if tools %}tool {% endif %}" +
    "{% for message in messages %}{% if message.role == 'bad' %}" +
    "{{ raise_exception('no such role') }}{% endif %}" +
    "{{ message.role }} : {{ message.content }} end {% endfor %}" +
    "{% if add_generation_prompt %}assistant :{% endif %}{{ more }}",
});

function tokenizer(maxChars = 1_000, chatTemplate?: string): LocalTokenizer {
  return new LocalTokenizer({ tokenizer: TOKENIZER, config: CONFIG, chatTemplate }, maxChars);
}

function tokensOf(body: Record<string, unknown>, from = tokenizer()): string[] | undefined {
  const request = readOpenAiRequest(new TextEncoder().encode(JSON.stringify(body)));
  const ids = from.tokens(request);
  return ids === undefined ? undefined : [...ids].map((id) => WORDS[id] ?? "?");
}

test("a completion's prompt gets its special tokens from the tokenizer", () => {
  assert.equal(tokensOf({ prompt: "hello world" }), ["<s>", "hello", "world"]);
});

test("a chat gets them from the template, once, with the generation prompt", () => {
  const messages = [{ role: "system", content: "hello" }, { role: "user", content: "world" }];
  const chat = ["system", ":", "hello", "end", "user", ":", "world", "end"];
  assert.equal(tokensOf({ messages }), ["<s>", ...chat, "assistant", ":"]);
  assert.equal(tokensOf({ messages, add_generation_prompt: false }), ["<s>", ...chat]);
  const tools = [{ type: "function" }];
  assert.equal(tokensOf({ messages, tools })?.slice(0, 2), ["<s>", "tool"]);
  const more = { chat_template_kwargs: { more: " world" } };
  assert.is(tokensOf({ messages, ...more })?.at(-1), "world");
});

test("a template of its own file counts before that of the config", () => {
  const own = tokenizer(1_000, "{% for m in messages %}{{ m.content }}{% endfor %}");
  assert.equal(tokensOf({ messages: [{ role: "user", content: "hello" }] }, own), ["hello"]);
});

test("what cannot be known here is left to others: images, other templates, refusals, long ones", () => {
  const image = [{ type: "image_url", image_url: { url: "x" } }];
  const messages = [{ role: "user", content: "hello" }];
  for (
    const body of [
      { messages: [{ role: "user", content: image }] },
      { messages, chat_template: "{{ x }}" },
      { messages, continue_final_message: true },
      { messages: [{ role: "bad", content: "hello" }] },
      { prompt: "hello ".repeat(200) },
      { prompt: ["hello", "world"] },
      { input: "hello" },
    ]
  ) assert.is(tokensOf(body), undefined, JSON.stringify(body).slice(0, 80));
});

test("the same prompt again is the same", () => {
  const one = tokenizer();
  for (let n = 0; n < 100; n += 1) {
    assert.equal(tokensOf({ prompt: "hello" + " world".repeat(n % 40) }, one)?.length, 2 + n % 40);
  }
});

test("files that are no tokenizer are refused", () => {
  assert.throws(() => new LocalTokenizer({ tokenizer: "no json" }, 1));
  assert.throws(() => new LocalTokenizer({ tokenizer: "[]" }, 1));
  const config = JSON.stringify({ chat_template: "{% if %}" });
  assert.throws(() => new LocalTokenizer({ tokenizer: TOKENIZER, config }, 1));
});

test("a pool with a tokenizer asks no worker, and says where tokens came from", async () => {
  await inScratch(async (folder) => {
    await writeFile(`${folder}/tokenizer.json`, TOKENIZER);
    await writeFile(`${folder}/tokenizer_config.json`, CONFIG);
    const file = `${folder}/tokenizer.json`;
    await withPool(2, async ({ ask, stats, metric }) => {
      const prompt = "hello world ".repeat(40);
      for (let n = 0; n < 3; n += 1) await (await ask({ prompt })).text();
      const source = (name: string) =>
        metric(`baton_route_prompts_total{service="chat",source="${name}"}`);
      assert.is(await source("local"), 3);
      await (await ask({ prompt: "hello world ".repeat(100) })).text();
      assert.is(await source("worker"), 1);
      assert.equal(stats().map(({ requests }) => requests > 0).filter(Boolean).length >= 1, true);
    }, { silent: true, pool: { tokenizer: { file, maxChars: 1_000 } } });
  });
});

test("a tokenizer that cannot be used stops the start, and its key is named", async () => {
  await inScratch(async (folder) => {
    const file = `${folder}/nothing.json`;
    const pool = { model: MODEL, workers: [], tokenizer: { file } };
    let said = "";
    try {
      const baton = await startBatonProcess(folder, { services: { chat: { mount: "/v1", pool } } });
      worldOf(baton, []);
      await baton.stop();
    } catch (error) {
      said = String(error);
    }
    assert.match(said, "services.chat.pool.tokenizer");
    assert.match(said, file);
  });
});

test.run();
