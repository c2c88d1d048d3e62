import assert from "node:assert/strict";
import { test } from "node:test";
import { Seam } from "../src/pure/seam";
import type { LiveEvents } from "../src/types";

const frame = (name: string) => ({ last_sequence: name }) as LiveEvents;
const turn = () => new Promise((resolve) => setTimeout(resolve, 0));

test("live rows come after a second search, which sees what neither had", async () => {
  const seen: string[] = [];
  const window = { take: (each: LiveEvents) => void seen.push(`frame ${each.last_sequence}`) };
  const seam = new Seam(window, async () => {
    await turn();
    seen.push("search");
  });
  seam.begin();
  await turn();
  await turn();
  seam.take(frame("1"));
  seam.take(frame("2"));
  await turn();
  await turn();
  seam.take(frame("3"));
  seam.end();
  assert.deepEqual(seen, ["search", "search", "frame 1", "frame 2", "frame 3"]);
});

test("after each connection there are two searches again", async () => {
  let searches = 0;
  const taken: string[] = [];
  const seam = new Seam({ take: (each) => void taken.push(each.last_sequence) }, async () => {
    searches += 1;
  });
  for (const name of ["1", "2"]) {
    seam.begin();
    seam.take(frame(name));
    await turn();
    await turn();
  }
  seam.end();
  assert.equal(searches, 4);
  assert.deepEqual(taken, ["1", "2"]);
});
