/**
 * The files of the status page, read once at the start.
 */

import type { UiFile } from "../http/admin.ts";
import type { Files } from "../runtime/runtime.ts";

const TYPES: Readonly<Record<string, string>> = {
  html: "text/html; charset=utf-8",
  js: "text/javascript; charset=utf-8",
  css: "text/css; charset=utf-8",
  svg: "image/svg+xml",
};

export async function readUiFiles(files: Files): Promise<ReadonlyMap<string, UiFile>> {
  const folder = decodeURIComponent(new URL("../ui", import.meta.url).pathname);
  const found = new Map<string, UiFile>();
  for (const name of await files.list(folder)) {
    const contentType = TYPES[name.slice(name.lastIndexOf(".") + 1)];
    if (contentType === undefined) continue;
    found.set(name, { contentType, body: await files.readText(`${folder}/${name}`) });
  }
  return found;
}
