import assert from "node:assert/strict";
import { test } from "node:test";
import * as format from "../src/pure/format";

test("integers of 64 bits keep every digit", () => {
  const plain = (value: string) => format.count(value).replaceAll("\u2009", "");
  assert.equal(plain("9223372036854775807"), "9223372036854775807");
  assert.equal(plain("-9223372036854775808"), "−9223372036854775808");
  assert.equal(format.count(1234567), "1\u2009234\u2009567");
  assert.equal(format.count(null), "–");
});

test("sizes and durations have the unit that fits", () => {
  assert.equal(format.bytes(0), "0 B");
  assert.equal(format.bytes(1023), "1023 B");
  assert.equal(format.bytes(1536), "1.5 KiB");
  assert.equal(format.bytes("1099511627776"), "1.0 TiB");
  assert.equal(format.duration(0.0034), "3.4 ms");
  assert.equal(format.duration(0.25), "250 ms");
  assert.equal(format.duration(12), "12.0 s");
  assert.equal(format.duration(59.96), "1 m 00 s");
  assert.equal(format.duration(7500), "2 h 05 m");
  assert.equal(format.duration(3 * 86400 + 4 * 3600), "3 d 04 h");
  assert.equal(format.duration(null), "–");
});

test("times are UTC to the millisecond, and what is no time stays as it is", () => {
  assert.equal(format.utc("2026-01-31T12:00:34.338547Z"), "2026-01-31 12:00:34.338 UTC");
  assert.equal(format.utc("2026-01-31T12:00:34Z"), "2026-01-31 12:00:34.000 UTC");
  assert.equal(format.utc("infinity"), "infinity");
  assert.equal(format.zone(-210), "UTC−03:30");
  assert.equal(format.zone(60), "UTC+01:00");
});

test("control characters and marks of direction are shown, not obeyed", () => {
  assert.equal(format.visible("a\u0000b\u202ec\u001b[31m"), "a\\x00b\\u202ec\\x1b[31m");
  assert.equal(format.inline("two\nlines"), "two⏎lines");
  assert.equal(format.inline(""), '""');
  assert.equal(format.inline(null), "null");
  assert.equal(format.inline({ a: [1] }), '{"a":[1]}');
});
