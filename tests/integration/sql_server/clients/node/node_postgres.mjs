// Questions of node-postgres to a server, printed as JSON with their answers or the errors' SQLSTATEs.

import pg from "pg";
import Cursor from "pg-cursor";
import QueryStream from "pg-query-stream";

const answers = {};

async function ask(question, work) {
  const client = new pg.Client();
  await client.connect();
  try {
    answers[question] = await work(client);
  } catch (error) {
    answers[question] = `failed: ${error.code} ${error.message}`;
  } finally {
    await client.end();
  }
}

const typed = ({ fields, rows }) => [fields.map((each) => [each.name, each.dataTypeID]), rows];
const all = async (client, text, values) => typed(await client.query(text, values));

for (const table of ["customers", "orders", "events", "sales.targets", "sales.kinds", '"Mixed Case"', "open_orders"]) {
  await ask(`the types and values of ${table}`, (client) => all(client, `SELECT * FROM ${table} ORDER BY 1, 2 LIMIT 40`));
}
await ask("binary values", (client) =>
  client
    .query({ text: "SELECT id, customer_id, weight, note, shipped, placed FROM orders WHERE id < 40 ORDER BY id", values: [], binary: true })
    .then(typed),
);
await ask("parameters of many types", (client) =>
  all(
    client,
    "SELECT id, name FROM customers WHERE id = ANY($1) AND active = $2 AND joined > $3 AND credit < $4 AND profile @> $5 ORDER BY id",
    [[1, 2, 3, 4, 5, 6, 11], true, new Date("2024-03-31T00:00:00Z"), "5000.5", { level: 1 }],
  ),
);
await ask("a named statement that runs ten times", async (client) => {
  const found = [];
  for (let id = 1; id <= 10; id += 1) {
    const query = { name: "one order", text: "SELECT id, total, state FROM orders WHERE id = $1", values: [id * 7] };
    found.push((await client.query(query)).rows);
  }
  return found;
});
await ask("a named statement between statements of the same connection", async (client) => {
  const named = { name: "sum", text: "SELECT sum(total) FROM orders WHERE state = $1", values: ["ok "] };
  const found = [];
  for (const text of ["BEGIN", "SELECT count(*) FROM items", "COMMIT", "SET TIME ZONE 'Asia/Tokyo'", "SELECT placed::text FROM orders WHERE id = 1"]) {
    found.push((await client.query(text)).rows, (await client.query(named)).rows);
  }
  return found;
});
await ask("a cursor in parts of 100", async (client) => {
  const cursor = client.query(new Cursor("SELECT id, note FROM orders WHERE id > $1 ORDER BY id", [10]));
  const sizes = [];
  let sum = 0;
  for (;;) {
    const rows = await cursor.read(100);
    if (rows.length === 0) break;
    sizes.push(rows.length);
    sum += rows.reduce((total, row) => total + Number(row.id), 0);
  }
  await cursor.close();
  return [sizes, sum];
});
await ask("a cursor that is closed early", async (client) => {
  const cursor = client.query(new Cursor("SELECT id FROM orders ORDER BY id"));
  const first = await cursor.read(3);
  await cursor.close();
  return [first, (await client.query("SELECT count(*) FROM orders")).rows];
});
await ask("a stream of rows", async (client) => {
  const stream = client.query(new QueryStream("SELECT id, total FROM orders WHERE id <= $1 ORDER BY id", [1000], { batchSize: 64 }));
  let [count, last] = [0, null];
  for await (const row of stream) [count, last] = [count + 1, row];
  return [count, last];
});
await ask("rows as arrays", (client) =>
  client.query({ text: "SELECT state, count(*), sum(total) FROM orders GROUP BY state ORDER BY state", rowMode: "array" }).then(typed),
);
await ask("several statements in one text", async (client) =>
  (await client.query("SELECT 1 AS one; SELECT count(*) FROM orders; SHOW server_version_num")).map((each) => [each.command, each.rowCount, each.rows]),
);
await ask("queries that are sent without waiting", (client) =>
  Promise.all(Array.from({ length: 20 }, (_, id) => client.query("SELECT name FROM customers WHERE id = $1", [id]).then(({ rows }) => rows))),
);
await ask("an error with its place", (client) =>
  client.query("SELECT nothing FROM orders").catch((error) => [error.code, error.message, error.position, error.severity]),
);
await ask("a division by zero of a row", (client) =>
  client.query("SELECT total / (id - $1) FROM orders", [5]).catch((error) => [error.code, error.message]),
);
await ask("a transaction that failed", async (client) => {
  const found = [];
  for (const text of ["BEGIN", "SELECT id / 0 FROM orders", "SELECT count(*) FROM orders", "ROLLBACK", "SELECT count(*) FROM orders"]) {
    found.push(await client.query(text).then(({ command, rows }) => [command, rows], ({ code }) => code));
  }
  return found;
});
await ask("a write", (client) => client.query("DELETE FROM orders"));
await ask("a statement timeout", async (client) => {
  await client.query("SET statement_timeout = '200ms'");
  return client.query("SELECT count(*) FROM orders a, orders b, orders c, orders d WHERE a.id + b.id < c.id - d.id").catch(({ code }) => code);
});
await ask("a cancelled query", async (client) => {
  const query = new pg.Query("SELECT count(*) FROM orders a, orders b, orders c, orders d WHERE a.id + b.id < c.id - d.id");
  const ended = new Promise((resolve) => client.query(query).on("error", ({ code }) => resolve(code)).on("end", () => resolve("ran")));
  await new Promise((resolve) => setTimeout(resolve, 300));
  new pg.Client().cancel(client, query);
  return [await ended, (await client.query("SELECT count(*) FROM orders")).rows];
});

console.log(JSON.stringify(answers));
