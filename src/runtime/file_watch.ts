/**
 * Watching a path that may be missing, replaced by rename, or a link into a folder that is swapped
 * (as Kubernetes mounts config maps).
 *
 * The kernel watches inodes, not paths: so the watch is on the parent folder, and a slow tick finds
 * what events cannot tell (a parent that appears, is replaced, or lies on a file system without
 * events).
 */

import { type FSWatcher, statSync, watch } from "node:fs";
import { basename, dirname, resolve } from "node:path";

const TICK_MS = 1_000;

/** See `Files.watch`. Never throws; a path that does not exist yet is watched for its coming. */
export function watchPath(path: string, changed: () => void): () => void {
  const target = resolve(path);
  const name = basename(target);
  let seen = signature(target);

  const look = (): void => {
    const now = signature(target);
    if (now === seen) return;
    seen = now;
    changed();
  };
  const parent = new FolderWatch(dirname(target), (entry) => {
    if (entry === undefined || entry === name) {
      seen = signature(target);
      changed();
    } else {
      look();
    }
  });
  const inside = new FolderWatch(target, () => {
    seen = signature(target);
    changed();
  });
  const tick = setInterval(() => {
    parent.rearm();
    inside.rearm();
    look();
  }, TICK_MS);
  return () => {
    clearInterval(tick);
    parent.close();
    inside.close();
  };
}

/** What the path leads to (following links), as text that differs when it differs. */
function signature(path: string): string {
  try {
    const found = statSync(path, { bigint: true });
    return `${found.dev}:${found.ino}:${found.size}:${found.mtimeNs}`;
  } catch {
    return "";
  }
}

/** A watch on a folder's entries that can be set again after the folder was replaced. */
class FolderWatch {
  readonly #path: string;
  readonly #onEntry: (name: string | undefined) => void;
  #watcher: FSWatcher | undefined;
  #identity = "";

  constructor(path: string, onEntry: (name: string | undefined) => void) {
    this.#path = path;
    this.#onEntry = onEntry;
    this.rearm();
  }

  rearm(): void {
    const identity = folderIdentity(this.#path);
    if (identity === this.#identity) return;
    this.close();
    if (identity === "") return;
    try {
      const watcher = watch(this.#path, (_kind, entry) => {
        if (this.#watcher === watcher) this.#onEntry(entry ?? undefined);
      });
      watcher.on("error", () => {
        if (this.#watcher === watcher) this.close();
      });
      this.#watcher = watcher;
      this.#identity = identity;
    } catch {
      // Gone again, or no watches left (ENOSPC): the tick looks by itself and tries again.
    }
  }

  close(): void {
    this.#watcher?.close();
    this.#watcher = undefined;
    this.#identity = "";
  }
}

function folderIdentity(path: string): string {
  try {
    const found = statSync(path);
    return found.isDirectory() ? `${found.dev}:${found.ino}` : "";
  } catch {
    return "";
  }
}
