/** Waits for a condition of the outside world, with a generous deadline. */
export async function until(
  condition: () => boolean | Promise<boolean>,
  what = "the condition",
  deadlineMs = 20_000,
): Promise<void> {
  const end = Date.now() + deadlineMs;
  while (!(await condition())) {
    if (Date.now() > end) throw new Error(`${what} did not come true in ${deadlineMs} ms`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
