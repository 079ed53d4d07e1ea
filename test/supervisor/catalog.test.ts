import * as fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import {
  type Catalog,
  CatalogRefused,
  isVersionName,
  mayFollow,
  parseCatalog,
} from "../../src/supervisor/catalog.ts";

const A = "a".repeat(64);
const B = "b".repeat(64);
const FROM = "https://oracle.test/versions";

function list(...versions: Record<string, unknown>[]): string {
  return JSON.stringify({ versions });
}

function entry(change: Record<string, unknown> = {}): Record<string, unknown> {
  return { name: "v1", binary: "https://files.test/v1.zip", sha256: A, ...change };
}

function refused(text: string, message: RegExp, base = FROM): void {
  try {
    parseCatalog(text, base);
  } catch (error) {
    assert.instance(error, CatalogRefused);
    assert.match((error as Error).message, message);
    return;
  }
  assert.unreachable(`accepted: ${text}`);
}

test("case 193: a valid list is read, and fields that are not known are ignored", () => {
  const catalog = parseCatalog(
    list(entry({ port: 5000 }), entry({ name: "v2", sha256: B.toUpperCase() })),
    FROM,
  );
  assert.equal(catalog, {
    versions: [
      { name: "v1", url: "https://files.test/v1.zip", sha256: A },
      { name: "v2", url: "https://files.test/v1.zip", sha256: B },
    ],
    withdrawn: [],
  });
});

test("case 195: one bad name refuses the whole list (B8)", () => {
  for (const name of ["", " v2 ", "../escape", "nested/v2"]) {
    refused(list(entry(), entry({ name })), /is not a version name/);
  }
  refused(list(entry({ name: 3 })), /is not a version name/);
});

test("case 196: two entries of one name", () => {
  refused(list(entry(), entry({ sha256: B })), /two entries are named v1/);
});

test("case 197: a hash that is a path (B9)", () => {
  refused(list(entry({ sha256: "../escape" })), /not 64 hex/);
});

test("case 198: the grammar of names", () => {
  for (const name of ["v5", "v4+hotfix", "0", "v0.2.11", "a_b~c-d", "x".repeat(64)]) {
    assert.ok(isVersionName(name), name);
  }
  const bad = [
    "",
    ".",
    "..",
    "a b",
    " a",
    "a/b",
    "a\\b",
    "a?b",
    "a#b",
    "a%b",
    'a"b',
    "a'b",
    "a\nb",
  ];
  for (const name of [...bad, ".hidden", "-x", "x".repeat(65), "ü", "a\0", "v1\n"]) {
    assert.not(isVersionName(name), JSON.stringify(name));
  }
});

test("case 199: the hash from the field", () => {
  assert.is(parseCatalog(list(entry()), FROM).versions[0]?.sha256, A);
});

test("case 200: the hash from the address", () => {
  const binary = `https://files.test/v1.zip?checksum=sha256:${B.toUpperCase()}`;
  for (const sha256 of [undefined, ""]) {
    assert.is(parseCatalog(list(entry({ binary, sha256 })), FROM).versions[0]?.sha256, B);
  }
});

test("case 201: with both the field wins", () => {
  const binary = `https://files.test/v1.zip?checksum=sha256:${B}`;
  assert.is(parseCatalog(list(entry({ binary })), FROM).versions[0]?.sha256, A);
});

test("case 202: a bad field is an error, even beside a good address", () => {
  const binary = `https://files.test/v1.zip?checksum=sha256:${B}`;
  for (const sha256 of ["x", A + "0", A.slice(1), 5, ` ${A}`]) {
    refused(list(entry({ binary, sha256 })), /`sha256` is not 64 hex/);
  }
});

test("case 203: a bad checksum in the address", () => {
  for (const checksum of ["sha256:xyz", `md5:${A}`, A, "sha256:"]) {
    refused(
      list(entry({ binary: `https://f.test/v?checksum=${checksum}`, sha256: "" })),
      /checksum in the address/,
    );
  }
});

test("case 204: no hash at all", () => {
  refused(list(entry({ sha256: undefined })), /neither `sha256` nor/);
});

test("what is not a list of versions is refused, whatever it is", () => {
  refused("", /not JSON/);
  refused('{"versions":[', /not JSON/);
  refused("[]", /not a JSON object/);
  refused("null", /not a JSON object/);
  refused('{"versions":{}}', /not a list/);
  refused("{}", /not a list/);
  refused('{"versions":[null]}', /entry 0 is not an object/);
  refused(list(entry({ binary: "" })), /not an address/);
  refused(list(entry({ binary: 7 })), /not an address/);
});

test("an empty list is valid: whether it is believed is not for the list to say", () => {
  assert.equal(parseCatalog('{"versions":[]}', FROM), { versions: [], withdrawn: [] });
});

test("a remote oracle cannot make a host read its own files, or use other schemes", () => {
  for (const binary of ["file:///etc/passwd", "ftp://x/y", "javascript:1", "data:,x"]) {
    refused(list(entry({ binary })), /not allowed|not an address/);
  }
});

test("a file on another host, or an address that is broken, refuses the list", () => {
  refused(list(entry({ binary: "file://elsewhere/x" })), /another host/, "file:/srv/versions.json");
  refused(list(entry({ binary: "file:///%zz" })), /./, "file:/srv/versions.json");
  refused(list(entry({ binary: "ftp://x/y" })), /not an address/, "file:/srv/versions.json");
});

test("a relative artifact lies beside its oracle", () => {
  const of = (binary: string, base: string) =>
    parseCatalog(list(entry({ binary })), base).versions[0]?.url;
  assert.is(of("./a/v1.zip", FROM), "https://oracle.test/a/v1.zip");
  assert.is(of("./a/v1.zip", "file:/srv/versions.json"), "file:/srv/a/v1.zip");
  assert.is(of("a b/v1.zip", "file:///srv/my%20dir/versions.json"), "file:/srv/my dir/a b/v1.zip");
  assert.is(of("a.zip", "file:versions.json"), "file:a.zip");
  assert.is(of("./a.zip", "file:./conf/versions.json"), "file:./conf/a.zip");
  assert.is(of("/abs/a.zip", "file:/srv/versions.json"), "file:/abs/a.zip");
  assert.is(of("file:///abs/a%20b.zip", "file:/srv/versions.json"), "file:/abs/a b.zip");
  assert.is(of("https://f.test/x.zip", "file:/srv/versions.json"), "https://f.test/x.zip");
});

test("an entry point is a path inside the artifact", () => {
  const of = (entryPoint: unknown) => parseCatalog(list(entry({ entryPoint })), FROM);
  assert.is(of("bin/app").versions[0]?.entryPoint, "bin/app");
  assert.is(of("").versions[0]?.entryPoint, undefined);
  for (const entryPoint of ["/bin/app", "../app", "a/../../b", "a\\b", 3]) {
    refused(list(entry({ entryPoint })), /not a path inside/);
  }
});

function catalogText(change: Record<string, unknown>): string {
  return JSON.stringify({
    schema: 1,
    initialized: true,
    revision: 7,
    versions: [entry()],
    ...change,
  });
}

test("the form with revisions is read, and refused where it is not what it says", () => {
  assert.is(parseCatalog(catalogText({}), FROM).revision, 7);
  refused(catalogText({ schema: 2 }), /schema 2/);
  refused(catalogText({ initialized: false }), /not initialised/);
  for (const revision of [-1, 1.5, "7", null, 2 ** 60]) {
    refused(catalogText({ revision }), /revision/);
  }
});

test("names that are taken back are read, and cannot be listed as well", () => {
  assert.equal(parseCatalog(catalogText({ withdrawn: ["v0"] }), FROM).withdrawn, ["v0"]);
  refused(catalogText({ withdrawn: ["v1"] }), /both listed and withdrawn/);
  refused(catalogText({ withdrawn: ["../x"] }), /not a version name/);
  refused(catalogText({ withdrawn: "v0" }), /not a list of names/);
});

function revision(number: number, ...hashes: [string, string][]): Catalog {
  const versions = hashes.map(([name, sha256]) => entry({ name, sha256 }));
  return parseCatalog(catalogText({ revision: number, versions }), FROM);
}

test("case 206: the same revision with the same content in another order changes nothing", () => {
  const current = revision(7, ["v1", A], ["v2", B]);
  assert.is(mayFollow(current, revision(7, ["v2", B], ["v1", A])), false);
});

test("case 207: a lower revision", () => {
  assert.throws(
    () => mayFollow(revision(7, ["v1", A]), revision(6, ["v1", A])),
    /regressed from 7 to 6/,
  );
});

test("case 208: the same revision with other content", () => {
  assert.throws(
    () => mayFollow(revision(7, ["v1", A]), revision(7, ["v1", B])),
    /changed in place/,
  );
});

test("case 209: a higher revision without a name that was listed", () => {
  const current = revision(7, ["v1", A], ["v2", B]);
  assert.throws(() => mayFollow(current, revision(8, ["v1", A])), /removed version v2/);
});

test("a name may go when it is withdrawn by name (M16)", () => {
  const current = revision(7, ["v1", A], ["v2", B]);
  const next = parseCatalog(
    catalogText({ revision: 8, versions: [entry()], withdrawn: ["v2"] }),
    FROM,
  );
  assert.is(mayFollow(current, next), true);
});

test("lists without revisions follow each other freely, also to one with revisions, never back", () => {
  const plain = parseCatalog(list(entry()), FROM);
  const other = parseCatalog(list(entry({ name: "v9" })), FROM);
  assert.is(mayFollow(undefined, plain), true);
  assert.is(mayFollow(plain, plain), false);
  assert.is(mayFollow(plain, other), true);
  assert.is(mayFollow(plain, revision(3, ["v1", A])), true);
  assert.throws(() => mayFollow(revision(3, ["v1", A]), plain), /no revision, though/);
});

test("whatever follows, revisions only rise and no name is lost without being withdrawn", () => {
  const hash = fc.constantFrom(A, B);
  const step = fc.record({
    revision: fc.integer({ min: 0, max: 6 }),
    names: fc.uniqueArray(fc.constantFrom("v1", "v2", "v3"), { maxLength: 3 }),
    withdrawn: fc.uniqueArray(fc.constantFrom("v1", "v2", "v3"), { maxLength: 2 }),
    sha256: hash,
  });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 30 }), (steps) => {
      let current: Catalog | undefined;
      for (const { revision, names, withdrawn, sha256 } of steps) {
        const next = parseCatalog(
          catalogText({
            revision,
            versions: names.map((name) => entry({ name, sha256 })),
            withdrawn: withdrawn.filter((name) => !names.includes(name)),
          }),
          FROM,
        );
        let changed: boolean;
        try {
          changed = mayFollow(current, next);
        } catch {
          continue;
        }
        if (current !== undefined) {
          assert.ok((next.revision ?? -1) >= (current.revision ?? -1));
          assert.is(changed, next.revision !== current.revision);
          const there = new Set([...next.versions.map((one) => one.name), ...next.withdrawn]);
          for (const { name } of current.versions) assert.ok(there.has(name));
        }
        current = next;
      }
    }),
    { seed: 205, numRuns: 500 },
  );
});

test("any text is either a list by all the rules or refused as one", () => {
  const value = fc.oneof(
    fc.string(),
    fc.json(),
    fc.record({ versions: fc.array(fc.dictionary(fc.string(), fc.jsonValue())) })
      .map((one) => JSON.stringify(one)),
  );
  fc.assert(
    fc.property(value, (text) => {
      try {
        for (const one of parseCatalog(text, FROM).versions) {
          assert.ok(isVersionName(one.name));
          assert.match(one.sha256, /^[0-9a-f]{64}$/);
        }
      } catch (error) {
        assert.instance(error, CatalogRefused);
      }
    }),
    { seed: 195, numRuns: 1_000 },
  );
});

test.run();
