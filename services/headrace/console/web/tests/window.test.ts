import assert from "node:assert/strict";
import { test } from "node:test";
import { Ring } from "../src/pure/ring";
import { scrollTo, windowOf } from "../src/pure/window";

test("the window covers what is visible, wherever it is scrolled to", () => {
  for (const rows of [0, 1, 7, 40, 1000, 20_000]) {
    for (const scrolled of [-50, 0, 13, 280, 27_999, 559_000, 1e9]) {
      const { first, end, top } = windowOf(rows, 28, scrolled, 600);
      const most = Math.max(0, rows * 28 - 600);
      const at = Math.min(Math.max(0, scrolled), most);
      assert.ok(top <= at, `${rows} ${scrolled}: starts above the view`);
      assert.ok(end === rows || end * 28 >= at + 600, `${rows} ${scrolled}: reaches its end`);
      assert.ok(end - first <= 600 / 28 + 20, "few rows are in the page");
      assert.ok(first >= 0 && end <= rows);
    }
  }
});

test("a row is scrolled into view, and only if it isn't", () => {
  assert.equal(scrollTo(0, 28, 100, 600), 0);
  assert.equal(scrollTo(5, 28, 100, 600), 100);
  assert.equal(scrollTo(30, 28, 0, 600), 31 * 28 - 600);
});

test("a ring keeps the newest entries and counts every one that it drops", () => {
  const ring = new Ring<number>(100, 1000);
  for (let entry = 0; entry < 5000; entry += 1) ring.push(entry, 5);
  assert.equal(ring.length, 100);
  assert.equal(ring.dropped, 4900);
  assert.equal(ring.newest(0), 4999);
  assert.equal(ring.newest(99), 4900);
  assert.equal(ring.newest(100), undefined);
});

test("a ring has a limit of bytes, and keeps one entry beyond it", () => {
  const ring = new Ring<string>(100, 1000);
  ring.push("small", 10);
  ring.push("large", 5000);
  assert.equal(ring.length, 1);
  assert.equal(ring.newest(0), "large");
  ring.push("next", 10);
  assert.equal(ring.newest(0), "next");
  assert.equal(ring.length, 1);
});
