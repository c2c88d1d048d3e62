import assert from "node:assert/strict";
import { test } from "node:test";
import {
  addressed,
  compare,
  fromAddress,
  lsnText,
  parseLsn,
  parsePosition,
  positionText,
} from "../src/pure/position";

test("an LSN of 64 bits is exact in every form", () => {
  const largest = 2n ** 64n - 1n;
  assert.equal(lsnText(largest), "FFFFFFFF/FFFFFFFF");
  assert.equal(parseLsn("ffffffff/ffffffff"), largest);
  assert.equal(parseLsn(largest.toString()), largest);
  assert.equal(parseLsn((largest + 1n).toString()), null);
});

test("a position is the same on screen, in an address and in decimal", () => {
  const expected = { lsn: 0x1d6bd80n, seq: 5 };
  for (const text of ["0/1D6BD80+5", "0/1d6bd80+5", "0-1D6BD80-5", "30850432+5", " 0/1D6BD80+5 "]) {
    assert.deepEqual(parsePosition(text), expected, text);
  }
  assert.equal(positionText(expected), "0/1D6BD80+5");
  assert.equal(addressed("0/1D6BD80+5"), "0-1D6BD80-5");
  assert.equal(fromAddress("0-1D6BD80-5"), "0/1D6BD80+5");
  assert.equal(fromAddress("0-1D6BD80"), "0/1D6BD80");
});

test("what is no position is refused", () => {
  for (const text of ["", "+5", "0/1D6BD80", "x/1+2", "0/1D6BD80+", "0/1D6BD80+-1", "0/123456789+1"]) {
    assert.equal(parsePosition(text), null, text);
  }
});

test("positions are ordered by commit, then by number", () => {
  const order = ["0/1+9", "0/2+0", "0/2+1", "0/2+10", "1/0+0"].map((text) => parsePosition(text)!);
  for (let at = 1; at < order.length; at += 1) {
    assert.ok(compare(order[at - 1]!, order[at]!) < 0);
    assert.ok(compare(order[at]!, order[at - 1]!) > 0);
  }
  assert.equal(compare(order[0]!, order[0]!), 0);
});
