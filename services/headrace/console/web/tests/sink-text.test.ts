import assert from "node:assert/strict";
import { test } from "node:test";
import { sinkText } from "../src/pure/sink-text";

const PLAIN = { name: "hook", to: "https://example.org/hook", tables: "", snapshot: false, park: false };

test("only what differs from a default is written", () => {
  assert.equal(sinkText(PLAIN), '[[sink]]\nname = "hook"\nto = "https://example.org/hook"\n');
  const all = sinkText({ ...PLAIN, tables: " orders, app.* ,", snapshot: true, park: true });
  assert.equal(
    all,
    '[[sink]]\nname = "hook"\nto = "https://example.org/hook"\ntables = ["orders", "app.*"]\nsnapshot = "initial"\non_error = "park"\n',
  );
});

test("a database has no keys of records", () => {
  const text = sinkText({ ...PLAIN, to: "sqlite:///srv/copy.db", snapshot: true, park: true });
  assert.equal(text, '[[sink]]\nname = "hook"\nto = "sqlite:///srv/copy.db"\n');
});

test("what people write stays inside of its quotes", () => {
  const text = sinkText({ ...PLAIN, name: 'a"\nto = "x', tables: 'o"rders\\' });
  assert.equal(text.split("\n").length, 5);
  assert.ok(text.includes('name = "a\\"\\nto = \\"x"'));
});
