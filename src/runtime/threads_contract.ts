/** Threads of this process that share nothing but messages and shared memory. */

export interface Thread {
  /**
   * Messages arrive in the order in which they were posted: those of one turn together, at its end,
   * or at once with one that is urgent.
   */
  post(message: unknown, isUrgent?: boolean): void;
  onMessage(listener: (message: unknown) => void): void;
  /** Called once when the thread has ended, with what ended it if that was an error. */
  onExit(listener: (error: string | undefined) => void): void;
  /** Ends the thread now; its sockets are closed. */
  terminate(): Promise<void>;
}

/** The thread that started this one. */
export interface ParentThread {
  post(message: unknown): void;
  onMessage(listener: (message: unknown) => void): void;
}

export interface Threads {
  /** Starts a module as a thread. */
  start(module: URL): Thread;
  /** Undefined in the main thread. */
  readonly parent: ParentThread | undefined;
}
