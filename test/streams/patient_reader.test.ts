import { test } from "uvu";
import * as assert from "uvu/assert";
import {
  type PatienceOptions,
  patientReader,
  StreamStalled,
  StreamTooLong,
} from "../../src/streams/patient_reader.ts";
import { SimClock } from "../replica/support/sim_clock.ts";

interface Source {
  readonly stream: ReadableStream<Uint8Array>;
  isCancelled: boolean;
}

/** A source that gives `bytes` every `everyMs`. */
function drip(clock: SimClock, bytes: number, everyMs: number, times = Infinity): Source {
  let given = 0;
  const source: Source = {
    isCancelled: false,
    stream: new ReadableStream({
      async pull(controller) {
        await new Promise<void>((resolve) => clock.after(everyMs, resolve));
        if (given++ < times) controller.enqueue(new Uint8Array(bytes));
        else controller.close();
      },
      cancel() {
        source.isCancelled = true;
      },
    }, { highWaterMark: 0 }),
  };
  return source;
}

async function read(clock: SimClock, source: Source, more: Partial<PatienceOptions> = {}) {
  let bytes = 0;
  let ended: unknown;
  const work = async () => {
    const options = { clock, idleTimeoutMs: 1000, ...more };
    for await (const chunk of patientReader(source.stream, options)) bytes += chunk.length;
  };
  work().then(() => (ended = "end"), (error: unknown) => (ended = error));
  await clock.run(() => ended !== undefined, 1_000_000);
  return { bytes, ended };
}

test("a steady source is read to its end, however long it takes in all", async () => {
  const clock = new SimClock();
  const { bytes, ended } = await read(clock, drip(clock, 500, 900, 200));
  assert.is(ended, "end");
  assert.is(bytes, 100_000);
  assert.ok(clock.monotonic() >= 180_000);
});

test("a source that falls silent is given up and cancelled", async () => {
  const clock = new SimClock();
  const source = drip(clock, 10, 1001);
  const { ended } = await read(clock, source);
  assert.instance(ended, StreamStalled);
  assert.is(source.isCancelled, true);
});

test("a byte now and then is not progress", async () => {
  const clock = new SimClock();
  const { ended, bytes } = await read(clock, drip(clock, 1, 400), { leastBytesPerWindow: 100 });
  assert.instance(ended, StreamStalled);
  assert.ok(bytes < 10);
});

test("the time that the reader itself takes does not count", async () => {
  const clock = new SimClock();
  const source = drip(clock, 1000, 10, 5);
  let ended: unknown;
  const work = async () => {
    for await (const _ of patientReader(source.stream, { clock, idleTimeoutMs: 1000 })) {
      await new Promise<void>((resolve) => clock.after(5000, resolve));
    }
  };
  work().then(() => (ended = "end"), (error: unknown) => (ended = error));
  await clock.run(() => ended !== undefined, 1_000_000);
  assert.is(ended, "end");
});

test("more bytes than allowed end it, and so does the signal", async () => {
  const clock = new SimClock();
  const long = drip(clock, 100, 1);
  assert.instance((await read(clock, long, { maxBytes: 1000 })).ended, StreamTooLong);
  assert.is(long.isCancelled, true);
  const stop = new AbortController();
  clock.after(50, () => stop.abort(new Error("stopped")));
  const { ended } = await read(clock, drip(clock, 1, 1), { signal: stop.signal });
  assert.is((ended as Error).message, "stopped");
});

test.run();
