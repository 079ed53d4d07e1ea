/**
 * Turns a prepared generation into a running process, and cleans up after it.
 *
 * The check that it may still start and the fork happen in one turn; the generation is in the set of
 * all generations before that. So when a shutdown begins, a child was either forked (and is stopped
 * with the rest) or never will be.
 */

import { messageOf } from "../errors.ts";
import { asksFor, type VersionsConfig } from "../config/versions.ts";
import type { Log } from "../observe/log.ts";
import type { Runtime } from "../runtime/runtime.ts";
import { childCommand } from "./child_env.ts";
import { CHILD_VARIABLE, type Children } from "./children.ts";
import { RolloutFailure } from "./failure.ts";
import type { Generation } from "./generation.ts";
import type { Generations } from "./generations.ts";
import { PortComplaint, strangerOn } from "./port_clash.ts";
import { type PortPool, PortsExhausted } from "./ports.ts";
import { predecessorsOf } from "./predecessors.ts";
import { SupervisedProcess } from "./process.ts";
import { CalledOff } from "./wait.ts";

/** Takes a child's output, a chunk at a time, and must never block. */
export interface OutputSink {
  write(stream: "stdout" | "stderr", chunk: Uint8Array): void;
  close(): void;
}

export interface LauncherOptions {
  readonly runtime: Runtime;
  readonly log: Log;
  readonly config: VersionsConfig;
  readonly ports: PortPool;
  readonly children: Children;
  /** All generations: a new one is told where those before it are. */
  readonly generations: Pick<Generations, "of">;
  /** `<dataDir>` of the service; each version has its own folder below. */
  readonly dataDir: string;
  readonly output: (generation: Generation) => OutputSink;
  /** False once the service is going down: nothing starts any more. */
  readonly mayStart: () => boolean;
  /** SIGTERM to SIGKILL. */
  readonly stopGraceMs: number;
}

export class Launcher {
  readonly #options: LauncherOptions;

  constructor(options: LauncherOptions) {
    this.#options = options;
  }

  /**
   * Starts the generation's process; resolves when it runs. Throws RolloutFailure when it cannot be
   * run, CalledOff when it was asked to go before it started. Either way nothing is left of it.
   */
  async launch(generation: Generation): Promise<void> {
    const { runtime, config, children, generations, dataDir } = this.#options;
    try {
      await this.#assignPorts(generation);
      const folder = `${dataDir}/${generation.version}`;
      await runtime.files.makeFolder(folder, 0o755);
      const { build } = generation;
      const command = childCommand(config, runtime.env(), {
        name: generation.version,
        binary: build.binary,
        folder: build.folder,
        dataDir: folder,
        port: generation.port as number,
        ...(generation.adminPort === undefined ? {} : { adminPort: generation.adminPort }),
        ...(generation.peerPort === undefined ? {} : {
          peerPort: generation.peerPort,
          predecessors: predecessorsOf(generation, generations.of(generation.version)),
        }),
        buildId: build.buildId,
        ...(build.ha === undefined ? {} : { ha: build.ha }),
      });
      const mark = children.mark(generation.version, generation.number);
      const sink = this.#options.output(generation);
      const complaint = new PortComplaint();
      // From here to the fork there is no await.
      if (!generation.mayStart || !this.#options.mayStart()) {
        sink.close();
        throw new CalledOff("asked to go before it started");
      }
      generation.move("starting", "launched");
      const child = await runtime.processes.spawn({
        command: command.command,
        args: command.args,
        env: { ...command.env, [CHILD_VARIABLE]: mark },
        onOutput: (stream, chunk) => {
          sink.write(stream, chunk);
          if (generation.phase === "starting") complaint.read(chunk);
        },
      }).catch((error: unknown) => {
        sink.close();
        throw new RolloutFailure("crash", `cannot be run: ${messageOf(error)}`, { cause: error });
      });
      this.#adopt(
        generation,
        new SupervisedProcess({
          child,
          clock: runtime.clock,
          onMove: (from, to, cause) =>
            this.#options.log.debug("process_moved", {
              version: generation.version,
              generation: generation.number,
              pid: child.pid,
              from,
              to,
              cause,
            }),
        }),
        sink,
        complaint,
      );
    } catch (error) {
      if (generation.process === undefined) {
        this.#releasePorts(generation);
        generation.lastError = messageOf(error);
        generation.move("stopped", messageOf(error));
      }
      throw error instanceof PortsExhausted
        ? new RolloutFailure("transient", error.message, { cause: error })
        : error;
    }
    // It was asked to go while it was being forked: whoever asked waits for it to be reaped.
    if (!generation.mayStart) {
      generation.process?.stop(this.#options.stopGraceMs);
      throw new CalledOff("asked to go while it started");
    }
  }

  async #assignPorts(generation: Generation): Promise<void> {
    const { config, ports } = this.#options;
    generation.port = await ports.assign();
    if (generation.build.adminApi || asksFor(config, "adminPort")) {
      generation.adminPort = await ports.assign();
    }
    if (asksFor(config, "peerPort")) generation.peerPort = await ports.assign();
  }

  #releasePorts({ port, adminPort, peerPort }: Generation): void {
    for (const one of [port, adminPort, peerPort]) this.#options.ports.release(one);
  }

  /**
   * Why a child that has not served yet may not have got its ports: somebody else listens on one, or
   * it said so itself; undefined if neither. Asked while its ports are still its own in the pool.
   */
  async clash(
    generation: Generation,
    complaint?: PortComplaint,
  ): Promise<string | undefined> {
    const { children, runtime } = this.#options;
    const group = generation.process?.pid;
    if (group === undefined) return undefined;
    if (complaint?.heard === true) return "the child said that its address is in use";
    const owner = {
      group,
      mark: children.mark(generation.version, generation.number),
      startTime: await runtime.processes.startTime(group),
    };
    for (const port of [generation.port, generation.adminPort, generation.peerPort]) {
      if (port === undefined) continue;
      const stranger = await strangerOn(runtime, port, owner);
      if (stranger !== undefined) return `process ${stranger} listens on port ${port}`;
    }
    return undefined;
  }

  #adopt(
    generation: Generation,
    process: SupervisedProcess,
    sink: OutputSink,
    complaint: PortComplaint,
  ): void {
    const { children, log } = this.#options;
    generation.process = process;
    const recorded = children.add(generation);
    process.exited.then(async (result) => {
      sink.close();
      generation.exit = result;
      if (!result.natural) generation.move("stopping", "asked to end");
      else if (generation.phase === "starting") {
        generation.portClash = await this.clash(generation, complaint).catch(() => undefined);
      }
      this.#releasePorts(generation);
      log.info("child_exited", {
        version: generation.version,
        generation: generation.number,
        pid: process.pid,
        ...result,
      });
      generation.move("stopped", describeExit(result));
      await recorded;
      await children.remove(generation.version, generation.number);
    });
  }
}

/** `exit code 3`, `signal SIGKILL`, ... */
function describeExit(exit: { readonly code?: number; readonly signal?: string }): string {
  return exit.signal === undefined
    ? `exit code ${exit.code ?? "unknown"}`
    : `signal ${exit.signal}`;
}
