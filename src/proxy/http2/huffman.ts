/**
 * The Huffman code of HPACK (RFC 7541 appendix B), read four bits at a time.
 *
 * The code is canonical: within a length, codes go up with the symbol, and each length begins where
 * the one before left off. So the lengths alone say all of it.
 */

/** Bits of the code of each byte, and of the end mark (256). */
// deno-fmt-ignore
const LENGTHS: readonly number[] = [
  13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
  28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
   6, 10, 10, 12, 13,  6,  8, 11, 10, 10,  8, 11,  8,  6,  6,  6,
   5,  5,  5,  6,  6,  6,  6,  6,  6,  6,  7,  8, 15,  6, 12, 10,
  13,  6,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,
   7,  7,  7,  7,  7,  7,  7,  7,  8,  7,  8, 13, 19, 13, 14,  6,
  15,  5,  6,  5,  6,  5,  6,  6,  6,  5,  7,  7,  6,  6,  6,  5,
   6,  7,  6,  5,  5,  6,  7,  7,  7,  7,  7, 15, 11, 14, 13, 28,
  20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
  24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
  22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
  21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
  26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
  19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
  20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
  26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
  30,
];
const END_MARK = 256;
const LONGEST = 30;
/** Padding is the beginning of the end mark's code, which is all ones, and shorter than a byte. */
const MOST_PADDING_BITS = 7;

/** A step is the next node, with the symbol that was completed (bits 8 to 15) and these marks. */
const COMPLETES = 1 << 16;
const IS_WRONG = 1 << 17;

/** Steps of each inner node (256 of them) for each value of four bits. */
const STEPS = new Uint32Array(256 * 16);
/** Nodes at which a text may end. */
const MAY_END = new Uint8Array(256);

interface Node {
  readonly number: number;
  /** Inner nodes and symbols, for the bits 0 and 1. */
  readonly children: (Node | number | undefined)[];
}

function buildTree(): Node[] {
  const nodes: Node[] = [{ number: 0, children: [] }];
  let code = 0;
  for (let length = 1; length <= LONGEST; length++) {
    code *= 2;
    for (let symbol = 0; symbol <= END_MARK; symbol++) {
      if (LENGTHS[symbol] !== length) continue;
      let node = nodes[0] as Node;
      for (let bit = length - 1; bit > 0; bit--) {
        const way = (code >>> bit) & 1;
        let next = node.children[way];
        if (next === undefined) {
          next = { number: nodes.length, children: [] };
          nodes.push(next);
          node.children[way] = next;
        }
        node = next as Node;
      }
      node.children[code & 1] = symbol;
      code += 1;
    }
  }
  return nodes;
}

function stepFrom(root: Node, from: Node, bits: number): number {
  let node = from;
  let marks = 0;
  for (let bit = 3; bit >= 0; bit--) {
    const next = node.children[(bits >>> bit) & 1] as Node | number;
    if (typeof next !== "number") node = next;
    else {
      if (next === END_MARK) return IS_WRONG;
      // No code is shorter than five bits, so four complete one symbol at most.
      marks = COMPLETES | next << 8;
      node = root;
    }
  }
  return marks | node.number;
}

function fillTables(): void {
  const nodes = buildTree();
  const root = nodes[0] as Node;
  for (const node of nodes) {
    for (let bits = 0; bits < 16; bits++) {
      STEPS[node.number * 16 + bits] = stepFrom(root, node, bits);
    }
  }
  let node: Node | number | undefined = root;
  for (let ones = 0; ones <= MOST_PADDING_BITS && typeof node === "object"; ones++) {
    MAY_END[node.number] = 1;
    node = node.children[1];
  }
}

fillTables();

/** How many bytes a coded text may become at most. */
export function mostDecodedBytes(codedBytes: number): number {
  return Math.ceil(codedBytes * 8 / 5);
}

/**
 * Decodes `coded[from..to)` into `into`, which has room for `mostDecodedBytes`. Answers how many bytes
 * it became, or -1 when it is no text: an end mark in it, or padding that is not.
 */
export function decodeHuffman(
  coded: Uint8Array,
  from: number,
  to: number,
  into: Uint8Array,
): number {
  let length = 0;
  let node = 0;
  for (let at = from; at < to; at++) {
    const byte = coded[at] as number;
    let step = STEPS[node << 4 | byte >>> 4] as number;
    if ((step & COMPLETES) !== 0) into[length++] = step >>> 8 & 0xff;
    if ((step & IS_WRONG) !== 0) return -1;
    step = STEPS[(step & 0xff) << 4 | byte & 15] as number;
    if ((step & COMPLETES) !== 0) into[length++] = step >>> 8 & 0xff;
    if ((step & IS_WRONG) !== 0) return -1;
    node = step & 0xff;
  }
  return MAY_END[node] === 1 ? length : -1;
}
