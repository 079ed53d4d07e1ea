/**
 * Everything that Baton asks of the machine, as one record of functions.
 *
 * `node.ts` and `deno.ts` each build one; `main.ts` picks one and hands it down. No file outside
 * this folder names `Deno`, imports `node:*` or a package that does, so that a test can hand in
 * another record (a virtual clock, a failing disk) and everything above runs unchanged.
 *
 * One file of about 400 lines, so that all that the machine is asked for is seen together.
 */

import type { Threads } from "./threads_contract.ts";
import type { Tls } from "./tls_contract.ts";

export interface Runtime {
  readonly name: "node" | "deno";
  /** The version of the runtime itself, for the start-up log line. */
  readonly version: string;
  readonly pid: number;
  /** Arguments after the program's own name. */
  readonly args: readonly string[];
  /** A copy of the process environment. */
  env(): Record<string, string>;
  readonly clock: Clock;
  readonly random: Random;
  readonly files: Files;
  readonly net: Net;
  readonly dns: Dns;
  readonly processes: Processes;
  readonly http: Http;
  readonly tls: Tls;
  readonly threads: Threads;
  readonly wire: Wire;
  /**
   * Writes a whole line to standard output or standard error, synchronously in effect. False: not all
   * of it could be written (a full disk, a reader that has gone or does not read).
   */
  print(stream: "stdout" | "stderr", line: string): boolean;
  /**
   * The same, but within 5 ms and together with other lines; order is kept among all lines of a stream,
   * and none is lost when the process exits, unless by SIGKILL.
   */
  printSoon(stream: "stdout" | "stderr", line: string): void;
  /** Writes what still waits from `printSoon`: a thread that is terminated has no exit of its own. */
  flushPrinted(): void;
  /** Calls `listener` each time this process gets the signal; the returned function stops it. */
  onSignal(signal: Signal, listener: () => void): () => void;
  exit(code: number): never;
}

export type Signal = "SIGTERM" | "SIGINT" | "SIGHUP" | "SIGKILL" | "SIGUSR1" | "SIGUSR2";

/** Time. All durations in Baton come from `monotonic`, all printed instants from `now`. */
export interface Clock {
  /** Milliseconds since 1970, wall clock. */
  now(): number;
  /** Milliseconds from an arbitrary start; never goes back. */
  monotonic(): number;
  /** Runs `action` once after `delayMs`; the returned function cancels it. Keeps the process alive. */
  after(delayMs: number, action: () => void): () => void;
}

export interface Random {
  /** A float in [0, 1). */
  number(): number;
  /** A random UUID, lower case. */
  uuid(): string;
  bytes(length: number): Uint8Array;
}

// ---------------------------------------------------------------------------------------- files

export interface FileInfo {
  readonly kind: "file" | "folder" | "link" | "other";
  readonly size: number;
  readonly mtimeMs: number;
  readonly inode: number;
  /** Permission bits, e.g. 0o755. */
  readonly mode: number;
}

export interface Files {
  /** Reads a whole file. Throws `FileMissing` if there is none. */
  read(path: string): Promise<Uint8Array>;
  readText(path: string): Promise<string>;
  /** Streams a file from `start` (byte offset). */
  stream(path: string, start?: number): Promise<ReadableStream<Uint8Array>>;
  /**
   * Writes through a temporary file in the same folder (`.<name>.<uuid>.tmp`, which a crash may leave
   * behind), fsync, rename, fsync of the folder: after a crash the path holds either the old bytes or
   * the new ones. `mode` is exact, whatever the umask. A link at the path is replaced, not followed.
   */
  writeAtomic(path: string, bytes: Uint8Array | string, mode?: number): Promise<void>;
  /** Opens for writing (created, truncated unless `append`). The caller closes it. */
  openWrite(
    path: string,
    options?: { append?: boolean; mode?: number },
  ): Promise<FileWriter>;
  /** Streaming SHA-256 of a file, lower-case hex. */
  sha256(path: string): Promise<string>;
  /** A SHA-256 over bytes that pass by (a download is hashed while it is written). */
  hasher(): Sha256;
  /** undefined when there is nothing at the path; does not follow a last link. */
  info(path: string): Promise<FileInfo | undefined>;
  list(folder: string): Promise<string[]>;
  /** Creates a folder with its parents; no error if it exists. */
  makeFolder(path: string, mode?: number): Promise<void>;
  rename(from: string, to: string): Promise<void>;
  /** Copies bytes into a new file and fsyncs it. */
  copy(from: string, to: string, mode?: number): Promise<void>;
  /** Removes a file, or a folder with all it holds; no error if absent. */
  remove(path: string): Promise<void>;
  chmod(path: string, mode: number): Promise<void>;
  symlink(target: string, path: string): Promise<void>;
  syncFolder(path: string): Promise<void>;
  /**
   * Calls `changed` (debounced by the caller) after something at or in the path changed. The path may
   * be missing, be replaced by a rename, or be a link into a folder that is swapped. Never throws.
   */
  watch(path: string, changed: () => void): () => void;
  /**
   * Locks a folder against other processes: also against those of other containers, as long as one
   * kernel runs them. The kernel holds the lock, on the folder itself: nothing is written, and it ends
   * with this process, however that ends. A process may lock the same folder several times.
   */
  lockFolder(path: string): Promise<FolderLock>;
}

export type FolderLock =
  | { readonly kind: "locked"; release(): void }
  /** Another process has it. */
  | { readonly kind: "held" }
  /** It cannot be known: such locks do not work there. The reason is for people. */
  | { readonly kind: "unavailable"; readonly reason: string };

/** A running SHA-256. After `hex` it is used up. */
export interface Sha256 {
  update(bytes: Uint8Array): void;
  /** Lower-case hex. */
  hex(): string;
}

export interface FileWriter {
  write(bytes: Uint8Array): Promise<void>;
  sync(): Promise<void>;
  close(): Promise<void>;
}

// ---------------------------------------------------------------------------------- child processes

export interface SpawnOptions {
  readonly command: string;
  readonly args: readonly string[];
  /** The whole environment of the child: nothing is inherited besides this. */
  readonly env: Readonly<Record<string, string>>;
  readonly cwd?: string;
  /**
   * Called with each chunk of output. The adapter always reads both pipes, so that a child can never
   * block on them; the callback must not block either.
   */
  readonly onOutput?: (stream: "stdout" | "stderr", chunk: Uint8Array) => void;
}

export interface ProcessExit {
  /** The exit code, or undefined if a signal ended it. */
  readonly code?: number;
  readonly signal?: string;
}

/** A child in a process group of its own (its pid is the group's id). */
export interface ChildProcess {
  readonly pid: number;
  /**
   * Resolves after the child was reaped and its pipes ended, or were given up since a grandchild holds
   * them (quiet for 250 ms, or 2 s after the exit). Never rejects.
   */
  readonly exited: Promise<ProcessExit>;
  /** Signals the whole group, also after the leader's exit; false if no process of it is left. */
  signalGroup(signal: Signal): boolean;
}

export interface Processes {
  /**
   * A command without a slash is looked up in the PATH of `env`. Throws `FileMissing` (the program or
   * the working folder) or `NotExecutable`; the system's own error when it is short of something.
   */
  spawn(options: SpawnOptions): Promise<ChildProcess>;
  /**
   * Runs to the end and keeps the first `maxOutputBytes` (1 MiB unless given) of each output; kills the
   * group at the timeout. What the program leaves running in its group is killed when it ends.
   */
  run(
    options: SpawnOptions & { readonly timeoutMs: number; readonly maxOutputBytes?: number },
  ): Promise<ProcessExit & { stdout: string; stderr: string; timedOut: boolean }>;
  /**
   * The start time of a live process in clock ticks since boot (field 22 of /proc/pid/stat), which
   * together with the pid names one process for ever; undefined if there is none (or a zombie).
   */
  startTime(pid: number): Promise<string | undefined>;
  /** Signals a group that this process did not spawn (an orphan of an earlier Baton). */
  signalGroup(pid: number, signal: Signal): boolean;
  /**
   * The live processes of a group. Empty is the proof that a group has ended: where nobody reaps
   * orphans (a container whose pid 1 does not), zombies keep `signalGroup` true for ever.
   */
  groupMembers(pid: number): Promise<number[]>;
  /**
   * The processes that listen on a TCP port; empty if there are none, or the system does not tell.
   * `guess` is looked at first, and the answer is that alone if it listens.
   */
  portHolders(port: number, guess?: number): Promise<number[]>;
}

// -------------------------------------------------------------------------------------- sockets

/** Where to listen or connect: TCP (IPv4, or IPv6 without brackets), or a unix socket. */
export type Address =
  | { readonly kind: "tcp"; readonly host: string; readonly port: number }
  | { readonly kind: "unix"; readonly path: string };

/** What a socket tells its owner. Exactly one `close` comes, and it comes last. */
export interface SocketHandlers {
  /** The chunk may be reused by the adapter after the call returns: copy what must live longer. */
  data(chunk: Uint8Array): void;
  /** The other side sent FIN; we may still write (half-open). */
  end(): void;
  /** The write buffer fell below the mark after a `write` that returned false. */
  drain(): void;
  /** `error` is undefined when both sides ended in good order or we destroyed it. */
  close(error?: Error): void;
}

export interface ByteSocket {
  readonly remoteAddress: string;
  readonly remotePort: number;
  readonly localPort: number;
  /** Must be called in the same turn in which the socket was handed out. */
  handle(handlers: SocketHandlers): void;
  /**
   * Queues bytes (a string is written as latin1); ignored after `end` or `destroy`. False = the buffer is above the high-water mark:
   * stop and wait for `drain`. The bytes are copied or kept: the caller must not change them.
   */
  write(data: Uint8Array | string): boolean;
  /**
   * Queues up to three pieces as one write: text before, bytes, text after (empty text is left out).
   * The bytes are copied before the call returns, so they may be a view of a reused buffer.
   */
  writeAround(before: string, bytes: Uint8Array, after: string): boolean;
  /** Bytes accepted by `write` and not yet taken by the kernel. At 0 all of them are the caller's again. */
  readonly pendingBytes: number;
  pause(): void;
  resume(): void;
  /** Sends FIN after what is queued. */
  end(): void;
  /** Closes at once, dropping what is queued; `reset` sends RST (over TCP). */
  destroy(reset?: boolean): void;
}

export interface Listener {
  readonly address: Address;
  /** Stops accepting; accepted sockets live on. Resolves when the port is free. */
  close(): Promise<void>;
}

export interface ListenOptions {
  readonly address: Address;
  readonly reusePort?: boolean;
  /** An inherited descriptor to accept on instead of binding the address. */
  readonly descriptor?: number;
  readonly backlog?: number;
}

export interface Net {
  /** Throws `ListenFailed`. A unix socket file that nobody listens on any more is replaced. */
  listen(options: ListenOptions, accept: (socket: ByteSocket) => void): Promise<Listener>;
  /** Rejects with `ConnectFailed` (reason code inside) on refusal or after the timeout. */
  connect(address: Address, options: { readonly timeoutMs: number }): Promise<ByteSocket>;
}

export interface Dns {
  /** Addresses of a name, both families. Throws `NameUnknown`, or `DnsFailed` for every other cause. */
  addresses(name: string): Promise<string[]>;
  services(name: string): Promise<{ host: string; port: number; priority: number }[]>;
}

// ----------------------------------------------------------------------------------------- wire

/** What the traffic path needs beside byte sockets. */
export interface Wire {
  /** Decodes `bytes[start..end)` as ISO 8859-1, one char a byte. */
  latin1(bytes: Uint8Array, start: number, end: number): string;
  /** Runs an action when what this turn of the event loop has to do is done. */
  soon(action: () => void): void;
  /** Node's own parser (llhttp, strict), on both runtimes. */
  messageParser(kind: "request" | "response", handlers: MessageHandlers): MessageParser;
}

/** The start line and header lines of a message; `lines` are `Name: value` CRLF each, unfolded. */
export interface MessageHead {
  readonly target: string;
  readonly status: number;
  readonly reason: string;
  readonly lines: string;
  /** 10 for HTTP/1.0, 11 for HTTP/1.1; whatever else the message claimed is passed on too. */
  readonly version: number;
  readonly keepAlive: boolean;
}

/** Called from inside `execute`: they record, and must not use a parser themselves. */
export interface MessageHandlers {
  head(head: MessageHead): void;
  /** A piece of the body without its transfer coding; a view of the chunk given to `execute`. */
  body(chunk: Uint8Array): void;
  /** The message is complete; the trailer lines as in `MessageHead.lines`. */
  end(trailers: string): void;
}

export interface MessageParser {
  /** Makes ready for the next message. */
  reset(): void;
  /**
   * Parses from `start` and answers the offset behind what was used: the end of the chunk, or of the
   * message (`complete`), or the offending byte (`error` is set).
   */
  execute(chunk: Uint8Array, start: number): number;
  /** Tells that no bytes follow; true when the message was, or thereby is, complete. */
  finish(): boolean;
  readonly complete: boolean;
  readonly error: string | undefined;
  /** Chars of the request target read so far. */
  readonly targetLength: number;
  /** For answers to HEAD: set it before the head is complete. */
  withoutBody: boolean;
  /** Gives back its memory; the parser must not be used afterwards. */
  free(): void;
}

// ----------------------------------------------------------------------------------------- http

/** Serving and calling for everything that is not the traffic path (admin, peers, oracles, probes). */
export interface Http {
  /**
   * Serves a fetch-shaped app with the runtime's own well-kept server, HTTP/1.1 only. A handler that
   * throws is a bare 500. A body that errors cuts the connection: no end and no text is sent. A client
   * that leaves cancels the body and aborts `request.signal`, which a whole answer does not.
   */
  serve(
    options: ListenOptions & { readonly tls?: ServerTls },
    fetch: (request: Request, info: { remoteAddress: string }) => Response | Promise<Response>,
  ): Promise<HttpServer>;
  /** `fetch` with what the standard one lacks; never follows redirects unless told. */
  fetch(url: string | URL, init?: FetchInit): Promise<Response>;
}

/**
 * The answer's body is what came over the wire, less the transfer coding: nothing is decoded, and
 * `accept-encoding` is sent only if the caller sets it. Every call has a connection of its own, so
 * that no request is lost on, or sent twice because of, a stale one. A body that breaks off errors.
 * Rejects with `ConnectFailed` when nothing was sent.
 */
export interface FetchInit extends RequestInit {
  /** Limit for making the connection, TLS included; 10 s unless given. */
  readonly connectTimeoutMs?: number;
  /** Connect to this unix socket instead of the URL's host. */
  readonly unixPath?: string;
  /** By way of this HTTP proxy: https in a tunnel (CONNECT), http as a request to the proxy. */
  readonly proxy?: string;
  readonly tls?: { ca?: string; cert?: string; key?: string };
}

/** PEM texts; with `clientCa` callers must show a certificate of that authority. */
export interface ServerTls {
  readonly cert: string;
  readonly key: string;
  readonly clientCa?: string | undefined;
}

export interface HttpServer {
  readonly address: Address;
  /**
   * Handshakes from now on get this certificate, and are asked for one of that authority; connections
   * that exist go on with theirs. Whether callers are asked at all stays as it was. Only with `tls`.
   */
  readonly replaceTls?: (tls: ServerTls) => void;
  /**
   * Stops accepting and closes every connection that is owed no answer, the others after theirs;
   * resolves when the last has left.
   */
  close(): Promise<void>;
  /** Cuts what is left, also after `close` has begun. */
  destroy(): Promise<void>;
}

// --------------------------------------------------------------------------------------- errors

/** Nothing exists at the path. */
export class FileMissing extends Error {
  override readonly name = "FileMissing";
}

/** True when an error says that the disk takes no more: it is full, or a quota is used up. */
export function isDiskFull(error: unknown): boolean {
  if (typeof error !== "object" || error === null) return false;
  if ("code" in error && (error.code === "ENOSPC" || error.code === "EDQUOT")) return true;
  return "cause" in error && isDiskFull(error.cause);
}

/** The file exists and the kernel refuses to run it. */
export class NotExecutable extends Error {
  override readonly name = "NotExecutable";
}

/** The address could not be listened on. */
export class ListenFailed extends Error {
  override readonly name = "ListenFailed";
  readonly reason: "in-use" | "denied" | "unavailable" | "other";
  constructor(reason: ListenFailed["reason"], message: string, options?: ErrorOptions) {
    super(message, options);
    this.reason = reason;
  }
}

/** No connection was made: nothing was sent, so the request may go elsewhere. */
export class ConnectFailed extends Error {
  override readonly name = "ConnectFailed";
  readonly reason: "refused" | "timeout" | "unreachable" | "missing" | "other";
  constructor(reason: ConnectFailed["reason"], message: string) {
    super(message);
    this.reason = reason;
  }
}

/** The name server says that there is no such name. */
export class NameUnknown extends Error {
  override readonly name = "NameUnknown";
}

/** The name could not be looked up for any other reason: nothing is known about it. */
export class DnsFailed extends Error {
  override readonly name = "DnsFailed";
}
