/**
 * Chat load with prefixes worth caching: conversations that share a system prompt and grow turn by
 * turn, as the usage of a chat product does. Each answer is read as a stream to its `[DONE]`.
 */

import { randomUUID } from "node:crypto";

export interface ChatReport {
  requests: number;
  failed: number;
  cut: number;
  promptTokens: number;
  /** As the workers say in `usage`: what they really had. */
  cachedTokens: number;
  readonly ids: string[];
  readonly reasons: string[];
}

export function emptyChatReport(): ChatReport {
  return { requests: 0, failed: 0, cut: 0, promptTokens: 0, cachedTokens: 0, ids: [], reasons: [] };
}

interface Message {
  readonly role: string;
  readonly content: string;
}

const SYSTEM = "You are a patient assistant who answers in few words and knows railways well. "
  .repeat(4);

export class Conversations {
  readonly #histories: Message[][];
  readonly #model: string;

  constructor(count: number, model: string) {
    this.#model = model;
    this.#histories = Array.from({ length: count }, (_, n) => [
      { role: "system", content: SYSTEM },
      { role: "user", content: `Conversation ${n}: ${randomUUID().repeat(80)}` },
    ]);
  }

  /** One turn of every conversation, or of one half of them, four at a time, through this Baton. */
  async turn(url: string, report: ChatReport, half?: "even" | "odd"): Promise<void> {
    const queue = this.#histories.filter((_, n) =>
      half === undefined || n % 2 === (half === "even" ? 0 : 1)
    );
    const next = async () => {
      for (let history = queue.shift(); history !== undefined; history = queue.shift()) {
        await this.#ask(url, history, report);
      }
    };
    await Promise.all(Array.from({ length: 4 }, next));
  }

  async #ask(url: string, history: Message[], report: ChatReport): Promise<void> {
    const id = randomUUID();
    report.requests += 1;
    report.ids.push(id);
    try {
      const response = await fetch(`${url}/v1/chat/completions`, {
        method: "POST",
        headers: { "content-type": "application/json", "x-request-id": id },
        body: JSON.stringify({
          model: this.#model,
          messages: history,
          stream: true,
          max_tokens: 8,
          stream_options: { include_usage: true },
        }),
      });
      const text = await response.text();
      if (response.status !== 200) {
        report.failed += 1;
        report.reasons.push(`chat ${response.status}: ${text.slice(0, 200)}`);
        return;
      }
      if (!text.endsWith("data: [DONE]\n\n")) {
        report.cut += 1;
        report.reasons.push(`chat stream ended after ${JSON.stringify(text.slice(-80))}`);
      }
      const usage = text.match(/"prompt_tokens":(\d+).*"cached_tokens":(\d+)/);
      report.promptTokens += Number(usage?.[1] ?? 0);
      report.cachedTokens += Number(usage?.[2] ?? 0);
    } catch (error) {
      report.cut += 1;
      report.reasons.push(`chat: ${error instanceof Error ? error.message : error}`);
      return;
    }
    history.push({ role: "assistant", content: "Certainly. ".repeat(4) });
    history.push({ role: "user", content: `And then? ${randomUUID()}` });
  }
}
