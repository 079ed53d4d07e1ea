import type { Metrics } from "../observe/metrics.ts";
import type { DumpEnd } from "./dump_body.ts";

/** What a source reports about the dumps that it gives. */
export interface DumpMetrics {
  started(): void;
  ended(end: DumpEnd, bytes: number, blocks: number, ms: number): void;
  refused(code: string): void;
}

export function createDumpMetrics(metrics: Metrics): DumpMetrics {
  const active = metrics.gauge("baton_kv_dumps_active", "Dumps being served now.");
  const total = metrics.counter(
    "baton_kv_dumps_total",
    "Dumps served, by how they ended; `refused_...` never began.",
    ["end"],
  );
  const bytes = metrics.counter("baton_kv_dump_bytes_total", "Bytes of dumps, before gzip.");
  const blocks = metrics.counter("baton_kv_dump_blocks_total", "Blocks written into dumps.");
  const seconds = metrics.histogram("baton_kv_dump_seconds", "Time to serve a whole dump.");
  return {
    started: () => active.add(1),
    ended(end, byteCount, blockCount, ms) {
      active.add(-1);
      total.inc({ end });
      bytes.inc({}, byteCount);
      blocks.inc({}, blockCount);
      if (end === "complete") seconds.observe(ms / 1000);
    },
    refused: (code) => total.inc({ end: `refused_${code}` }),
  };
}
