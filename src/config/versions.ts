/**
 * The options of a `versions` service: where its list of versions comes from, how a build becomes an
 * install, how a child is started, judged, switched to and stopped.
 *
 * Every key but `oracle` has a default. Defaults follow versiond for what it has, and are flat so
 * that each one is also `BATON_<OPTION>` where one service is configured by environment alone. It is
 * one long file because it is one list: most of it is what docs/configuration.md says of each key.
 */

import * as v from "valibot";
import { flag, milliseconds, text, whole } from "./values.ts";

function ms(fallback: number, description: string, least = 0) {
  return v.optional(milliseconds(description, least), fallback);
}

function count(fallback: number, description: string, least = 0, most?: number) {
  return v.optional(whole(description, least, most), fallback);
}

function toggle(fallback: boolean, description: string) {
  return v.optional(flag(description), fallback);
}

function urlPath(fallback: string, description: string) {
  return v.optional(
    v.pipe(
      v.string(),
      v.regex(/^\/[^\s?#]*$/, "a path that starts with / and has no query"),
      v.description(description),
    ),
    fallback,
  );
}

/** A version's name: one safe path component of 1 to 64 characters. */
export const VERSION_NAME = /^[A-Za-z0-9][A-Za-z0-9._+~-]{0,63}$/;

const versionName = v.pipe(
  v.string(),
  v.trim(),
  v.regex(
    VERSION_NAME,
    "a version's name: 1 to 64 letters, digits, and . _ + ~ -, a letter or digit first",
  ),
);

const PLACEHOLDERS = ["binary", "folder", "name", "dataDir", "port", "adminPort", "peerPort"];
const PLACEHOLDERS_ALLOWED = `text with these placeholders only: ${
  PLACEHOLDERS.map((name) => `{${name}}`).join(" ")
}`;

/** Text in which placeholders are filled in; one that is misspelt would reach the child as it is. */
const template = v.pipe(
  v.string(),
  v.check(
    (value) =>
      [...value.matchAll(/\{([A-Za-z]+)\}/g)].every(([, name]) =>
        PLACEHOLDERS.includes(name ?? "")
      ),
    PLACEHOLDERS_ALLOWED,
  ),
);

/** One path component, as the name of a binary. */
const fileName = v.pipe(
  v.string(),
  v.regex(/^(?!\.{1,2}$)[^/\\\0]{1,255}$/, "a plain file name without a slash"),
);

/** What versiond's children are called: only these are asked for their storage mode and admin API. */
const DEVSHARD_NAMES: readonly string[] = ["devshard", "devshardd"];

/** True for the binaries that versiond treats as devshard (storage gate, admin channel, HA rules). */
export function isDevshardBinary(binaryName: string): boolean {
  return DEVSHARD_NAMES.includes(binaryName);
}

/**
 * Variables that reach a child when nothing else is configured: the search path, home, locale, time
 * zone, certificates and proxies, none of which are secrets of the supervisor. A trailing `*`
 * stands for any ending.
 */
export const DEFAULT_CHILD_ENV: readonly string[] = [
  "PATH",
  "HOME",
  "USER",
  "LOGNAME",
  "SHELL",
  "TMPDIR",
  "LANG",
  "LANGUAGE",
  "LC_*",
  "TZ",
  "TZDIR",
  "SSL_CERT_FILE",
  "SSL_CERT_DIR",
  "HTTP_PROXY",
  "HTTPS_PROXY",
  "NO_PROXY",
  "ALL_PROXY",
  "http_proxy",
  "https_proxy",
  "no_proxy",
  "all_proxy",
];

/** What versiond's children read besides: added to the list when it is started by versiond's names. */
export const VERSIOND_CHILD_ENV: readonly string[] = [
  "PG*",
  "DATABASE_URL",
  "DEVSHARD_*",
  "GONKA_*",
];

export const versionsSchema = v.strictObject({
  oracle: v.pipe(
    v.string(),
    v.regex(
      /^(https?:\/\/[^\s]+|file:[^\s].*)$/,
      "an https: or http: URL, or file:<path of a JSON file>",
    ),
    v.description(
      "Where the list of versions comes from: an https: (or, where allowed, http:) URL that is polled, or file:<path>, which is watched.",
    ),
  ),

  // ------------------------------------------------------------------------------- the oracle
  pollIntervalMs: ms(30_000, "Time between two polls of the oracle.", 10),
  pollJitter: v.optional(
    v.pipe(
      v.number(),
      v.minValue(0),
      v.maxValue(0.9),
      v.description(
        "Each poll interval is varied at random by up to this share either way, so that a fleet does not move in step.",
      ),
    ),
    0.1,
  ),
  oracleTimeoutMs: ms(
    10_000,
    "A poll that has not ended by then is an error.",
    10,
  ),
  maxOracleBytes: count(
    1_048_576,
    "The longest oracle answer that is read, in bytes.",
    64,
    2 ** 30,
  ),
  allowEmpty: toggle(
    false,
    "Take an empty list at its word and remove everything. Off: an empty list is ignored while children run.",
  ),
  allowInsecure: toggle(
    false,
    "Allow http: for oracle and artifacts on hosts other than loopback.",
  ),
  staggerMs: ms(
    0,
    "A swap to a new build starts after a random wait of up to this long, so that the hosts of a fleet do not swap in the same second.",
    0,
  ),

  // ------------------------------------------------------------------- artifacts and installs
  binaryName: v.optional(
    v.pipe(
      fileName,
      v.description(
        "The base name of the program inside a zip, and of the installed file. devshard and devshardd get versiond's rules for those programs.",
      ),
    ),
    "devshard",
  ),
  entryPoint: v.optional(
    v.pipe(
      v.string(),
      v.regex(
        /^(?!\/)(?!.*(^|\/)\.{1,2}(\/|$))[^\\\0]+$/,
        "a relative path without . or .. segments",
      ),
      v.description(
        "For an artifact that is a tar.gz tree: the program inside it. Absent: the one file whose base name is binaryName.",
      ),
    ),
  ),
  binDir: v.optional(
    text(
      "Where installs are kept, as <binDir>/<name>/<sha256>/. Default: a folder of the service below stateDir.",
    ),
  ),
  dataDir: v.optional(
    text(
      "Where children keep their data, as <dataDir>/<name>/. Default: a folder of the service below stateDir.",
    ),
  ),
  maxDownloadBytes: count(
    4 * 2 ** 30,
    "The largest artifact that is downloaded, in bytes.",
    1,
    2 ** 50,
  ),
  maxExtractedBytes: count(
    8 * 2 ** 30,
    "The most bytes that an artifact may unpack to.",
    1,
    2 ** 50,
  ),
  maxArchiveEntries: count(100_000, "The most entries that an archive may have.", 1, 10_000_000),
  downloadTimeoutMs: ms(
    1_800_000,
    "The whole time that one artifact may take to download.",
    10,
  ),
  downloadStallMs: ms(
    60_000,
    "A download that brings no byte for this long is broken off (and resumed).",
    10,
  ),
  parallelDownloads: count(2, "How many artifacts are downloaded at once.", 1, 64),
  retainInstalls: count(
    3,
    "How many installs of a version are kept besides those in use: what a rollback can go to without network.",
    0,
    1000,
  ),

  retainRemovedMs: ms(
    2_147_483_647,
    "Installs of a version that nothing lists or runs any more are removed once they are this old.",
  ),

  // -------------------------------------------------------------------------- starting a child
  command: v.optional(
    v.pipe(
      v.array(template),
      v.minLength(1),
      v.description(
        "The child's command line. {binary}, {port}, {adminPort}, {peerPort}, {dataDir}, {name} and {folder} (of the install) are filled in. A child gets an admin port and a peer port of its own where the command or `env` names them.",
      ),
    ),
    ["{binary}", "--data-dir", "{dataDir}", "--port", "{port}"],
  ),
  envAllow: v.optional(
    v.pipe(
      v.array(
        v.pipe(v.string(), v.regex(/^[A-Za-z_][A-Za-z0-9_]*\*?$/, "a variable's name, or NAME*")),
      ),
      v.description(
        "Variables of Baton's own environment that a child gets too; a trailing * stands for any ending. Nothing else is inherited.",
      ),
    ),
    [...DEFAULT_CHILD_ENV],
  ),
  env: v.optional(
    v.pipe(
      v.record(
        v.pipe(v.string(), v.regex(/^[A-Za-z_][A-Za-z0-9_]*$/, "a variable's name")),
        template,
      ),
      v.description("Further variables for every child; the same placeholders as in command."),
    ),
    {},
  ),
  printFlags: v.optional(
    v.pipe(
      v.picklist(["ask", "never"]),
      v.description(
        "ask: before a build is started it is run with --print-binary-version and --print-protocol-version (devshard: two more). never: for programs that do not know such flags and would start.",
      ),
    ),
    "ask",
  ),
  printTimeoutMs: ms(10_000, "The time that one print flag may take.", 10),
  ha: v.optional(
    v.pipe(
      v.string(),
      v.description(
        "Devshard only: GONKA_HA as text (1/t/true/yes/on or 0/f/false/no/off). When on, a child must report postgres storage.",
      ),
    ),
    "",
  ),
  nonHaVersions: v.optional(
    v.pipe(
      v.array(versionName),
      v.description("Devshard only: versions that `ha` does not apply to."),
    ),
    [],
  ),
  basePort: count(5000, "The first port that children get.", 1, 65_535),
  lastPort: count(65_535, "The last port that children get.", 1, 65_535),
  overrides: v.optional(
    v.pipe(
      v.record(versionName, text("The program.")),
      v.description("A local program to run for a version instead of its published build."),
    ),
    {},
  ),
  force: v.optional(
    v.pipe(
      v.array(versionName),
      v.description(
        "Versions to run although the oracle does not list them; each needs an override.",
      ),
    ),
    [],
  ),

  // ---------------------------------------------------------------------------------- readiness
  childProtocol: v.optional(
    v.pipe(
      v.picklist(["http/1.1", "h2c"], '"http/1.1" or "h2c"'),
      v.description(
        "What the traffic to a child speaks: HTTP/1.1, or HTTP/2 in the clear with prior knowledge. " +
          "Probes and drain calls are HTTP/1.1 either way, on the child's admin port if it has one.",
      ),
    ),
    "http/1.1",
  ),
  readyPath: urlPath("/ready", "The child's readiness path."),
  healthPath: urlPath("/healthz", "The child's public health path."),
  readyTimeoutMs: ms(60_000, "How long a new child may take to become ready.", 1),
  readyMaxWaitMs: ms(
    1_920_000,
    "The same, for a child that says it is initialising.",
    1,
  ),
  readyIntervalMs: ms(100, "Time between two readiness probes of a starting child.", 1),
  readyProbeTimeoutMs: ms(500, "Time for one of them.", 1),
  readyPasses: count(2, "How many passes in a row make a starting child ready.", 1, 100),
  readyAttempts: count(
    3,
    "How many times in a row a new build may fail to become ready, or be killed (SIGKILL) before it is, while an older one serves, before it is quarantined. Each attempt has twice the window of the last.",
    1,
    1000,
  ),
  parallelStarts: count(8, "How many children may be starting at once.", 1, 1000),
  monitorIntervalMs: ms(1_000, "Time between two probes of a running child.", 10),
  monitorTimeoutMs: ms(2_000, "Time for one of them.", 10),
  monitorStaleMs: ms(
    5_000,
    "A running child whose last good answer is older than this counts as not ready.",
    10,
  ),
  silentRestartMs: ms(
    60_000,
    "A child that answers no probe at all for this long, though its process lives, is replaced: a new one is started beside it, takes over once it is ready, and the old one drains. Only where builds may overlap. 0: never.",
  ),
  unreadyRestartMs: ms(
    0,
    "The same for a child that answers, but not as ready. 0: never, since what it waits for may be away for its successor too.",
  ),
  warmField: v.optional(
    v.pipe(
      v.string(),
      v.description(
        "Where builds overlap: the switch waits until this field of the readiness body is true. Empty: no such wait. A body without the field does not hold the switch.",
      ),
    ),
    "recovery_complete",
  ),
  recoveryTimeoutMs: ms(
    1_800_000,
    "How long that wait may be before the swap is given up.",
    1,
  ),

  // ------------------------------------------------------------------------- switching, holding
  overlap: v.optional(
    v.pipe(
      v.picklist(["always", "never", "ask"]),
      v.description(
        "May two builds of one version run at once? ask: only if both report storage mode postgres. Default: ask for devshard binaries, else always.",
      ),
    ),
  ),
  bakeMs: ms(
    10_000,
    "After a switch the old build is kept warm this long; if the new one fails in that time, traffic goes back.",
    0,
  ),
  bakeConnectErrors: count(
    5,
    "How many refused connections to the new build in that time send traffic back.",
    1,
    1_000_000,
  ),
  bakeProbeFailures: count(
    3,
    "How many failed readiness probes of the new build in a row in that time send traffic back.",
    1,
    1000,
  ),
  holdTimeoutMs: ms(
    10_000,
    "How long a request waits for a version that is known but not serving.",
    0,
  ),
  holdMaxRequests: count(10_000, "How many requests may wait so, all versions together."),
  holdMaxBytes: count(
    64 * 2 ** 20,
    "How many bytes of request bodies may be buffered for them.",
  ),
  pauseHoldMs: ms(
    30_000,
    "How long a request waits for a version that an operator paused.",
    0,
  ),
  canaryPercent: v.optional(
    v.pipe(
      v.number(),
      v.minValue(0),
      v.maxValue(100),
      v.description(
        "Send this share of a version's requests to a new build first, until it is promoted or rolled back. 0: switch in one step.",
      ),
    ),
    0,
  ),
  canaryHeader: v.optional(
    v.pipe(
      v.string(),
      v.regex(/^([!#$%&'*+.^_`|~0-9A-Za-z-]+(=.+)?)?$/, "a header name, or name=value"),
      v.description(
        "Requests with this header (name, or name=value) go to the new build of a canary. Empty: none.",
      ),
    ),
    "",
  ),

  canaryMs: ms(
    0,
    "A canary that has worked for this long is promoted by itself. 0: an operator promotes it.",
    0,
  ),

  // --------------------------------------------------------------------------- draining, stopping
  drainPath: urlPath("/drain", "Where a child is asked to drain (POST)."),
  drainStatusPath: urlPath("/drain/status", "Where it tells how much is in flight (GET)."),
  drainTimeoutMs: ms(
    900_000,
    "The one deadline for a drain: leases, the child's own work and the cushion below.",
  ),
  drainPollMs: ms(1_000, "Time between two questions for the drain status.", 1),
  drainCushionMs: ms(
    600_000,
    "How long a child without a drain status is left alone before it is stopped, within drainTimeoutMs.",
  ),
  drainTunnelMs: ms(
    300_000,
    "Upgraded connections (WebSockets) that are still open this long after a drain began are closed.",
  ),
  killGraceMs: ms(600_000, "Time between SIGTERM and SIGKILL."),
  childGraceMs: ms(
    600_000,
    "Devshard only: the child's own shutdown grace; the longer of the two counts.",
  ),

  // ------------------------------------------------------------------------- failures, back-off
  restartBackoffMs: ms(1_000, "The first wait after a crash; it doubles.", 1),
  restartBackoffMaxMs: ms(60_000, "The longest such wait.", 1),
  restartResetMs: ms(60_000, "A run longer than this resets the wait.", 1),
  retryBackoffMs: ms(
    10_000,
    "The first wait before a transient failure (network, disk) of a new build is tried again; it doubles.",
    1,
  ),
  retryBackoffMaxMs: ms(600_000, "The longest such wait.", 1),

  // ------------------------------------------------------------------------------ child output
  logMaxBytes: count(
    10 * 2 ** 20,
    "A version's log file is rotated at this size, in bytes.",
    4_096,
    2 ** 40,
  ),
  logFiles: count(5, "How many files of a version's log are kept.", 1, 1000),
  logBytesPerS: count(
    16 * 2 ** 20,
    "The most output of a version that is written in a second, in bytes; what comes faster is dropped and counted.",
    1_024,
  ),
  logTailLines: count(1_000, "How many lines are kept in memory for each version.", 0, 1_000_000),
});

/** The options of one `versions` service, all defaults filled in. */
export type VersionsConfig = v.InferOutput<typeof versionsSchema>;

/** What `overlap` means for this service when it is left out. */
export function overlapRule(config: VersionsConfig): "always" | "never" | "ask" {
  return config.overlap ?? (isDevshardBinary(config.binaryName) ? "ask" : "always");
}

/** Does the command line or the environment of children name this placeholder? */
export function asksFor(
  config: Pick<VersionsConfig, "command" | "env">,
  placeholder: "adminPort" | "peerPort",
): boolean {
  return [...config.command, ...Object.values(config.env)].some((part) =>
    part.includes(`{${placeholder}}`)
  );
}

/** A versions config with every default, for tests and for the service without a file. */
export function defaultVersionsConfig(
  options: v.InferInput<typeof versionsSchema>,
): VersionsConfig {
  return v.parse(versionsSchema, options);
}
