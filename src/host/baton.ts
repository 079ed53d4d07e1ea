/**
 * The composition root: builds every room from one Config, hands the Runtime down, and brings all of
 * it up and down in order.
 */

import { messageOf } from "../errors.ts";
import type { LoadedConfig } from "../config/load.ts";
import { peerAddress } from "../config/rules.ts";
import { readSecret } from "../config/secret.ts";
import type { Config } from "../config/schema.ts";
import { createAdminApp } from "../http/admin.ts";
import { createPeerApp } from "../http/peer.ts";
import { createTrafficApp } from "../http/traffic.ts";
import { createLifecycle, type Lifecycle, shutDownHost } from "../lifecycle/mod.ts";
import type { ShutdownReport } from "../lifecycle/mod.ts";
import { EventJournal } from "../observe/events.ts";
import type { Log } from "../observe/log.ts";
import { createMetrics, type Metrics } from "../observe/metrics.ts";
import { observeProcess } from "../observe/process_metrics.ts";
import type { TrafficServer } from "../proxy/traffic.ts";
import {
  type Address,
  type HttpServer,
  isDiskFull,
  type Runtime,
  type ServerTls,
} from "../runtime/runtime.ts";
import { stopGraceMs } from "../supervisor/stop_grace.ts";
import { BATON_VERSION } from "../version.ts";
import { serveApp } from "./listeners.ts";
import { type Ownership, takeOwnership } from "./owner.ts";
import { type HostedServices, hostServices } from "./services.ts";
import { TlsFiles, type TlsTexts } from "./tls_files.ts";
import { hostTraffic } from "./traffic.ts";
import { readUiFiles } from "./ui_files.ts";

export interface Baton {
  readonly lifecycle: Lifecycle;
  readonly events: EventJournal;
  /** Where the listeners are in fact, ports that the system chose included. */
  readonly addresses: {
    readonly traffic: Address;
    readonly admin: Address;
    readonly peer?: Address;
  };
  /** Goes down in order; the same promise however often it is called. */
  shutDown(): Promise<ShutdownReport>;
  /** Goes down now, also when it is going down in order already. */
  force(): Promise<ShutdownReport>;
}

/** Starts everything. Throws when a listener or a service cannot be; nothing is left running then. */
export async function startBaton(
  runtime: Runtime,
  log: Log,
  loaded: LoadedConfig,
): Promise<Baton> {
  const host = new Host(runtime, log, loaded.config);
  try {
    await host.start();
  } catch (error) {
    await host.force();
    throw error;
  }
  return host;
}

/**
 * How long the peer listener's exchanges may go on once no dump is being read from it. Workers that
 * post their events in one request without an end would keep us for ever.
 */
const LAST_PEERS_MS = 5000;
/** How long the admin listener's last answers may take to leave, once everything else is down. */
const LAST_ANSWERS_MS = 500;

const NO_SERVICES: HostedServices = { list: [], kv: undefined, start: () => {} };

class Host implements Baton {
  readonly lifecycle: Lifecycle;
  readonly #runtime: Runtime;
  readonly #log: Log;
  readonly #config: Config;
  readonly #metrics: Metrics;
  readonly #ending = new AbortController();
  #services: HostedServices = NO_SERVICES;
  /** Undone in reverse at the end. */
  readonly #undo: (() => void | Promise<void>)[] = [];
  #events: EventJournal;
  #traffic: TrafficServer | undefined;
  #admin: HttpServer | undefined;
  #peer: HttpServer | undefined;
  #shutdown: Promise<ShutdownReport> | undefined;

  constructor(runtime: Runtime, log: Log, config: Config) {
    this.#runtime = runtime;
    this.#log = log;
    this.#config = config;
    this.#metrics = createMetrics();
    this.#events = EventJournal.inMemory({ runtime, log });
    this.lifecycle = createLifecycle({
      clock: runtime.clock,
      log,
      announceMs: config.shutdown.announceMs,
      waitForAvailable: true,
    });
  }

  get events(): EventJournal {
    return this.#events;
  }

  get addresses(): Baton["addresses"] {
    const { listen } = this.#config;
    const peer = this.#peer?.address;
    return {
      traffic: this.#traffic?.address ?? listen.traffic,
      admin: this.#admin?.address ?? listen.admin,
      ...(peer === undefined ? {} : { peer }),
    };
  }

  // ------------------------------------------------------------------------------- the way up

  async start(): Promise<void> {
    await this.#openState();
    this.#observe();
    await this.#buildServices();
    await this.#listen();
    this.#services.start();
  }

  async #openState(): Promise<void> {
    const runtime = this.#runtime;
    const { stateDir, events } = this.#config;
    const owner = await takeFolder(runtime, this.#log, stateDir);
    this.#undo.push(() => owner.release());
    if (owner.other !== undefined) {
      // Two replicas of one program may share a folder while one hands over to the other.
      this.#log.warn("state_folder_shared", { folder: stateDir, with: owner.other });
    }
    this.#events = await EventJournal.open({
      runtime,
      log: this.#log,
      keep: events.keep,
      maxFileBytes: events.maxFileBytes,
      ...(owner.other === undefined ? { folder: `${stateDir}/events` } : {}),
    });
    this.#undo.push(() => this.#events.close());
  }

  #observe(): void {
    const { lifecycle } = this;
    this.#undo.push(observeProcess(this.#runtime, this.#metrics));
    this.#undo.push(
      lifecycle.onChange((to, from) => void this.#events.emit("host_state", { from, to })),
    );
    this.#metrics.gauge("baton_ready", "1 while this Baton is ready for new work.")
      .collect((gauge) => gauge.set(lifecycle.ready ? 1 : 0));
    this.#metrics.gauge("baton_inflight", "Exchanges that were let in and have not ended.")
      .collect((gauge) => gauge.set(lifecycle.inflight));
    this.#metrics.gauge("baton_host_state", "1 for the state that the host is in.", ["state"])
      .collect((gauge) => gauge.set(1, { state: lifecycle.state }));
    lifecycle.reportTargets(() => this.#services.list.flatMap((service) => service.targets()));
  }

  async #buildServices(): Promise<void> {
    const services = await hostServices({
      runtime: this.#runtime,
      log: this.#log,
      metrics: this.#metrics,
      events: this.#events,
      lifecycle: this.lifecycle,
      config: this.#config,
    });
    this.#services = services;
    this.#undo.push(() => services.kv?.stop());
  }

  async #listen(): Promise<void> {
    const runtime = this.#runtime;
    const log = this.#log;
    const { listen } = this.#config;
    this.#admin = await serveApp(runtime, log, {
      name: "admin",
      address: listen.admin,
      app: await this.#adminApp(),
    });
    const peer = peerAddress(this.#config);
    if (peer !== undefined) await this.#listenToPeers(peer);
    const app = createTrafficApp({
      log,
      lifecycle: this.lifecycle,
      versions: () => this.#services.list.flatMap((one) => one.health ?? []),
    });
    const hosted = await hostTraffic({
      runtime,
      log,
      metrics: this.#metrics,
      lifecycle: this.lifecycle,
      config: this.#config,
      services: this.#services.list,
      appFetch: (request) => app.fetch(request),
    });
    this.#traffic = hosted.server;
    this.#undo.push(() => hosted.close());
    // From the first moment of a drain answers end their connections, so that clients come back
    // by way of their balancer.
    this.#undo.push(this.lifecycle.onChange(() => {
      if (this.lifecycle.draining) this.#traffic?.drain();
    }));
  }

  async #listenToPeers(address: Address): Promise<void> {
    const { cert, key, ca } = this.#config.replica?.tls ?? {};
    const files = cert === undefined || key === undefined ? undefined : await TlsFiles.open({
      runtime: this.#runtime,
      log: this.#log,
      metrics: this.#metrics,
      conditions: this.lifecycle.conditions,
      listener: "peer",
      cert,
      key,
      ca,
    });
    const server = await serveApp(this.#runtime, this.#log, {
      name: "peer",
      address,
      app: this.#peerApp(),
      tls: files === undefined ? undefined : serverTls(files.texts),
    });
    this.#peer = server;
    files?.watch((texts) => server.replaceTls?.(serverTls(texts)));
    this.#undo.push(() => files?.close());
  }

  async #adminApp() {
    const { token } = this.#config.admin;
    return createAdminApp({
      log: this.#log,
      clock: this.#runtime.clock,
      lifecycle: this.lifecycle,
      metrics: this.#metrics,
      events: this.#events,
      version: BATON_VERSION,
      ...(token === undefined ? {} : { readToken: () => readSecret(this.#runtime, token) }),
      versions: () => this.#services.list.flatMap((one) => one.operator ?? []),
      workers: () => this.#services.list.flatMap((one) => one.workers?.() ?? []),
      peers: () => this.#services.kv?.peers() ?? [],
      recovery: () => this.#services.kv?.recovery() ?? { state: "recovery_disabled" },
      ui: await readUiFiles(this.#runtime.files),
      ending: this.#ending.signal,
    });
  }

  #peerApp() {
    const token = this.#config.replica?.token;
    return createPeerApp({
      log: this.#log,
      lifecycle: this.lifecycle,
      ...(token === undefined ? {} : { readToken: () => readSecret(this.#runtime, token) }),
      apps: this.#services.kv?.apps ?? [],
    });
  }

  // ----------------------------------------------------------------------------- the way down

  shutDown(): Promise<ShutdownReport> {
    this.#shutdown ??= this.#goDown();
    return this.#shutdown;
  }

  force(): Promise<ShutdownReport> {
    this.lifecycle.force();
    return this.shutDown();
  }

  async #goDown(): Promise<ShutdownReport> {
    const beganMs = this.#runtime.clock.monotonic();
    const { services, shutdown } = this.#config;
    const graces = Object.values(services).flatMap(({ versions }) =>
      versions === undefined ? [] : [stopGraceMs(versions)]
    );
    const report = await shutDownHost({
      lifecycle: this.lifecycle,
      clock: this.#runtime.clock,
      log: this.#log,
      parts: this.#services.list.map((service) => service.part),
      listeners: {
        close: async () => {
          const dumpsUntilMs = beganMs + shutdown.budgetMs - LAST_PEERS_MS;
          await Promise.all([this.#traffic?.close(), this.#closePeer(dumpsUntilMs)]);
        },
        destroy: async () => {
          this.#traffic?.destroy();
          await this.#peer?.destroy();
        },
      },
      budgetMs: shutdown.budgetMs,
      childGraceMs: Math.max(0, ...graces),
    });
    this.#events.emit("host_stopped", { ...report });
    // Operators could watch until here, and read the last event.
    this.#ending.abort();
    await this.#closeWithin(this.#admin, LAST_ANSWERS_MS);
    for (const undo of this.#undo.reverse()) {
      try {
        await undo();
      } catch (error) {
        this.#log.error("shutdown_step_failed", { step: "undo", part: "host", error });
      }
    }
    return report;
  }

  /**
   * Whoever is reading a dump may read it to its end, within the budget: we may be the only one that
   * has the index. Everything else on the peer listener has a few seconds.
   */
  async #closePeer(dumpsUntilMs: number): Promise<void> {
    const closing = this.#peer?.close();
    const leftMs = Math.max(0, dumpsUntilMs - this.#runtime.clock.monotonic());
    await this.#within(Promise.race([closing, this.#services.kv?.dumpsEnd()]), leftMs);
    await this.#closeWithin(this.#peer, LAST_PEERS_MS);
  }

  /** Lets a listener's last answers leave for so long, then cuts them. */
  async #closeWithin(server: HttpServer | undefined, ms: number): Promise<void> {
    if (server === undefined) return;
    await this.#within(server.close(), ms);
    await server.destroy();
  }

  async #within(work: Promise<unknown>, ms: number): Promise<void> {
    let cancel = (): void => {};
    const late = new Promise<void>((resolve) => {
      cancel = this.#runtime.clock.after(ms, resolve);
    });
    await Promise.race([work, late]);
    cancel();
  }
}

/** With an authority, callers must show a certificate of it. */
function serverTls({ cert, key, ca }: TlsTexts): ServerTls {
  return { cert, key, clientCa: ca };
}

/**
 * Makes the state folder and takes it. Throws an Error that names the key when it cannot be used; a
 * full disk is no reason: what runs from it goes on.
 */
async function takeFolder(runtime: Runtime, log: Log, stateDir: string): Promise<Ownership> {
  try {
    await runtime.files.makeFolder(stateDir).catch((error: unknown) => {
      if (!isDiskFull(error)) throw error;
      log.error("state_folder_not_made", { folder: stateDir, error });
    });
    return await takeOwnership(runtime, log, stateDir);
  } catch (error) {
    const why = messageOf(error);
    throw new Error(`stateDir = ${stateDir}: ${why}`, { cause: error });
  }
}
