import assert from "node:assert/strict";
import { test } from "node:test";
import { axisEnd, share, ticks } from "../src/pure/waterline";

test("whoever is further behind stands further from the head", () => {
  const most = axisEnd([10, 5_000_000]);
  const shares = [0, 1, 100, 5000, 1e6, 5e6].map((behind) => share(behind, most));
  assert.equal(shares[0], 1);
  for (let at = 1; at < shares.length; at += 1) assert.ok(shares[at]! < shares[at - 1]!);
  assert.ok(shares.at(-1)! > 0);
});

test("the axis holds every reader, and its ticks are in order", () => {
  assert.equal(axisEnd([]), 1024);
  assert.equal(axisEnd([2000]), 1024 ** 2);
  assert.deepEqual(ticks(1024 ** 2).map(({ bytes }) => bytes), [0, 1024, 1024 ** 2]);
  assert.equal(ticks(1024 ** 2).at(-1)!.at, 0);
});
