// Follow a table from the beginning of the stream, over TCP, and print each event as one line of JSON.
//
//     node follow.mjs nats://127.0.0.1:4222 users         Ctrl-C stops; a third argument limits the number of events
import { jetstream } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";
import { isAfter, payloadOf } from "./events.mjs";

const [server = "nats://127.0.0.1:4222", table = "*", limit = "Infinity"] = process.argv.slice(2);
const client = await connect({ servers: server });
process.once("SIGINT", () => client.close());

// An ordered consumer: the server removes it when we disconnect, and the client creates it again after a reconnect.
const consumer = await jetstream(client).consumers.get("CDC", { filter_subjects: [`cdc.${table}.>`] });
const applied = new Map();
let left = Number(limit);
for await (const message of await consumer.consume()) {
  const event = payloadOf(message.data);
  // A schema event describes the rows that follow it, and has no position.
  if (event.operation !== "SCHEMA") {
    if (!isAfter(event.tx, applied.get(event.source))) continue;
    applied.set(event.source, event.tx);
  }
  console.log(JSON.stringify(event));
  left -= 1;
  if (left <= 0) break;
}
await client.close();
