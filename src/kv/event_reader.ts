/**
 * What the events of one lane mean: from an engine's words to `KvEvent`s.
 *
 * Stateful, because the meaning of an event depends on earlier ones: which cache groups hold main
 * attention, which namespace a parent belongs to. So events are read exactly once, in the order in
 * which they are applied, and the state is part of a lane's cut.
 */

import type { KvEvent, Tier } from "./blocks.ts";
import type { EngineFields, EngineRemoved, EngineStored, ExtraKey } from "./engine_event.ts";
import { padToken } from "./hash.ts";
import { Namespaces, type NamespaceState } from "./namespaces.ts";

/** Why an event changes nothing. */
export type Ignored =
  | "unknown_kind"
  | "non_main_attention_kind"
  | "non_main_attention_group"
  | "unlearned_group_idx"
  | "ambiguous_cache_namespace"
  | "not_local"
  | "block_size_mismatch"
  | "placeholder"
  | "self_parent"
  | "duplicate_in_event";

export interface EventReaderSettings {
  /** Tokens in a block of the partition; events with another size are ignored. */
  readonly blockSize: number;
  /** A hash for opaque names (XXH3-64, seed 0), for extra keys that are not digests. */
  readonly hashBytes: (bytes: Uint8Array) => bigint;
  /**
   * The model's placeholder token for images. When set, it is replaced inside blocks by a value made
   * from the image's hash (Dynamo's pad values), instead of hashing the image beside the tokens.
   */
  readonly imageToken?: number;
}

/** What the reader has learned. */
export interface EventReaderState {
  readonly groups: readonly (readonly [index: number, isMain: boolean])[];
  readonly namespaces?: NamespaceState;
}

/** Kinds of cache groups whose blocks say what a prompt can reuse. */
const MAIN_KINDS: readonly string[] = ["full_attention", "mla_attention", "sink_full_attention"];
const OTHER_KINDS: readonly string[] = [
  "sliding_window",
  "sliding_window_mla",
  "chunked_local_attention",
  "mamba",
  "cross_attention",
  "encoder_only_attention",
];

const SALT_PREFIX = "dynamo-cache-salt:";
/** Cache groups that are learned at most; engines have a handful. */
export const MAX_GROUPS = 1024;
/** First blocks whose engine hash is remembered, to notice a publisher that hashes differently. */
const MAX_ROOTS = 512;

export class EventReader {
  readonly #settings: EventReaderSettings;
  readonly #groups = new Map<number, boolean>();
  #namespaces = new Namespaces();
  /** What a first block is made of -> its engine hash. Insertion order = age. */
  readonly #roots = new Map<number, bigint>();

  constructor(settings: EventReaderSettings) {
    this.#settings = settings;
  }

  /**
   * True if the event gives a first block another hash than this publisher gave to the very same
   * content before. Engines hash deterministically for as long as they live, so the publisher is
   * another one now and its block names have nothing to do with the old ones.
   */
  contradicts(event: EngineStored): boolean {
    const first = event.hashes[0];
    if (first === undefined || this.#parentOf(event) !== undefined) return false;
    if (event.tokens.length < event.blockSize) return false;
    const content = rootContent(event);
    const known = this.#roots.get(content);
    if (known !== undefined) return known !== first;
    if (this.#roots.size >= MAX_ROOTS) {
      for (const oldest of this.#roots.keys()) {
        this.#roots.delete(oldest);
        break;
      }
    }
    this.#roots.set(content, first);
    return false;
  }

  /** The event for the index, or why there is none. */
  stored(event: EngineStored): KvEvent | Ignored {
    const refusal = this.#refusal(event, true);
    if (refusal !== undefined) return refusal;
    const { blockSize } = this.#settings;
    const parent = this.#parentOf(event);
    const items = splitExtraKeys(event, parent, this.#settings);
    let salt = event.salt === "" ? undefined : event.salt ?? items.salt;
    if (salt === undefined && parent !== undefined) {
      const inherited = this.#namespaces.of(parent);
      if (inherited === "ambiguous") return "ambiguous_cache_namespace";
      salt = inherited.salt;
    }
    if (event.hashes.length === 0 || event.tokens.length === 0) return "placeholder";
    if (event.blockSize !== blockSize) return "block_size_mismatch";
    // Tokens of an Eagle event overlap by one; a list that is too short ends the event early.
    const available = Math.floor((event.tokens.length - (event.isBigram ? 1 : 0)) / blockSize);
    const count = Math.min(event.hashes.length, available);
    if (count === 0) return "placeholder";
    const hashes = count === event.hashes.length ? event.hashes : event.hashes.subarray(0, count);
    if (parent !== undefined && hashes.includes(parent)) return "self_parent";
    if (hasDuplicate(hashes)) return "duplicate_in_event";
    this.#namespaces.stored(hashes, salt);
    let multimodal = items.multimodal;
    let tokens = event.tokens;
    if (multimodal !== undefined && this.#settings.imageToken !== undefined) {
      tokens = padImages(tokens, multimodal, blockSize, this.#settings.imageToken);
      multimodal = undefined;
    }
    const size = count * blockSize + (event.isBigram ? 1 : 0);
    // All fields are always there: objects of one shape are the cheaper ones.
    return {
      kind: "stored",
      parent,
      hashes,
      tokens: tokens.length === size ? tokens : tokens.subarray(0, size),
      blockSize,
      tier: tierOf(event.medium),
      lora: event.lora === "" ? undefined : event.lora,
      salt,
      eagle: event.isBigram,
      multimodal: multimodal?.slice(0, count),
    };
  }

  /** The event for the index, or why there is none. */
  removed(event: EngineRemoved): KvEvent | Ignored {
    const refusal = this.#refusal(event, false);
    if (refusal !== undefined) return refusal;
    this.#namespaces.removed(event.hashes);
    return { kind: "removed", hashes: event.hashes, tier: tierOf(event.medium) };
  }

  /** After all blocks of the rank went away: namespaces go, what was learned of groups stays. */
  cleared(): void {
    this.#namespaces.clear();
  }

  /** Forgets everything, as for a new publisher. */
  reset(): void {
    this.#namespaces.clear();
    this.#groups.clear();
    this.#roots.clear();
  }

  state(): EventReaderState {
    return this.#state(this.#namespaces.state());
  }

  /** As `state`, with `pause` awaited now and then; nothing may be read or forgotten meanwhile. */
  async stateInSlices(pause: () => Promise<void>): Promise<EventReaderState> {
    return this.#state(await this.#namespaces.stateInSlices(pause));
  }

  #state(namespaces: NamespaceState | undefined): EventReaderState {
    return { groups: [...this.#groups], ...(namespaces === undefined ? {} : { namespaces }) };
  }

  /** Takes what `state` gave. Throws `TypeError`, and changes nothing, when it is not well made. */
  restore(state: EventReaderState): void {
    this.#restore(state, Namespaces.from(state.namespaces));
  }

  /** As `restore`, with `pause` awaited now and then; all of it counts at the end. */
  async restoreInSlices(state: EventReaderState, pause: () => Promise<void>): Promise<void> {
    this.#restore(state, await Namespaces.fromInSlices(state.namespaces, pause));
  }

  #restore(state: EventReaderState, namespaces: Namespaces): void {
    this.reset();
    for (const [index, isMain] of state.groups.slice(0, MAX_GROUPS)) {
      this.#groups.set(index, isMain);
    }
    this.#namespaces = namespaces;
  }

  /** llm-d's simulator writes 0 where engines write nil. */
  #parentOf(event: EngineStored): bigint | undefined {
    return event.isArray && event.parent === 0n ? undefined : event.parent;
  }

  #refusal(event: EngineFields, teaches: boolean): Ignored | undefined {
    const { specKind, groupIndex } = event;
    if (event.locality !== undefined && event.locality.toUpperCase() !== "LOCAL") {
      return "not_local";
    }
    if (specKind !== undefined) {
      const isMain = MAIN_KINDS.includes(specKind);
      if (teaches && groupIndex !== undefined) {
        if (this.#groups.has(groupIndex) || this.#groups.size < MAX_GROUPS) {
          this.#groups.set(groupIndex, isMain);
        }
      }
      if (isMain) return undefined;
      return OTHER_KINDS.includes(specKind) ? "non_main_attention_kind" : "unknown_kind";
    }
    if (groupIndex === undefined) return undefined;
    const learned = this.#groups.get(groupIndex);
    if (learned === undefined) return groupIndex === 0 ? undefined : "unlearned_group_idx";
    return learned ? undefined : "non_main_attention_group";
  }
}

/**
 * The tier of an engine's medium; unknown words count as device, as Dynamo has it. Case does not
 * matter.
 */
export function tierOf(medium: string | undefined): Tier {
  if (medium === undefined || medium === "GPU") return "device";
  switch (medium.toUpperCase()) {
    case "CPU":
    case "CPU_PINNED":
    case "CPU_TIER1":
    case "HOST":
    case "HOST_PINNED":
      return "host";
    case "CPU_TIER2":
    case "DISK":
    case "NVME":
    case "STORAGE":
      return "disk";
    case "EXTERNAL":
    case "NETWORK":
    case "REMOTE":
    case "SHARED":
      return "external";
    default:
      return "device";
  }
}

/** The hash of a multimodal item's name: the first 16 of 64 hex digits, else a hash of the text. */
export function multimodalHash(
  id: string | bigint | Uint8Array,
  hashBytes: (bytes: Uint8Array) => bigint,
): bigint | undefined {
  if (typeof id === "bigint") return id;
  if (typeof id !== "string") return id.length === 0 ? undefined : hashBytes(id);
  if (id === "") return undefined;
  if (/^[0-9a-fA-F]{64}$/.test(id)) return BigInt(`0x${id.slice(0, 16)}`);
  return hashBytes(new TextEncoder().encode(id));
}

/**
 * Sorts the extra keys of a store into the namespace and multimodal hashes by block.
 *
 * The adapter's name is in there too and is passed over. A bare name on the first block of a
 * sequence is vLLM's `cache_salt`; elsewhere, and in pairs, names are those of multimodal items.
 */
function splitExtraKeys(
  event: EngineStored,
  parent: bigint | undefined,
  settings: EventReaderSettings,
): { salt: string | undefined; multimodal: bigint[][] | undefined } {
  if (event.extraKeys === undefined && event.multimodal === undefined) return NO_EXTRAS;
  let salt: string | undefined;
  const byBlock = event.hashes.length === 0
    ? []
    : Array.from(event.hashes, (_, block) => [...(event.multimodal?.[block] ?? [])]);
  event.extraKeys?.forEach((items, block) => {
    for (const item of items) {
      const text = bareText(item);
      if (text !== undefined && text === event.lora) continue;
      if (text?.startsWith(SALT_PREFIX)) {
        const named = text.slice(SALT_PREFIX.length);
        if (named !== "") salt ??= named;
        continue;
      }
      const isDigest = text !== undefined && /^[0-9a-fA-F]{64}$/.test(text);
      if (text !== undefined && !isDigest && block === 0 && parent === undefined && text !== "") {
        salt ??= text;
        continue;
      }
      const id = typeof item === "object" && "id" in item ? item.id : item;
      const hash = multimodalHash(id, settings.hashBytes);
      if (hash !== undefined) byBlock[block]?.push(hash);
    }
  });
  let hasAny = false;
  for (const hashes of byBlock) {
    if (hashes.length === 0) continue;
    hasAny = true;
    hashes.sort((a, b) => a < b ? -1 : a > b ? 1 : 0);
  }
  return { salt, multimodal: hasAny ? byBlock : undefined };
}

const NO_EXTRAS = { salt: undefined, multimodal: undefined } as const;

function bareText(item: ExtraKey): string | undefined {
  return typeof item === "string" ? item : undefined;
}

function padImages(
  tokens: Uint32Array,
  multimodal: readonly (readonly bigint[])[],
  blockSize: number,
  imageToken: number,
): Uint32Array {
  const padded = tokens.slice();
  multimodal.forEach((hashes, block) => {
    if (hashes.length === 0) return;
    // Each run of image tokens stands for one item; more runs than items share the last item.
    let run = -1;
    let inRun = false;
    for (let i = block * blockSize; i < (block + 1) * blockSize; i++) {
      const isImage = padded[i] === imageToken;
      if (isImage && !inRun) run += 1;
      inRun = isImage;
      const hash = hashes[Math.min(run, hashes.length - 1)];
      if (isImage && hash !== undefined) padded[i] = padToken(hash);
    }
  });
  return padded;
}

function hasDuplicate(hashes: BigUint64Array): boolean {
  if (hashes.length === 1) return false;
  return new Set(hashes).size !== hashes.length;
}

/** 53 bits over all that an engine may have put into the hash of an event's first block. */
function rootContent(event: EngineStored): number {
  let a = 0x9e3779b1;
  let b = 0x85ebca6b;
  const add = (word: number): void => {
    a = Math.imul(a ^ word, 0x01000193);
    b = Math.imul((b << 13) | (b >>> 19), 5) + (word ^ 0x27d4eb2f) | 0;
    b ^= b >>> 15;
  };
  const addText = (text: string): void => {
    add(text.length);
    for (let i = 0; i < text.length; i++) add(text.charCodeAt(i));
  };
  const size = event.blockSize + (event.isBigram ? 1 : 0);
  for (let i = 0; i < size; i++) add(event.tokens[i] ?? 0);
  add(event.blockSize);
  add(event.groupIndex ?? 0);
  for (const text of [event.lora, event.salt, event.medium, event.specKind]) addText(text ?? "");
  for (const item of event.extraKeys?.[0] ?? []) {
    const id = typeof item === "object" && "id" in item ? item.id : item;
    if (typeof id === "object") { for (const byte of id) add(byte); }
    else addText(String(id));
    if (typeof item === "object" && "offset" in item) add(item.offset);
  }
  for (const hash of event.multimodal?.[0] ?? []) addText(String(hash));
  return (a >>> 0) * 0x200000 + ((b >>> 0) & 0x1fffff);
}
