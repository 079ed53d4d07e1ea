/** A pool's tokenizer from its files. */

import type { PoolConfig } from "../config/pool.ts";
import type { Files } from "../runtime/runtime.ts";
import type { LocalTokenizer } from "./local_tokenizer.ts";

/** undefined without files. Throws an Error that names the key of a file that cannot be used. */
export async function loadTokenizer(
  files: Files,
  service: string,
  settings: PoolConfig["tokenizer"],
): Promise<LocalTokenizer | undefined> {
  if (settings === undefined) return undefined;
  // Its libraries take a good part of the start: only those who need them load them.
  const { LocalTokenizer } = await import("./local_tokenizer.ts");
  const { file, chatTemplate, maxChars } = settings;
  const beside = file.replace(/[^/]*$/, "tokenizer_config.json");
  const config = settings.config ??
    ((await files.info(beside)) === undefined ? undefined : beside);
  try {
    return new LocalTokenizer({
      tokenizer: await files.readText(file),
      config: config === undefined ? undefined : await files.readText(config),
      chatTemplate: chatTemplate === undefined ? undefined : await files.readText(chatTemplate),
    }, maxChars);
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new Error(`services.${service}.pool.tokenizer = ${file}: ${why}`, { cause: error });
  }
}
