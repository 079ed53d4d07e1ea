/**
 * What the proxies of the proxy bench have behind them: nginx, and for answers in pieces a server of
 * ours, since nginx puts pieces together.
 */

import { chmodSync, closeSync, ftruncateSync, mkdirSync, openSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import type { BenchContext } from "./bench.ts";
import { freePort, Pinned, untilListening } from "./pinned.ts";
import { FILES, type ProxyCase } from "./proxy_cases.ts";

/** Starts the one that the case needs on the core, and answers its port. */
export async function startUpstream(
  context: BenchContext,
  { inPieces }: ProxyCase,
  core: number,
  folder: string,
  running: Pinned[],
): Promise<number> {
  if (inPieces === true) {
    const file = join(context.root, "scripts/lib/pieces_upstream.ts");
    const pieces = new Pinned("pieces", core, context.command("node", file));
    running.push(pieces);
    return await pieces.printedPort();
  }
  const port = await freePort();
  const file = join(folder, "upstream.conf");
  writeFileSync(file, configuration(folder, port));
  writeFiles(join(folder, "files"));
  running.push(new Pinned("upstream", core, ["nginx", "-p", folder, "-c", file]));
  await untilListening(port);
  return port;
}

/** nginx reads them as another user where it is started by root. */
function writeFiles(folder: string): void {
  chmodSync(dirname(folder), 0o755);
  mkdirSync(folder);
  for (const [name, bytes] of Object.entries(FILES)) {
    const file = openSync(join(folder, name), "w");
    ftruncateSync(file, bytes);
    closeSync(file);
  }
}

/** An upload is read to its end, and answered by a request without it. */
function configuration(folder: string, port: number): string {
  return `daemon off; worker_processes 1; error_log /dev/null; pid ${folder}/upstream.pid;
    events { worker_connections 4096; }
    http { access_log off; keepalive_requests 100000000; keepalive_timeout 65s; sendfile on;
      client_body_temp_path ${folder}/a; proxy_temp_path ${folder}/b; fastcgi_temp_path ${folder}/c;
      uwsgi_temp_path ${folder}/d; scgi_temp_path ${folder}/e;
      client_max_body_size 0; client_body_buffer_size 2m;
      proxy_http_version 1.1; proxy_set_header Connection "";
      upstream self { server 127.0.0.1:${port}; keepalive 64; }
      server { listen 127.0.0.1:${port} backlog=4096; root ${folder}/files;
        ${Object.keys(FILES).map((name) => `location = /${name} { }`).join(" ")}
        location = /upload {
          proxy_pass http://self/x; proxy_method GET; proxy_pass_request_body off;
          proxy_set_header Content-Length "";
        }
        location / { return 200 "${"x".repeat(1024)}"; } } }`;
}
