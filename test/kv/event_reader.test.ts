/** What engine events mean: groups, namespaces, adapters, multimodal items, tiers. */
import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { decoderText, DecoderTextReader } from "../../src/kv/decoder_text.ts";
import type { KvEvent } from "../../src/kv/blocks.ts";
import type { EngineRemoved, EngineStored } from "../../src/kv/engine_event.ts";
import { EventReader, type Ignored, multimodalHash, tierOf } from "../../src/kv/event_reader.ts";
import { BlockHasher } from "../../src/kv/hash.ts";
import { Namespaces } from "../../src/kv/namespaces.ts";
import { U64Table } from "../../src/kv/u64_table.ts";

const hasher = await BlockHasher.create();
const hashBytes = (bytes: Uint8Array): bigint => hasher.bytes(bytes, 0n);
const settings = { blockSize: 2, hashBytes };
const DIGEST = "00000000000000aa".padEnd(64, "0");

function store(fields: Partial<EngineStored> = {}): EngineStored {
  return {
    kind: "engine_stored",
    hashes: BigUint64Array.of(1n, 2n),
    parent: undefined,
    tokens: Uint32Array.of(1, 2, 3, 4),
    isBigram: false,
    blockSize: 2,
    medium: undefined,
    lora: undefined,
    salt: undefined,
    extraKeys: undefined,
    multimodal: undefined,
    groupIndex: undefined,
    specKind: undefined,
    locality: undefined,
    isArray: false,
    ...fields,
  };
}

function removal(fields: Partial<EngineRemoved> = {}): EngineRemoved {
  return {
    kind: "engine_removed",
    hashes: BigUint64Array.of(1n),
    medium: undefined,
    groupIndex: undefined,
    specKind: undefined,
    locality: undefined,
    ...fields,
  };
}

function read(event: EngineStored, reader = new EventReader(settings)) {
  const result = reader.stored(event);
  if (typeof result === "string" || result.kind !== "stored") throw new Error(String(result));
  return result;
}

const outcome = (result: KvEvent | Ignored): string =>
  typeof result === "string" ? result : result.kind;

test("kv 143: slot 7's salt beats extra keys; an empty one falls back to them", () => {
  const extraKeys = [["dynamo-cache-salt:from-keys"], []];
  assert.is(read(store({ salt: "direct", extraKeys })).salt, "direct");
  assert.is(read(store({ extraKeys })).salt, "from-keys");
  assert.is(read(store({})).salt, undefined);
  assert.is(read(store({ salt: "" })).salt, undefined);
});

test("kv 145: a prefixed extra key is the namespace, even of hex digits, and no multimodal hash", () => {
  const event = read(store({ extraKeys: [[`dynamo-cache-salt:${DIGEST}`], []] }));
  assert.is(event.salt, DIGEST);
  assert.is(event.multimodal, undefined);
});

test("vLLM's bare cache salt on the first block is the namespace, an adapter's name is not", () => {
  const event = read(store({ lora: "adapter", extraKeys: [["adapter", "tenant"], ["adapter"]] }));
  assert.is(event.salt, "tenant");
  assert.is(event.lora, "adapter");
  assert.is(event.multimodal, undefined);
});

test("kv 136: a digest of 64 hex digits counts by its first 16, other names by their hash", () => {
  const reader = new EventReader(settings);
  const event = read(
    store({
      extraKeys: [[{ id: DIGEST, offset: 0 }, { id: "my-image", offset: 4 }], [Uint8Array.of(1)]],
    }),
    reader,
  );
  const named = hashBytes(new TextEncoder().encode("my-image"));
  const expected = [0xaan, named].sort((a, b) => a < b ? -1 : 1);
  assert.equal(event.multimodal, [expected, [hashBytes(Uint8Array.of(1))]]);
  assert.is(multimodalHash("", hashBytes), undefined);
});

test("kv 148: mamba in group 0 is filtered, and so is its bare removal", () => {
  const reader = new EventReader(settings);
  assert.is(reader.stored(store({ groupIndex: 0, specKind: "mamba" })), "non_main_attention_kind");
  assert.is(reader.removed(removal({ groupIndex: 0 })), "non_main_attention_group");
});

test("kv 149: a bare group other than 0 that was never learned is refused", () => {
  const reader = new EventReader(settings);
  assert.is(reader.stored(store({ groupIndex: 1 })), "unlearned_group_idx");
  assert.is(outcome(reader.stored(store({ groupIndex: 0 }))), "stored");
  assert.is(outcome(reader.stored(store({ groupIndex: 3, specKind: "mla_attention" }))), "stored");
  assert.is(outcome(reader.removed(removal({ groupIndex: 3 }))), "removed");
});

test("kv 150: what is learned of groups belongs to one lane", () => {
  const first = new EventReader(settings);
  first.stored(store({ groupIndex: 2, specKind: "full_attention" }));
  assert.is(outcome(first.removed(removal({ groupIndex: 2 }))), "removed");
  const second = new EventReader(settings);
  assert.is(second.removed(removal({ groupIndex: 2 })), "unlearned_group_idx");
});

test("kv 151: removals teach nothing", () => {
  const reader = new EventReader(settings);
  assert.is(
    outcome(reader.removed(removal({ groupIndex: 2, specKind: "full_attention" }))),
    "removed",
  );
  assert.is(reader.removed(removal({ groupIndex: 2 })), "unlearned_group_idx");
});

test("unknown kinds are refused as such", () => {
  assert.is(new EventReader(settings).stored(store({ specKind: "quantum" })), "unknown_kind");
});

test("kv 152: a child inherits its parent's namespace, and passes it on", () => {
  const reader = new EventReader(settings);
  read(store({ salt: "tenant" }), reader);
  const child = store({ parent: 2n, hashes: BigUint64Array.of(3n, 4n), salt: "" });
  assert.is(read(child, reader).salt, "tenant");
  const grandchild = store({ parent: 4n, hashes: BigUint64Array.of(5n, 6n) });
  assert.is(read(grandchild, reader).salt, "tenant");
  const stranger = store({ parent: 99n, hashes: BigUint64Array.of(7n, 8n) });
  assert.is(read(stranger, reader).salt, undefined);
});

test("kv 153: children of a hash seen under two namespaces are refused", () => {
  const reader = new EventReader(settings);
  read(store({ salt: "a" }), reader);
  read(store({ salt: "b" }), reader);
  const child = store({ parent: 2n, hashes: BigUint64Array.of(3n, 4n) });
  assert.is(reader.stored(child), "ambiguous_cache_namespace");
  assert.is(read({ ...child, salt: "a" }, reader).salt, "a");
});

test("kv 154: a store without tokens is a placeholder", () => {
  const empty = store({ tokens: new Uint32Array(0), blockSize: 0, medium: "CPU" });
  assert.is(new EventReader(settings).stored(empty), "placeholder");
});

test("kv 155: a full store on the CPU is on the host's tier, with its parent", () => {
  const event = read(store({ medium: "CPU", parent: 77n }));
  assert.is(event.tier, "host");
  assert.is(event.hashes.length, 2);
  assert.is(event.parent, 77n);
});

test("kv 156: an image's tokens become its pad value where the model's image token is known", () => {
  const reader = new EventReader({ ...settings, imageToken: 9 });
  const event = read(
    store({ tokens: Uint32Array.of(9, 9, 3, 4), extraKeys: [[{ id: DIGEST, offset: 0 }], []] }),
    reader,
  );
  assert.equal([...event.tokens], [1_000_170, 1_000_170, 3, 4]);
  assert.is(event.multimodal, undefined);
  const plain = read(store({ tokens: Uint32Array.of(1_000_170, 1_000_170, 3, 4) }), reader);
  assert.equal([...plain.tokens], [...event.tokens]);
});

test("kv 166: only local blocks count", () => {
  const reader = new EventReader(settings);
  assert.is(reader.stored(store({ locality: "REMOTE" })), "not_local");
  assert.is(reader.stored(store({ locality: "elsewhere" })), "not_local");
  assert.is(reader.removed(removal({ locality: "REMOTE" })), "not_local");
  assert.is(outcome(reader.stored(store({ locality: "LOCAL" }))), "stored");
});

test("kv 167: a block that is its own parent, or comes twice, changes nothing", () => {
  const reader = new EventReader(settings);
  assert.is(reader.stored(store({ parent: 2n })), "self_parent");
  assert.is(reader.stored(store({ hashes: BigUint64Array.of(5n, 5n) })), "duplicate_in_event");
});

test("another block size is refused; a token list that is too short ends the event early", () => {
  const reader = new EventReader(settings);
  assert.is(reader.stored(store({ blockSize: 4 })), "block_size_mismatch");
  const short = read(store({ tokens: Uint32Array.of(1, 2, 3) }), reader);
  assert.equal([...short.hashes], [1n]);
  assert.equal([...short.tokens], [1, 2]);
});

test("Eagle's windows keep one token more", () => {
  const event = read(store({ isBigram: true, tokens: Uint32Array.of(1, 2, 3, 4, 5) }));
  assert.ok(event.eagle);
  assert.is(event.tokens.length, 5);
  const short = read(store({ isBigram: true, tokens: Uint32Array.of(1, 2, 3, 4) }));
  assert.is(short.hashes.length, 1);
  assert.equal([...short.tokens], [1, 2, 3]);
});

test("a parent of 0 is no parent in arrays only", () => {
  assert.is(read(store({ parent: 0n, isArray: true })).parent, undefined);
  assert.is(read(store({ parent: 0n })).parent, 0n);
});

test("media and their tiers", () => {
  const tiers = [undefined, "GPU", "DEVICE", "cpu", "CPU_PINNED", "CPU_TIER1", "CPU_TIER2", "DISK"]
    .map(tierOf);
  assert.equal(tiers, ["device", "device", "device", "host", "host", "host", "disk", "disk"]);
  assert.equal(["NVME", "STORAGE", "EXTERNAL", "NETWORK", "REMOTE", "SHARED", "?"].map(tierOf), [
    "disk",
    "disk",
    "external",
    "external",
    "external",
    "external",
    "device",
  ]);
});

test("the same first block under another hash contradicts what the publisher said before", () => {
  const reader = new EventReader(settings);
  assert.not(reader.contradicts(store()));
  assert.not(reader.contradicts(store()));
  const renamed = BigUint64Array.of(8n, 9n);
  assert.not(reader.contradicts(store({ hashes: renamed, lora: "a" })));
  assert.not(reader.contradicts(store({ hashes: renamed, extraKeys: [["salt"], []] })));
  assert.not(reader.contradicts(store({ hashes: renamed, medium: "CPU" })));
  assert.not(reader.contradicts(store({ hashes: renamed, parent: 5n })));
  assert.ok(reader.contradicts(store({ hashes: renamed })));
});

test("the state survives JSON, and restores what was learned", () => {
  const reader = new EventReader(settings);
  reader.stored(store({ groupIndex: 2, specKind: "full_attention" }));
  read(store({ salt: "tenant", hashes: BigUint64Array.of(2n ** 63n, 6n) }), reader);
  read(store({ salt: "a", hashes: BigUint64Array.of(7n, 8n) }), reader);
  read(store({ salt: "b", hashes: BigUint64Array.of(7n, 9n) }), reader);
  const copy = new EventReader(settings);
  const text = new DecoderTextReader();
  for (const part of decoderText({ reader: reader.state(), digests: [] })) text.push(part);
  copy.restore(text.finish().reader);
  const child = (parent: bigint) => store({ parent, hashes: BigUint64Array.of(50n, 51n) });
  assert.is(read(child(2n ** 63n), copy).salt, "tenant");
  assert.is(copy.stored(child(7n)), "ambiguous_cache_namespace");
  assert.is(outcome(copy.removed(removal({ groupIndex: 2 }))), "removed");
  assert.equal(copy.state().groups, reader.state().groups);
});

test("namespaces cost nothing until there is one, and are forgotten with their last block", () => {
  const spaces = new Namespaces();
  spaces.stored(BigUint64Array.of(1n, 2n), undefined);
  assert.is(spaces.state(), undefined);
  spaces.stored(BigUint64Array.of(3n), "tenant");
  spaces.stored(BigUint64Array.of(3n), "tenant");
  spaces.removed(BigUint64Array.of(3n));
  assert.equal(spaces.of(3n), { salt: "tenant" });
  spaces.removed(BigUint64Array.of(3n));
  assert.equal(spaces.of(3n), { salt: undefined });
  assert.equal(spaces.state()?.salts, []);
});

test("the table of u64 keys behaves as a map with counts", () => {
  const key = fc.bigInt({ min: 0n, max: 40n }).map((number) => number * 0x1_0000_0001n);
  const step = fc.tuple(fc.constantFrom("add", "drop", "get"), key, fc.integer({ min: 1, max: 9 }));
  fc.assert(
    fc.property(fc.array(step, { maxLength: 400 }), (steps) => {
      const table = new U64Table();
      const model = new Map<bigint, { value: number; count: number }>();
      for (const [kind, hash, value] of steps) {
        const low = Number(hash & 0xffffffffn);
        const high = Number(hash >> 32n);
        const known = model.get(hash);
        if (kind === "add") {
          assert.is(table.add(low, high, value), known?.value ?? 0);
          if (known === undefined) model.set(hash, { value, count: 1 });
          else known.count += 1;
        } else if (kind === "drop") {
          const goes = known !== undefined && known.count === 1;
          assert.is(table.drop(low, high), goes ? known.value : 0);
          if (goes) model.delete(hash);
          else if (known !== undefined) known.count -= 1;
        } else assert.is(table.get(low, high), known?.value ?? 0);
      }
      assert.is(table.size, model.size);
      assert.is([...table.entries()].length, model.size);
    }),
    { seed: 21, numRuns: 300 },
  );
});

test.run();
