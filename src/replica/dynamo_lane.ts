import type { LaneKey } from "../kv/lane_key.ts";
import { DumpBroken } from "./dump_format.ts";
import type { LaneCut } from "./lane_port.ts";
import { NO_KEYS } from "./staged_lane.ts";

/** Blocks that the lanes of one partition may still have: all of them are held until its end. */
export interface DynamoRoom {
  blocks: number;
}

/** A lane put together from the stored events of a Dynamo dump. */
export class DynamoLane {
  readonly key: LaneKey;
  readonly #room: DynamoRoom;
  readonly #rows = new Map<bigint, number>();
  #parents: number[] = [];
  #locals: bigint[] = [];
  #tiers: number[] = [];

  constructor(key: LaneKey, room: DynamoRoom) {
    this.key = key;
    this.#room = room;
  }

  get count(): number {
    return this.#parents.length;
  }

  /**
   * Adds a chain of blocks below `parent`. A chain whose parent this lane does not have is left out
   * (Dynamo's dumps can hold such orphans): fewer blocks are known, none falsely.
   */
  stored(
    parent: bigint | undefined,
    tier: number,
    blocks: readonly { engine: bigint; local: bigint }[],
  ): void {
    let row = -1;
    if (parent !== undefined) {
      const known = this.#rows.get(parent);
      if (known === undefined) return;
      row = known;
    }
    for (const { engine, local } of blocks) {
      const known = this.#rows.get(engine);
      if (known !== undefined) {
        this.#tiers[known] = (this.#tiers[known] as number) | tier;
        row = known;
        continue;
      }
      this.#room.blocks -= 1;
      if (this.#room.blocks < 0) throw new DumpBroken("a partition has too many blocks");
      this.#parents.push(row);
      this.#locals.push(local);
      this.#tiers.push(tier);
      row = this.count - 1;
      this.#rows.set(engine, row);
    }
  }

  /**
   * With unknown epoch, unknown cursor and one copy of each block: the shape tells no more. What was
   * removed since is removed again by the events that were kept; what that takes along may be missed.
   */
  cut(): LaneCut {
    return {
      key: this.key,
      epoch: "",
      cursor: undefined,
      decoderState: undefined,
      ...(this.count === 0
        ? {}
        : { degraded: "the dump does not say where in its events it stands" }),
      blocks: {
        count: this.count,
        parents: Int32Array.from(this.#parents),
        locals: BigUint64Array.from(this.#locals),
        keys: NO_KEYS,
        engines: BigUint64Array.from(this.#rows.keys()),
        tiers: Uint8Array.from(this.#tiers),
        copies: new Uint16Array(this.count).fill(1),
      },
    };
  }
}
