import assert from "node:assert/strict";
import { test } from "node:test";
import { Seam } from "../src/pure/seam";
import type { LiveEvents } from "../src/types";

const frame = (last: number) => ({ last_sequence: String(last) }) as LiveEvents;
const turn = () => new Promise((resolve) => setTimeout(resolve, 0));

class World {
  readonly seen: string[] = [];
  /** How far an unbounded search counts. */
  reach = 0n;
  readonly window = {
    newestSequence: 0n,
    take: (each: LiveEvents) => void this.seen.push(`frame ${each.last_sequence}`),
  };
  readonly seam = new Seam(this.window, async (upTo) => {
    await turn();
    this.seen.push(`search ${upTo ?? "all"}`);
    this.window.newestSequence = upTo ?? this.reach;
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
  assert.deepEqual(seen, ["search all", "search all", "search 25", "frame 30"]);
});

test("a connection that resumes searches nothing, and no frame of the one before is lost", async () => {
  const { seen, seam, rest } = new World();
  seam.begin();
  await rest();
  seam.take(frame(10));
  seam.take(frame(20));
  seam.begin(true);
  seam.take(frame(30));
  await rest();
  seam.end();
  assert.deepEqual(seen, ["search all", "search 10", "frame 20", "frame 30"]);
});

test("frames of events that an unbounded search has counted count nothing again", async () => {
  const world = new World();
  const { seen, seam } = world;
  world.reach = 25n;
  seam.begin();
  // Before the search is over: it is known only then how far it counted.
  for (const last of [10, 20, 30, 40]) seam.take(frame(last));
  await world.rest();
  seam.end();
  assert.deepEqual(seen, ["search all", "search 30", "frame 40"]);
});
