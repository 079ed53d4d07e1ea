import { test } from "uvu";
import * as assert from "uvu/assert";
import { blockCount, BlockHasher, padToken } from "../../src/kv/hash.ts";

const hasher = await BlockHasher.create();
const u32 = (...tokens: number[]) => Uint32Array.from(tokens);
const one = (tokens: Uint32Array, options = {}) => hasher.locals(tokens, tokens.length, options)[0];

// [length, with seed 0, with seed 1337, with the seed of adapter-a], by the reference
// implementation of XXH3, over bytes ((i * 131 + 17) & 255) ^ ((i >> 8) & 255).
const REFERENCE: [number, bigint, bigint, bigint][] = [
  [0, 3244421341483603138n, 15128690059815094969n, 6786894378150423742n],
  [1, 17517311690026122941n, 1023919405286360731n, 2766349873866240307n],
  [2, 7794789002704696989n, 13658954774117877721n, 12359118301061022345n],
  [3, 11603449010481121435n, 13182251000840801110n, 15315886575864203631n],
  [4, 5809367987132182819n, 5905515152795999333n, 11352459464140811455n],
  [7, 9031670170584346172n, 14025526220291917119n, 10772340214325786092n],
  [8, 12773120878489605230n, 3777721604773028628n, 3594430860552270191n],
  [9, 18313116319785344455n, 16592487634005830188n, 13609597547590268150n],
  [15, 17080140865323273603n, 17166936698677737427n, 15811653838058160487n],
  [16, 8165459328745983990n, 9080190042339224589n, 16183364383125444858n],
  [17, 9021578923543107484n, 14903008232202784218n, 6920959974805631822n],
  [32, 10420380416093549884n, 198277249692914230n, 3912383329535800631n],
  [33, 6986673655078668889n, 11788991097347599765n, 16058738090636687139n],
  [64, 689571348146411565n, 1581865859105861585n, 17236386941241243198n],
  [65, 10254511225676330715n, 7252159496522013371n, 6809195127823103204n],
  [96, 10005584223516520991n, 10919536392487699472n, 15563888530876758827n],
  [97, 13972797073781984632n, 8591125833055190656n, 10941096500460019633n],
  [127, 8918608359236703364n, 15611672060451642135n, 15641528546666478509n],
  [128, 17187002264862383548n, 16115142967127741886n, 8758302225279283994n],
  [129, 9096844039813715196n, 12206144865007259801n, 5922929043891374317n],
  [192, 14410075966570235126n, 2590153111200785226n, 5797126612833931742n],
  [239, 2123752013725720460n, 7530118257933944577n, 6945275000489956847n],
  [240, 4902337606335717421n, 14122040713543909321n, 568881271353968782n],
  [241, 17119122465032547459n, 7783084923345466374n, 653309753434136011n],
  [255, 17072557471321039947n, 15736808564247424285n, 13922518093100380167n],
  [256, 6005238422732561258n, 15885740585000715467n, 3044836596112269810n],
  [512, 11900650522357637236n, 10577100540959730401n, 10842615755614274036n],
  [1023, 14828634823117410993n, 6796973340326990483n, 15604583760878696718n],
  [1024, 784774004966075711n, 18243715278821721222n, 12186219727906345204n],
  [1025, 17478053598352168632n, 18213263579513866639n, 10355231192426921754n],
  [2048, 10032680541413054974n, 16956566523711102508n, 17342105634994067500n],
  [4096, 8018167370773514830n, 12934221588776131188n, 18308201890582992294n],
  [4097, 3606264146001780250n, 6623559726981154564n, 9460235592024622569n],
  [65536, 13198954168670924440n, 1719014005230086629n, 10549367805284160733n],
];
const SEEDS = [0n, 1337n, 8842669519798868182n] as const;

test("XXH3-64 agrees with the reference implementation in every range of lengths", () => {
  const data = Uint8Array.from(
    { length: 70_000 },
    (_, i) => ((i * 131 + 17) & 255) ^ ((i >> 8) & 255),
  );
  for (const [length, ...hashes] of REFERENCE) {
    SEEDS.forEach((seed, at) => {
      assert.is(
        hasher.bytes(data.subarray(0, length), seed),
        hashes[at],
        `${length} bytes, ${seed}`,
      );
    });
  }
});

test("kv 127: the vendor's golden hash", () => {
  assert.is(hasher.bytes("test data", 1337n), 13226331709069118873n);
});

test("kv 127: local hashes and their chain", () => {
  const locals = hasher.locals(u32(0, 1, 2, 3, 4, 5, 6, 7), 4);
  assert.equal([...locals], [9143094415614847814n, 12124091508212882195n]);
  const keys = hasher.chainKeys(Int32Array.of(-1, 0), locals);
  assert.equal([...keys], [9143094415614847814n, 9510318385840434533n]);
});

test("kv 128: only full blocks count", () => {
  for (const size of [11, 32, 64]) {
    for (const [tokens, blocks] of [[size, 1], [size + 1, 1], [2 * size + 1, 2]] as const) {
      assert.is(hasher.locals(new Uint32Array(tokens), size).length, blocks);
    }
    assert.is(hasher.locals(new Uint32Array(size - 1), size).length, 0);
  }
  assert.is(blockCount(100, 0), 0);
});

test("kv 129: rolling a chain equals taking each next key from the one before", () => {
  const locals = BigUint64Array.from({ length: 40_000 }, (_, i) => BigInt(i) * 0x9e3779b97f4a7c15n);
  const parents = Int32Array.from(locals, (_, i) => i - 1);
  const rolled = hasher.chainKeys(parents, locals);
  for (const i of [1, 2, 500, 26_213, 26_214, 26_215, 39_999]) {
    const pair = hasher.chainKeys(
      Int32Array.of(-1, 0),
      BigUint64Array.of(rolled[i - 1] ?? 0n, locals[i] ?? 0n),
    );
    assert.is(rolled[i], pair[1]);
  }
});

test("kv 129: a chain key's parent may lie far back", () => {
  const count = 60_000;
  const locals = BigUint64Array.from({ length: count }, (_, i) => BigInt(i + 1));
  const parents = Int32Array.from(locals, (_, i) => i < 2 ? i - 1 : i % 2);
  const keys = hasher.chainKeys(parents, locals);
  const again = hasher.chainKeys(
    Int32Array.of(-1, 0, 1),
    BigUint64Array.of(1n, 2n, BigInt(count)),
  );
  assert.is(keys[count - 1], again[2]);
});

test("kv 130: adapters and the base model differ, the empty name is the base", () => {
  const tokens = u32(0, 1, 2, 3);
  const hashes = ["a", "b", undefined].map((lora) => one(tokens, { lora }));
  assert.is(new Set(hashes).size, 3);
  assert.is(one(tokens, { lora: "" }), hashes[2]);
});

test("kv 131: salts and no salt differ, a salt is not an adapter, the empty salt is none", () => {
  const tokens = u32(0, 1, 2, 3);
  const hashes = ["a", "b", undefined].map((salt) => one(tokens, { salt }));
  assert.is(new Set(hashes).size, 3);
  assert.is(one(tokens, { salt: "" }), hashes[2]);
  assert.is.not(one(tokens, { salt: "x" }), one(tokens, { lora: "x" }));
});

test("kv 132: adapter and salt add to the seed", () => {
  const tokens = u32(0, 1, 2, 3);
  assert.is(hasher.seed("adapter-a"), 8842669519798868182n);
  assert.is(hasher.seed("", "tenant-a"), 1948188790972764086n);
  assert.is(hasher.seed("adapter-a", "tenant-a"), 10790858310771630931n);
  assert.is(one(tokens, { lora: "adapter-a" }), 6665157333201000639n);
  assert.is(one(tokens, { salt: "tenant-a" }), 17009624042690211646n);
  assert.is(one(tokens, { lora: "adapter-a", salt: "tenant-a" }), 8269515957840517240n);
});

test("kv 132: more seeds than are kept are still right", () => {
  for (let i = 0; i < 5_000; i++) hasher.seed(`adapter-${i}`, `tenant-${i % 7}`);
  assert.is(hasher.seed("adapter-a", "tenant-a"), 10790858310771630931n);
});

test("kv 133: every option is part of the hash, none sticks from the call before", () => {
  const tokens = u32(0, 1, 2, 3, 4, 5, 6, 7);
  const options = [
    {},
    { lora: "a" },
    { salt: "a" },
    { multimodal: [[1n], []] },
    { multimodal: [[2n], []] },
    { eagle: true },
  ];
  const first = options.map((o) => [...hasher.locals(tokens, 4, o)].join());
  assert.is(new Set(first).size, options.length);
  const second = [...options].reverse().map((o) => [...hasher.locals(tokens, 4, o)].join());
  assert.equal(second.reverse(), first);
});

test("kv 133: multimodal hashes follow the tokens, sorted, and only in their block", () => {
  assert.is(one(u32(0, 1, 2, 3), { multimodal: [[42n]] }), 18280081842874931122n);
  const tokens = u32(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
  const locals = hasher.locals(tokens, 4, { multimodal: [[], [42n], []] });
  assert.equal([...locals], [
    9143094415614847814n,
    18280081842874931122n,
    9143094415614847814n,
  ]);
  assert.is(
    one(u32(0, 1, 2, 3), { multimodal: [[7n, 42n]] }),
    one(u32(0, 1, 2, 3), { multimodal: [[42n, 7n]] }),
  );
});

test("kv 134: eagle windows overlap by one token", () => {
  const tokens = u32(0, 1, 2, 3, 4, 5);
  assert.is(hasher.locals(tokens, 2).length, 3);
  const windows = hasher.locals(tokens, 2, { eagle: true });
  assert.is(windows.length, 2);
  assert.is(windows[0], 11646242937812223497n);
  assert.is(windows[1], one(u32(2, 3, 4)));
  assert.is(hasher.locals(new Uint32Array(0), 2, { eagle: true }).length, 0);
});

test("kv 135: the pad token of an image", () => {
  assert.is(padToken(0n), 1_000_000);
  assert.is(padToken(42n), 1_000_042);
  assert.is(padToken((1n << 30n) - 1n), 1_000_000 + 2 ** 30 - 1);
  assert.is(padToken((1n << 30n) + 5n), 1_000_005);
  assert.is(padToken(0xffffffff_ffffffffn), 1_000_000 + 2 ** 30 - 1);
});

test("long prompts are hashed in pieces with the same result", () => {
  const tokens = Uint32Array.from({ length: 300_007 }, (_, i) => i * 7);
  const locals = hasher.locals(tokens, 16);
  assert.is(locals.length, 18_750);
  for (const block of [0, 1, 5_800, 5_801, 5_802, 11_603, 18_749]) {
    assert.is(locals[block], one(tokens.subarray(block * 16, block * 16 + 16)));
  }
  const wide = hasher.locals(tokens, 96, { eagle: true });
  assert.is(wide[3_000], one(tokens.subarray(3_000 * 96, 3_000 * 96 + 97)));
});

test("tokens use all 32 bits", () => {
  assert.is.not(one(u32(0x80000000, 0, 0, 0)), one(u32(0, 0, 0, 0)));
  assert.is(one(u32(0xffffffff)), hasher.bytes(new Uint8Array(4).fill(255), 1337n));
});

test.run();
