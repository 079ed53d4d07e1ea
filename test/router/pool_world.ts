/** A Baton with a pool of mock workers, as processes and sockets, for tests. */

import { type BatonProcess, startBatonProcess } from "../support/baton_process.ts";
import { EventPoster } from "../support/event_poster.ts";
import {
  type MockStats,
  type MockWorker,
  type MockWorkerOptions,
  startMockWorker,
} from "../support/mock_worker.ts";
import { inScratch } from "../support/scratch.ts";

export const MODEL = "org/model:one";

export interface WorkerStatus {
  readonly worker: string;
  readonly url: string;
  readonly healthy: boolean;
  readonly ready: boolean;
  readonly full: boolean;
  readonly leases: number;
  readonly load: { readonly requests: number };
  readonly lanes: readonly {
    readonly state: string;
    readonly cursor?: string;
    readonly blocks: number;
    readonly lastError?: string;
  }[];
}

export interface World {
  readonly baton: BatonProcess;
  readonly workers: MockWorker[];
  ask(body: Record<string, unknown>, init?: RequestInit): Promise<Response>;
  /** Per worker, what it has really done. */
  stats(): MockStats[];
  pool(): Promise<WorkerStatus[]>;
  /** The value of a metric's series, 0 if there is none. */
  metric(series: string): Promise<number>;
}

export interface PoolOptions {
  readonly worker?: Partial<MockWorkerOptions>;
  /** More of the pool's configuration; `workers` may replace the mock workers. */
  readonly pool?: Readonly<Record<string, unknown>>;
  /** Workers say nothing of what they hold. */
  readonly silent?: boolean;
  /** More keys of each worker. */
  readonly keys?: (n: number) => Readonly<Record<string, unknown>>;
  /** Workers that the test runs itself. */
  readonly extraWorkers?: readonly Readonly<Record<string, unknown>>[];
  readonly config?: Readonly<Record<string, unknown>>;
}

/** A Baton with a pool of `count` workers whose events come in over HTTP. */
export async function withPool(
  count: number,
  check: (world: World) => Promise<void>,
  options: PoolOptions = {},
): Promise<void> {
  await inScratch(async (folder) => {
    const posters: EventPoster[] = [];
    const workers: MockWorker[] = [];
    const sinks = Array.from(
      { length: count },
      () => ({ poster: undefined as EventPoster | undefined }),
    );
    for (const [n, sink] of sinks.entries()) {
      workers.push(
        await startMockWorker({
          id: `w${n}`,
          model: MODEL,
          decodeMsPerToken: 0,
          events: {
            stored: (parent, blocks) => sink.poster?.stored(parent, blocks),
            removed: (hashes) => sink.poster?.removed(hashes),
          },
          ...options.worker,
        }),
      );
    }
    const baton = await startBatonProcess(folder, {
      listen: { peer: "127.0.0.1:0" },
      services: {
        chat: {
          mount: "/v1",
          pool: {
            model: MODEL,
            workers: [
              ...workers.map(({ url }, n) => ({ id: `w${n}`, url, ...options.keys?.(n) })),
              ...options.extraWorkers ?? [],
            ],
            ...options.pool,
          },
        },
      },
      // Clients of the tests leave connections open that nobody reads any more.
      traffic: { limits: { lingerMs: 100 } },
      shutdown: { announceMs: 0 },
      ...options.config,
    });
    try {
      if (options.silent !== true) {
        for (const [n, sink] of sinks.entries()) {
          sink.poster = new EventPoster({
            worker: `w${n}`,
            model: MODEL,
            blockSize: 16,
            urls: [`${baton.peer}/events`],
          });
          posters.push(sink.poster);
        }
      }
      await check(worldOf(baton, workers));
    } finally {
      for (const poster of posters) poster.stop();
      await baton.stop();
      await Promise.all(workers.map((worker) => worker.close()));
    }
  });
}

export function worldOf(baton: BatonProcess, workers: MockWorker[]): World {
  return {
    baton,
    workers,
    ask: (body, init) =>
      fetch(`${baton.traffic}/v1/completions`, {
        method: "POST",
        body: JSON.stringify({ model: MODEL, max_tokens: 2, ...body }),
        ...init,
      }),
    stats: () => workers.map((worker) => worker.stats()),
    pool: async () => {
      const answer = await (await fetch(`${baton.admin}/api/v1/workers`)).json();
      return answer.workers;
    },
    metric: async (series) => {
      const text = await (await fetch(`${baton.admin}/metrics`)).text();
      const line = text.split("\n").find((one) => one.startsWith(`${series} `));
      return Number(line?.slice(series.length + 1) ?? 0);
    },
  };
}

/** `count` token ids in a row. */
export const tokens = (from: number, count: number): number[] =>
  Array.from({ length: count }, (_, n) => from + n);
