/**
 * Tokenises prompts here, by the model's `tokenizer.json` and its chat template.
 *
 * It runs in the event loop, where everything else waits for it: prompts beyond a bound are left to
 * others. What it cannot do exactly (images, a template that fails) it leaves to others too.
 */

import { Template } from "@huggingface/jinja";
import { Tokenizer } from "@huggingface/tokenizers";
import type { ChatPrompt, OpenAiRequest } from "./openai_request.ts";

export interface LocalTokenizerFiles {
  /** The text of `tokenizer.json`. */
  readonly tokenizer: string;
  /** The text of `tokenizer_config.json`. */
  readonly config?: string | undefined;
  /** The chat template, where it is not that of the config. */
  readonly chatTemplate?: string | undefined;
}

/** Ids of the last prompts, for clients that send one again. */
const KEPT_PROMPTS = 32;

export class LocalTokenizer {
  readonly #tokenizer: Tokenizer;
  readonly #template: Template | undefined;
  /** Tokens that templates name, such as `bos_token`. */
  readonly #special: Readonly<Record<string, string>>;
  readonly #maxChars: number;
  readonly #kept = new Map<string, Uint32Array>();

  /** Throws what is wrong with the files. */
  constructor(files: LocalTokenizerFiles, maxChars: number) {
    const config = record(files.config === undefined ? {} : JSON.parse(files.config));
    this.#tokenizer = new Tokenizer(record(JSON.parse(files.tokenizer)), config);
    const template = files.chatTemplate ?? templateOf(config["chat_template"]);
    this.#template = template === undefined ? undefined : new Template(template);
    this.#special = specialTokens(config);
    this.#maxChars = maxChars;
  }

  /** The tokens as the model's engine has them, or undefined when they have to come from elsewhere. */
  tokens(request: OpenAiRequest): Uint32Array | undefined {
    if (request.text.length > this.#maxChars) return undefined;
    try {
      // After a template the special tokens are there already.
      if (request.chat !== undefined) return this.#encode(this.#render(request.chat), false);
      if (request.prompt !== undefined) return this.#encode(request.prompt, true);
    } catch {
      // E.g. a template that refuses these roles: the engine will say so.
    }
    return undefined;
  }

  #render(chat: ChatPrompt): string {
    if (this.#template === undefined) throw new Error("no chat template");
    return this.#template.render({
      ...this.#special,
      ...chat.variables,
      messages: chat.messages,
      ...(chat.tools === undefined ? {} : { tools: chat.tools }),
      add_generation_prompt: chat.addGenerationPrompt,
    });
  }

  #encode(text: string, addSpecialTokens: boolean): Uint32Array {
    if (text.length > 2 * this.#maxChars) throw new Error("the template made too much of it");
    const key = `${addSpecialTokens} ${text}`;
    const known = this.#kept.get(key);
    if (known !== undefined) this.#kept.delete(key);
    const tokens = known ??
      Uint32Array.from(this.#tokenizer.encode(text, { add_special_tokens: addSpecialTokens }).ids);
    this.#kept.set(key, tokens);
    const [oldest] = this.#kept.keys();
    if (this.#kept.size > KEPT_PROMPTS && oldest !== undefined) this.#kept.delete(oldest);
    return tokens;
  }
}

type Json = Readonly<Record<string, unknown>>;

function record(value: unknown): Json {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as Json;
  throw new Error("not a JSON object");
}

/** A text, or a list of named ones of which `default` counts. */
function templateOf(value: unknown): string | undefined {
  if (typeof value === "string") return value;
  if (!Array.isArray(value)) return undefined;
  const found = value.find((one) => one?.name === "default") ?? value[0];
  return typeof found?.template === "string" ? found.template : undefined;
}

function specialTokens(config: Json): Record<string, string> {
  const tokens: Record<string, string> = {};
  for (const name of ["bos_token", "eos_token", "unk_token", "pad_token"]) {
    const token = config[name];
    const content = typeof token === "string" ? token : (token as Json | null | undefined)?.content;
    if (typeof content === "string") tokens[name] = content;
  }
  return tokens;
}
