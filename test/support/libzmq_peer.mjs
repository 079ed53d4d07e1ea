/**
 * The libzmq end of interoperability tests: runs on Node, driven by JSON lines on standard input.
 *
 * {"open": type, "id", "endpoint", "bind", "options"} -> {"opened": id, "endpoint"}
 * {"send": id, "frames": [base64], "count"?}          -> {"sent": id}
 * {"echo": id}        answers each message of a ROUTER with the messages of "answers" (base64 frames)
 * {"receive": id, "count"} -> {"received": id, "messages": [[base64]]}
 * {"close": id}       -> {"closed": id}
 */
import * as readline from "node:readline";
import * as zmq from "zeromq";

const types = {
  PUB: zmq.Publisher,
  SUB: zmq.Subscriber,
  DEALER: zmq.Dealer,
  ROUTER: zmq.Router,
};
const sockets = new Map();
const say = (value) => console.log(JSON.stringify(value));
const bytes = (text) => Buffer.from(text, "base64");

async function run(command) {
  if (command.open !== undefined) {
    const socket = new types[command.open]({ linger: 0, ...command.options });
    sockets.set(command.id, socket);
    if (command.subscribe !== undefined) socket.subscribe(command.subscribe);
    if (command.bind) await socket.bind(command.endpoint);
    else socket.connect(command.endpoint);
    say({ opened: command.id, endpoint: command.bind ? socket.lastEndpoint : command.endpoint });
  } else if (command.send !== undefined) {
    const socket = sockets.get(command.send);
    for (let i = 0; i < (command.count ?? 1); i++) {
      const frames = command.frames.map(bytes);
      if (command.count !== undefined) frames[1].writeBigUInt64BE(BigInt(i));
      await socket.send(frames);
    }
    say({ sent: command.send });
  } else if (command.echo !== undefined) {
    const socket = sockets.get(command.echo);
    const answers = command.answers.map((frames) => frames.map(bytes));
    void (async () => {
      for await (const [identity, ...rest] of socket) {
        say({ asked: command.echo, frames: rest.map((frame) => frame.toString("base64")) });
        for (const frames of answers) await socket.send([identity, ...frames]);
      }
    })().catch(() => {});
    say({ echoing: command.echo });
  } else if (command.receive !== undefined) {
    const socket = sockets.get(command.receive);
    const messages = [];
    while (messages.length < command.count) {
      const frames = await socket.receive();
      messages.push(frames.map((frame) => frame.toString("base64")));
    }
    say({ received: command.receive, messages });
  } else if (command.close !== undefined) {
    sockets.get(command.close)?.close();
    sockets.delete(command.close);
    say({ closed: command.close });
  }
}

let queue = Promise.resolve();
for await (const line of readline.createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  queue = queue.then(() => run(command)).catch((error) => say({ error: String(error) }));
}
await queue;
process.exit(0);
