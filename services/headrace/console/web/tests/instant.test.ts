import assert from "node:assert/strict";
import { test } from "node:test";
import { instantOf } from "../src/pure/instant";

test("a time without a zone is UTC, whatever the clock of this machine", () => {
  for (const text of ["2026-03-29 02:30", "2026-03-29T02:30", "2026-03-29 02:30:00 UTC", "2026-03-29T02:30:00z"]) {
    assert.equal(instantOf(text), "2026-03-29T02:30:00Z", text);
  }
});

test("a zone is taken away, also beyond half a day", () => {
  assert.equal(instantOf("2026-01-01T00:00+14:00"), "2025-12-31T10:00:00Z");
  assert.equal(instantOf("2026-01-01T00:00-12"), "2026-01-01T12:00:00Z");
  assert.equal(instantOf("2026-10-25 02:30:00.123456+0100"), "2026-10-25T01:30:00.123456Z");
});

test("what is no moment is refused", () => {
  for (const text of ["", "now", "2026-13-01", "2026-02-30", "12:00", "2026-01-01 25:00"]) assert.equal(instantOf(text), null, text);
});
