/**
 * Load as a client sees it: requests at a steady rate over keep-alive connections, token streams
 * beside them, and a count of everything that went wrong.
 *
 * A request is `failed` when it got no whole answer with a 2xx status. A stream is `cut` when it
 * began and did not come to its own last event. Nothing is retried: one failure is one failure.
 */

import { Agent, type IncomingMessage, request as httpRequest } from "node:http";

export interface LoadOptions {
  /** What is asked; called for each request, with a counter. */
  readonly request: (n: number) => RequestShape;
  readonly requestsPerS: number;
  /** What a stream asks for; streams are started again as they end. */
  readonly stream?: (n: number) => RequestShape;
  readonly streams?: number;
  /** The text that is in the last event of a stream that was not cut. */
  readonly streamEnd?: string;
  /** Told of each wait for a whole answer or for the next event, instants of `performance.now()`. */
  readonly onWait?: (kind: "answer" | "event", from: number, to: number) => void;
}

export interface RequestShape {
  readonly url: string;
  readonly method?: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string;
}

export interface LoadReport {
  requests: number;
  streams: number;
  /** Events that streams received. */
  events: number;
  failed: number;
  cut: number;
  /** The longest time in which requests were due and none was answered, milliseconds. */
  longestGapMs: number;
  /** The longest wait for one whole answer, or for the next event of a stream, milliseconds. */
  longestStallMs: number;
  /** The first few failures in words. */
  readonly reasons: string[];
  /** Milliseconds from request to whole answer, each request. */
  readonly latenciesMs: number[];
}

export interface Load {
  readonly report: LoadReport;
  /** Stops sending, waits for everything under way (streams too), and gives the last report. */
  stop(): Promise<LoadReport>;
}

/** Starts the load; it runs until `stop`. */
export function startLoad(options: LoadOptions): Load {
  const report: LoadReport = {
    requests: 0,
    streams: 0,
    events: 0,
    failed: 0,
    cut: 0,
    longestGapMs: 0,
    longestStallMs: 0,
    reasons: [],
    latenciesMs: [],
  };
  const agent = new Agent({ keepAlive: true, maxSockets: Infinity });
  const underWay = new Set<Promise<void>>();
  let stopping = false;
  let lastAnswerAt = performance.now();

  const track = (work: Promise<void>) => {
    underWay.add(work);
    work.finally(() => underWay.delete(work));
  };
  const note = (kind: "failed" | "cut", reason: string) => {
    report[kind] += 1;
    if (report.reasons.length < 20) report.reasons.push(`${kind}: ${reason}`);
  };

  async function oneRequest(n: number): Promise<void> {
    const shape = options.request(n);
    const start = performance.now();
    report.requests += 1;
    try {
      const response = await send(shape, agent);
      for await (const _chunk of response) { /* the whole body must come */ }
      const status = response.statusCode ?? 0;
      if (!response.complete) throw new Error("the answer ended short");
      if (status < 200 || status > 299) throw new Error(`status ${status}`);
    } catch (error) {
      note("failed", `${shape.method ?? "GET"} ${shape.url}: ${messageOf(error)}`);
      return;
    }
    const end = performance.now();
    report.latenciesMs.push(end - start);
    report.longestStallMs = Math.max(report.longestStallMs, end - start);
    options.onWait?.("answer", start, end);
    report.longestGapMs = Math.max(report.longestGapMs, end - lastAnswerAt);
    lastAnswerAt = end;
  }

  async function oneStream(n: number, shape: RequestShape): Promise<void> {
    report.streams += 1;
    let last = performance.now();
    let tail = "";
    try {
      const response = await send(shape, agent);
      const status = response.statusCode ?? 0;
      if (status !== 200) return note("failed", `stream ${n} ${shape.url}: status ${status}`);
      for await (const chunk of response) {
        const now = performance.now();
        report.longestStallMs = Math.max(report.longestStallMs, now - last);
        options.onWait?.("event", last, now);
        last = now;
        const text = tail + String(chunk);
        report.events += text.split("\n\n").length - 1;
        tail = text.slice(-200);
        if (tail.endsWith("\n\n")) tail = tail.slice(tail.lastIndexOf("\n\n", tail.length - 3) + 2);
      }
      const ended = response.complete && tail.includes(options.streamEnd ?? "[DONE]");
      if (!ended) note("cut", `stream ${n} ${shape.url}: ended after ...${JSON.stringify(tail)}`);
    } catch (error) {
      note("cut", `stream ${n} ${shape.url}: ${messageOf(error)}`);
    }
  }

  async function streamSlot(slot: number): Promise<void> {
    const { stream } = options;
    if (stream === undefined) return;
    for (let n = slot; !stopping; n += options.streams ?? 1) await oneStream(n, stream(n));
  }

  const start = performance.now();
  let sent = 0;
  const timer = setInterval(() => {
    const due = Math.floor((performance.now() - start) / 1000 * options.requestsPerS);
    while (sent < due) track(oneRequest(sent++));
  }, Math.max(1, Math.floor(1000 / options.requestsPerS)));
  for (let slot = 0; slot < (options.streams ?? 0); slot += 1) track(streamSlot(slot));

  return {
    report,
    async stop() {
      stopping = true;
      clearInterval(timer);
      while (underWay.size > 0) await Promise.all(underWay);
      agent.destroy();
      return report;
    },
  };
}

function send(shape: RequestShape, agent: Agent): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    const outgoing = httpRequest(shape.url, {
      method: shape.method ?? "GET",
      agent,
      headers: {
        ...shape.headers,
        ...(shape.body === undefined ? {} : { "content-length": Buffer.byteLength(shape.body) }),
      },
    });
    outgoing.on("response", (response) => resolve(response));
    outgoing.on("error", reject);
    outgoing.end(shape.body);
  });
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
