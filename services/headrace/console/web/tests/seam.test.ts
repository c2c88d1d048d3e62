import assert from "node:assert/strict";
import { test } from "node:test";
import { Seam } from "../src/pure/seam";
import type { LiveEvents } from "../src/types";

const frame = (last: number) => ({ last_sequence: String(last) }) as LiveEvents;
const turn = () => new Promise((resolve) => setTimeout(resolve, 0));

class World {
  readonly seen: string[] = [];
  readonly window = { take: (each: LiveEvents) => void this.seen.push(`frame ${each.last_sequence}`) };
  readonly seam = new Seam(this.window, async (upTo) => {
    await turn();
    this.seen.push(`search ${upTo ?? "all"}`);
  });

  async rest(): Promise<void> {
    for (let turns = 0; turns < 6; turns += 1) await turn();
  }
}

test("the first live frame marks how far the search counts, and later ones wait for it", async () => {
  const { seen, seam, rest } = new World();
  seam.begin();
  await rest();
  seam.take(frame(10));
  seam.take(frame(20));
  await rest();
  seam.take(frame(30));
  seam.end();
  assert.deepEqual(seen, ["search all", "search 10", "frame 20", "frame 30"]);
});

test("each connection has a place of its own, and no frame of the one before", async () => {
  const { seen, seam, rest } = new World();
  seam.begin();
  seam.take(frame(10));
  seam.take(frame(20));
  seam.begin();
  seam.take(frame(25));
  seam.take(frame(30));
  await rest();
  seam.end();
  assert.deepEqual(seen, ["search all", "search 10", "search all", "search 25", "frame 30"]);
});
