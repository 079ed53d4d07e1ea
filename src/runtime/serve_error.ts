/** Runs a handler; one that throws becomes a bare 500, the same on both runtimes. */
export async function answerOrError(
  handler: () => Response | Promise<Response>,
): Promise<Response> {
  try {
    return await handler();
  } catch {
    return new Response("internal error\n", { status: 500 });
  }
}
