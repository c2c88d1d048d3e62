import assert from "node:assert/strict";
import { test } from "node:test";
import { meanings } from "../src/pure/search";

const TABLES = [
  { token: "users", name: "users" },
  { token: "app=2Forders", name: "app.orders" },
  { token: "power_users", name: "power_users" },
];
const first = (text: string) => meanings(text, TABLES)[0]?.href;

test("the search box takes a position, an LSN, a transaction ID, a table, and a table with a key", () => {
  assert.equal(first("0/1D6BD80+5"), "/events/0-1D6BD80-5");
  assert.equal(first("0-1D6BD80-5"), "/events/0-1D6BD80-5");
  assert.equal(first("0/1D6BD80"), "/tx/0-1D6BD80");
  assert.equal(first("16f7348-users-insert"), "/events?msg_id=16f7348-users-insert");
  assert.equal(first("757"), "/events?xid=757");
  assert.equal(first("users"), "/tables/users");
  assert.equal(first("app.orders 7"), "/rows/app%3D2Forders/7");
  assert.equal(first("app.orders 7, a/b"), "/rows/app%3D2Forders/7,a%2Fb");
});

test("a decimal number is offered as a transaction ID and as an LSN", () => {
  const hrefs = meanings("30850432", TABLES).map(({ href }) => href);
  assert.deepEqual(hrefs.slice(0, 2), ["/events?xid=30850432", "/tx/0-1D6BD80"]);
});

test("any other text is searched in the values", () => {
  assert.equal(first("<img onerror>"), "/events?text=%3Cimg%20onerror%3E");
  assert.deepEqual(meanings("  ", TABLES), []);
});
