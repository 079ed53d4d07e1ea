/** Header compression against the examples of RFC 7541 appendix C, and against what breaks its rules. */

import { Buffer } from "node:buffer";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { FrameWriter } from "../../../src/proxy/http2/frame_writer.ts";
import { HpackDecoder } from "../../../src/proxy/http2/hpack_decoder.ts";
import { HpackEncoder } from "../../../src/proxy/http2/hpack_encoder.ts";
import { STATIC_COUNT, STATIC_FIELDS } from "../../../src/proxy/http2/hpack_table.ts";
import { ConnectionError, FRAME_HEAD_BYTES } from "../../../src/proxy/http2/protocol.ts";
import { runtime } from "../../support/runtime.ts";

function newDecoder(): HpackDecoder {
  return new HpackDecoder(runtime.wire.latin1);
}

/** Decodes a block that is written in hexadecimal digits, and tells its fields as text. */
function decode(decoder: HpackDecoder, hex: string, mostBytes = 65_536): string[] {
  const bytes = Buffer.from(hex.replaceAll(" ", ""), "hex");
  // Somewhere in the middle of a read, as it is on a connection.
  const read = Buffer.concat([Buffer.alloc(7, 0xff), bytes, Buffer.alloc(5, 0xff)]);
  decoder.decode(read, 7, 7 + bytes.length, mostBytes);
  return decoder.fields.map(({ name, value }) => `${name}: ${value}`);
}

function tableOf(decoder: HpackDecoder): string[] {
  return decoder.table.entries().map(({ name, value }) => `${name}: ${value}`);
}

function fails(hex: string, what: RegExp, decoder = newDecoder()): void {
  try {
    decode(decoder, hex);
  } catch (error) {
    assert.instance(error, ConnectionError);
    assert.is((error as ConnectionError).code, 9);
    assert.match((error as ConnectionError).message, what);
    return;
  }
  assert.unreachable(`${hex} was taken`);
}

test("RFC 7541 C.2: the four ways to write a field", () => {
  const indexed = newDecoder();
  const custom = "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572";
  assert.equal(decode(indexed, custom), ["custom-key: custom-header"]);
  assert.equal(tableOf(indexed), ["custom-key: custom-header"]);
  assert.is(indexed.table.bytes, 55);
  const others = newDecoder();
  const path = "040c 2f73 616d 706c 652f 7061 7468";
  assert.equal(decode(others, path), [":path: /sample/path"]);
  const never = "1008 7061 7373 776f 7264 0673 6563 7265 74";
  assert.equal(decode(others, never), ["password: secret"]);
  assert.equal(decode(others, "82"), [":method: GET"]);
  assert.equal(tableOf(others), []);
});

test("RFC 7541 C.3 and C.4: requests, in plain texts and in the Huffman code", () => {
  const first = [
    ":method: GET",
    ":scheme: http",
    ":path: /",
    ":authority: www.example.com",
  ];
  const third = [
    ":method: GET",
    ":scheme: https",
    ":path: /index.html",
    ":authority: www.example.com",
    "custom-key: custom-value",
  ];
  const blocks = [
    [
      "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
      "8286 84be 5808 6e6f 2d63 6163 6865",
      "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ],
    [
      "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
      "8286 84be 5886 a8eb 1064 9cbf",
      "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ],
  ] as const;
  for (const [one, two, three] of blocks) {
    const decoder = newDecoder();
    assert.equal(decode(decoder, one), first);
    assert.is(decoder.table.bytes, 57);
    assert.equal(decode(decoder, two), [...first, "cache-control: no-cache"]);
    assert.is(decoder.table.bytes, 110);
    assert.equal(decode(decoder, three), third);
    assert.equal(tableOf(decoder), [
      "custom-key: custom-value",
      "cache-control: no-cache",
      ":authority: www.example.com",
    ]);
    assert.is(decoder.table.bytes, 164);
  }
});

test("RFC 7541 C.5 and C.6: answers with a table of 256 bytes, which evicts", () => {
  const location = "location: https://www.example.com";
  const date = "date: Mon, 21 Oct 2013 20:13:21 GMT";
  const later = "date: Mon, 21 Oct 2013 20:13:22 GMT";
  const cookie = "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";
  const plain = [
    "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a" +
    "3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
    "4803 3330 37c1 c0bf",
    "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04" +
    "677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49" +
    "553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
  ];
  const coded = [
    "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e" +
    "919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
    "4883 640e ffc1 c0bf",
    "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7" +
    "821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed" +
    "4ee5 b106 3d50 07",
  ];
  for (const [one, two, three] of [plain, coded]) {
    const decoder = newDecoder();
    // The table's size as the other side sets it: 256.
    const first = decode(decoder, `3fe101${one}`);
    assert.equal(first, [":status: 302", "cache-control: private", date, location]);
    assert.is(decoder.table.bytes, 222);
    assert.equal(decode(decoder, two ?? ""), [
      ":status: 307",
      "cache-control: private",
      date,
      location,
    ]);
    assert.is(decoder.table.bytes, 222);
    assert.equal(decode(decoder, three ?? ""), [
      ":status: 200",
      "cache-control: private",
      later,
      location,
      "content-encoding: gzip",
      cookie,
    ]);
    assert.equal(tableOf(decoder), [cookie, "content-encoding: gzip", later]);
    assert.is(decoder.table.bytes, 215);
  }
});

test("every static entry is where RFC 7541 appendix A has it", () => {
  const decoder = newDecoder();
  assert.is(STATIC_COUNT, 61);
  STATIC_FIELDS.forEach(([name, value], at) => {
    const hex = (0x80 | (at + 1)).toString(16);
    assert.equal(decode(decoder, hex), [`${name}: ${value}`]);
  });
  assert.equal(decode(decoder, "88 90 bd"), [
    ":status: 200",
    "accept-encoding: gzip, deflate",
    "www-authenticate: ",
  ]);
});

test("numbers: RFC 7541 C.1 as sizes of the table, and what is too large", () => {
  const decoder = newDecoder();
  // 10 and 1337 with a prefix of five bits (C.1.1, C.1.2), both allowed by the default size.
  assert.equal(decode(decoder, "2a 3f9a0a"), []);
  fails("3fffffffff0f", /too large/);
  fails("3fe21f", /larger than allowed/);
  assert.equal(decode(newDecoder(), "3fe11f"), []);
  fails("ff8080808000", /too large/);
  fails("ff80", /ends in a number/);
});

test("what breaks the rules is an error of compression", () => {
  fails("80", /no entry 0/);
  fails("be", /no entry 62/);
  fails("7e 01 61", /no entry 62/);
  fails("00", /before a text/);
  fails("00 03 6162", /in a text/);
  fails("00 01 61", /before a text/);
  fails("82 20", /among the fields/);
  fails("00 7fffffffff07 61", /too large/);
  // Huffman: padding of zeros, of eight bits and more, and the end mark itself (section 5.2).
  fails("00 0161 8110", /Huffman/);
  fails("00 0161 82 1fff", /Huffman/);
  fails("00 0161 84 ffffffff", /Huffman/);
  fails("00 0161 85 fffffffc ff", /Huffman/);
  assert.equal(decode(newDecoder(), "00 0161 81 1f"), ["a: a"]);
});

test("a list that is too large is cut, and the table goes on as if it were not", () => {
  const decoder = newDecoder();
  // Fields of 35 and 36 bytes, the first of which enters the table.
  const fields = decode(decoder, "40 0161 02 6262  00 0163 03 646464  be be be", 100);
  assert.equal(fields, ["a: bb"].concat(["c: ddd"]));
  assert.is(decoder.isTooLarge, true);
  assert.equal(decode(decoder, "be", 100), ["a: bb"]);
  assert.is(decoder.isTooLarge, false);
});

test("names with capitals, control bytes and spaces at the ends of values are told malformed", () => {
  const malformed = (hex: string): boolean => {
    const decoder = newDecoder();
    decode(decoder, hex);
    return decoder.fields.every(({ kind }) => kind === 0);
  };
  for (
    const hex of ["00 0141 0162", "00 00 0162", "00 0120 0162", "00 013a 0162", "00 0180 0162"]
  ) {
    assert.ok(malformed(hex), hex);
  }
  for (
    const hex of ["00 0161 0100", "00 0161 010a", "00 0161 010d", "00 0161 0120", "00 0161 026109"]
  ) {
    assert.ok(malformed(hex), hex);
  }
  // An entry whose value is malformed lends a name that is not.
  const decoder = newDecoder();
  assert.equal(decode(decoder, "40 0161 010a 7e 0162"), ["a: \n", "a: b"]);
  assert.equal(decoder.fields.map(({ kind }) => kind === 0), [true, false]);
  assert.not(malformed("00 0161 03 612062"));
  assert.not(malformed("00 0161 01 e9"));
});

/** What the encoder writes for lines, as a block. */
function encode(encoder: HpackEncoder, lines: string, status = 200): Uint8Array {
  const out = new FrameWriter();
  const at = out.beginBlock();
  encoder.begin(out);
  encoder.status(out, status);
  encoder.lines(out, lines);
  out.endBlock(at, 0, 1);
  const block = out.view().slice(FRAME_HEAD_BYTES);
  out.clear(false);
  return block;
}

test("what the encoder writes the decoder reads, and repeated fields become one byte", () => {
  const encoder = new HpackEncoder();
  const decoder = newDecoder();
  const sizes: number[] = [];
  for (let round = 0; round < 4; round++) {
    const lines = "Content-Type: text/plain\r\nX-Own:  spaced \r\nServer: caf\xe9\r\n" +
      `X-Request-Id: r-${round}\r\nSet-Cookie: a=1\r\nConnection: close\r\nEmpty:\r\n`;
    const block = encode(encoder, lines);
    sizes.push(block.length);
    decoder.decode(block, 0, block.length, 65_536);
    assert.equal(decoder.fields.map(({ name, value }) => `${name}: ${value}`), [
      ":status: 200",
      "content-type: text/plain",
      "x-own: spaced",
      "server: caf\xe9",
      `x-request-id: r-${round}`,
      "set-cookie: a=1",
      "empty: ",
    ]);
  }
  assert.equal(
    tableOf(decoder).sort(),
    ["content-type: text/plain", "empty: ", "server: caf\xe9", "x-own: spaced"],
  );
  assert.ok((sizes[3] as number) < (sizes[0] as number) / 1.5, sizes.join());
  assert.is(sizes[2], sizes[3]);
});

test("secrets are marked as never to be indexed", () => {
  const encoder = new HpackEncoder();
  for (const name of ["authorization", "cookie", "set-cookie", "proxy-authorization"]) {
    for (let round = 0; round < 3; round++) {
      const block = encode(encoder, `${name}: secret\r\n`);
      assert.is((block[1] as number) & 0xf0, 0x10, name);
      assert.match(Buffer.from(block).toString("latin1"), /secret$/);
    }
  }
});

test("the other side's table size is kept, told, and never more than the default", () => {
  const encoder = new HpackEncoder();
  const decoder = newDecoder();
  const read = (lines: string): string[] => {
    const block = encode(encoder, lines);
    decoder.decode(block, 0, block.length, 65_536);
    return decoder.fields.map(({ name, value }) => `${name}: ${value}`).slice(1);
  };
  for (let round = 0; round < 3; round++) read("a: 1\r\nb: 2\r\n");
  assert.equal(tableOf(decoder), ["b: 2", "a: 1"]);
  encoder.resize(40);
  assert.equal(read("b: 2\r\n"), ["b: 2"]);
  assert.equal(tableOf(decoder), ["b: 2"]);
  encoder.resize(0);
  encoder.resize(1_000_000);
  assert.equal(read("b: 2\r\n"), ["b: 2"]);
  // Emptied in between, as the two sizes in the block say, and filled again with what repeats.
  assert.equal(tableOf(decoder), ["b: 2"]);
  for (let at = 0; at < 400; at++) {
    const lines = `name-${at % 100}: ${"v".repeat(100)}\r\n`;
    assert.equal(read(lines + lines), Array(2).fill(lines.trim()));
    assert.ok(decoder.table.bytes <= 4096);
  }
});

test("statuses that have no entry are written out", () => {
  const decoder = newDecoder();
  for (const status of [100, 103, 200, 201, 304, 404, 503, 599, 999]) {
    const block = encode(new HpackEncoder(), "", status);
    decoder.decode(block, 0, block.length, 65_536);
    assert.is(decoder.fields[0]?.value, String(status));
  }
});

test.run();
