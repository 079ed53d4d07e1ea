/** Starts the libzmq end of an interoperability test, always on Node. */
import { Buffer } from "node:buffer";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

type Answer = Record<string, unknown>;

export class Libzmq {
  readonly #child;
  readonly #waiting: {
    key: string;
    resolve: (answer: Answer) => void;
    reject: (e: Error) => void;
  }[] = [];
  readonly asked: Uint8Array[][] = [];

  constructor() {
    const root = fileURLToPath(new URL("../..", import.meta.url));
    this.#child = spawn(`${root}node_modules/.bin/node`, [`${root}test/support/libzmq_peer.mjs`], {
      stdio: ["pipe", "pipe", "inherit"],
      cwd: root,
    });
    createInterface({ input: this.#child.stdout }).on("line", (line) => {
      this.#heard(JSON.parse(line) as Answer);
    });
  }

  /** Opens a socket; returns its endpoint, the real port filled in. */
  async open(
    type: "PUB" | "SUB" | "DEALER" | "ROUTER",
    id: string,
    endpoint: string,
    options: { bind?: boolean; subscribe?: string; options?: Record<string, unknown> } = {},
  ): Promise<string> {
    const answer = await this.#ask("opened", { open: type, id, endpoint, ...options });
    return String(answer["endpoint"]);
  }

  async send(id: string, frames: readonly Uint8Array[], count?: number): Promise<void> {
    await this.#ask("sent", {
      send: id,
      frames: frames.map(base64),
      ...(count === undefined ? {} : { count }),
    });
  }

  /** From now on a ROUTER answers each request with these messages. */
  async echo(id: string, answers: readonly (readonly Uint8Array[])[]): Promise<void> {
    await this.#ask("echoing", { echo: id, answers: answers.map((one) => one.map(base64)) });
  }

  async receive(id: string, count: number): Promise<Uint8Array[][]> {
    const answer = await this.#ask("received", { receive: id, count });
    return (answer["messages"] as string[][]).map((frames) => frames.map(fromBase64));
  }

  async close(id: string): Promise<void> {
    await this.#ask("closed", { close: id });
  }

  /** Ends the process; `isHard` as a crash does. */
  async stop(isHard = false): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const ended = new Promise((resolve) => this.#child.once("exit", resolve));
    if (isHard) this.#child.kill("SIGKILL");
    else this.#child.stdin.end();
    await ended;
  }

  #ask(key: string, command: Answer): Promise<Answer> {
    this.#child.stdin.write(JSON.stringify(command) + "\n");
    return new Promise((resolve, reject) => this.#waiting.push({ key, resolve, reject }));
  }

  #heard(answer: Answer): void {
    if (Array.isArray(answer["frames"])) {
      this.asked.push((answer["frames"] as string[]).map(fromBase64));
      return;
    }
    const at = this.#waiting.findIndex(({ key }) => key in answer || "error" in answer);
    const waiting = this.#waiting[at];
    if (waiting === undefined) return;
    this.#waiting.splice(at, 1);
    if ("error" in answer) waiting.reject(new Error(String(answer["error"])));
    else waiting.resolve(answer);
  }
}

function base64(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString("base64");
}

function fromBase64(text: string): Uint8Array {
  return new Uint8Array(Buffer.from(text, "base64"));
}
