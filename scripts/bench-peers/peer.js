/** Starts one npm proxy: `node peer.js <http-proxy-3|httpxy|fastify> <upstream port>`; prints its port. */

import http from "node:http";

const [kind, upstreamPort] = process.argv.slice(2);
const upstream = `http://127.0.0.1:${upstreamPort}`;
const agent = new http.Agent({ keepAlive: true, maxSockets: 256 });

async function start() {
  if (kind === "fastify") {
    const { default: fastify } = await import("fastify");
    const { default: proxy } = await import("@fastify/http-proxy");
    const app = fastify();
    await app.register(proxy, { upstream, undici: { connections: 256, pipelining: 1 } });
    await app.listen({ port: 0, host: "127.0.0.1" });
    return app.server;
  }
  const { createProxyServer } = kind === "httpxy"
    ? await import("httpxy")
    : await import("http-proxy-3");
  const proxy = createProxyServer({ target: upstream, agent, xfwd: true });
  const server = http.createServer((request, response) => {
    const done = proxy.web(request, response);
    done?.catch?.(() => response.destroy());
  });
  proxy.on("error", (_error, _request, response) => response?.destroy?.());
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return server;
}

const server = await start();
console.log(server.address().port);
