/**
 * How long a test waits for what must come: long enough for a machine that is busy with other things,
 * since only a failure ever takes it.
 */
export const DEADLINE_MS = 60_000;

/** Waits for a condition of the outside world; throws what did not come, and what `show` shows. */
export async function until(
  condition: () => boolean | Promise<boolean>,
  what = "the condition",
  show?: () => unknown,
): Promise<void> {
  const end = performance.now() + DEADLINE_MS;
  while (!await condition()) {
    if (performance.now() > end) {
      const shown = show === undefined ? "" : `: ${JSON.stringify(show())}`;
      throw new Error(`${what} did not come in ${DEADLINE_MS} ms${shown}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
