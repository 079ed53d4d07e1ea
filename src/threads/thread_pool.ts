/**
 * A pool inside a thread of the data path: the main thread chooses the worker, by what this thread
 * reads in the request's body; the bytes stay here.
 */

import type { Exchange, Forward } from "../proxy/exchange.ts";
import type { Service } from "../proxy/routes.ts";
import { NearBytes, type ReadingOptions } from "../router/pool_bytes.ts";
import type { AskedExchanges } from "./asked.ts";
import type { SharedService } from "./messages.ts";
import type { Replicas } from "./replicas.ts";

export interface ThreadPoolOptions {
  readonly shared: SharedService;
  readonly reading: ReadingOptions;
  readonly replicas: Replicas;
  readonly asked: AskedExchanges;
}

export class ThreadPool implements Service {
  readonly name: string;
  readonly mounts: readonly string[];
  readonly #options: ThreadPoolOptions;

  constructor(options: ThreadPoolOptions) {
    this.#options = options;
    this.name = options.shared.name;
    this.mounts = options.shared.mounts;
  }

  startHoldMs({ path }: Pick<Exchange, "path">): Promise<number> {
    return this.#options.asked.mayWait(path);
  }

  handle(exchange: Exchange, forward: Forward): Promise<void> {
    const { reading, replicas, asked } = this.#options;
    const bytes = new NearBytes(exchange, forward, reading);
    const readsFirst = exchange.method === "POST" &&
      replicas.service(this.name)?.readsFirst === true;
    return asked.askPool(exchange, forward, bytes, readsFirst);
  }
}
