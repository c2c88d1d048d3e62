// A table in a browser, live, over NATS WebSocket: ?server=ws://127.0.0.1:8080&table=users
import { jetstream } from "@nats-io/jetstream";
import { wsconnect } from "@nats-io/nats-core";
import { isAfter, payloadOf } from "./events.mjs";

const options = new URLSearchParams(location.search);
const table = options.get("table") ?? "headrace_demo";
const rows = new Map();
let columns = [];
let key = [];
let applied;

const keyOf = (data) => JSON.stringify(key.map((name) => data[name]));

function apply(event) {
  if (event.operation === "SCHEMA") {
    columns = event.columns.map((column) => column.name);
    key = event.primary_key.length > 0 ? event.primary_key : columns;
    return;
  }
  if (!isAfter(event.tx, applied)) return;
  applied = event.tx;
  if (event.operation === "TRUNCATE") {
    rows.clear();
    return;
  }
  const before = keyOf({ ...event.data, ...event.old });
  const row = { ...event.data };
  // A large value that did not change is not sent: it is the one that is here.
  for (const name of event.unchanged ?? []) row[name] = rows.get(before)?.[name];
  if (event.operation !== "INSERT") rows.delete(before);
  if (event.operation !== "DELETE") rows.set(keyOf(row), row);
}

function cell(kind, text) {
  const made = document.createElement(kind);
  // As text, never as HTML: it comes from a database.
  made.textContent = text;
  return made;
}

function shown(value) {
  return value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
}

function draw(event) {
  const line = (kind, values) => {
    const made = document.createElement("tr");
    made.append(...values.map((value) => cell(kind, shown(value))));
    return made;
  };
  document.querySelector("thead").replaceChildren(line("th", columns));
  const last = [...rows.values()].slice(-200);
  document.querySelector("tbody").replaceChildren(...last.map((row) => line("td", columns.map((name) => row[name]))));
  const changes = document.querySelector("#changes");
  changes.prepend(cell("li", `${event.operation} ${event.tx.ts ?? ""} ${JSON.stringify(event.data ?? event.changes)}`));
  while (changes.children.length > 20) changes.lastChild.remove();
  say(`${rows.size} rows, ${event.operation} was the last change`);
}

function say(text) {
  document.querySelector("#status").textContent = text;
}

async function follow() {
  document.querySelector("h1").textContent = table;
  const client = await wsconnect({
    servers: options.get("server") ?? "ws://127.0.0.1:8080",
    token: options.get("token") ?? undefined,
  });
  say("connected; no change yet");
  const consumer = await jetstream(client).consumers.get("CDC", { filter_subjects: [`cdc.${table}.>`] });
  for await (const message of await consumer.consume()) {
    const event = payloadOf(message.data);
    apply(event);
    draw(event);
  }
}

follow().catch((error) => say(`Not connected: ${error.message}`));
