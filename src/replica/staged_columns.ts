/**
 * The columns that a lane of an incoming dump is staged in.
 *
 * Lane after lane can use the same ones. New ones for each would be garbage that outlives the young
 * generation and lies outside of V8's heap, so that it is collected late: tens of MiB of it.
 */

/** Rows that there is room for at first, some 380 KiB. */
const FIRST_ROWS = 16_384;

export class StagedColumns {
  engines = new BigUint64Array(0);
  locals = new BigUint64Array(0);
  parents = new Int32Array(0);
  tiers = new Uint8Array(0);
  copies = new Uint16Array(0);

  /**
   * Makes room for `least` rows; the first `used` stay. There is room for four times as many as have
   * arrived at most, whatever was `announced`.
   */
  reserve(least: number, used: number, announced: number): void {
    const room = this.parents.length;
    if (least <= room) return;
    // A little more than was announced, for a next lane that is a little larger.
    const useful = Math.floor(announced * 1.125);
    const rows = Math.max(least, Math.min(useful, Math.max(FIRST_ROWS, room * 4)));
    const { engines, locals, parents, tiers, copies } = this;
    this.engines = new BigUint64Array(rows);
    this.engines.set(engines.subarray(0, used));
    this.locals = new BigUint64Array(rows);
    this.locals.set(locals.subarray(0, used));
    this.parents = new Int32Array(rows);
    this.parents.set(parents.subarray(0, used));
    this.tiers = new Uint8Array(rows);
    this.tiers.set(tiers.subarray(0, used));
    this.copies = new Uint16Array(rows);
    this.copies.set(copies.subarray(0, used));
  }
}
