import assert from "node:assert/strict";
import { test } from "node:test";
import { EventWindow } from "../src/pure/event-window";
import type { Event, LiveEvents } from "../src/types";

function event(sequence: number, part = 0): Event {
  return {
    position: `0/${(0x1000 + sequence).toString(16).toUpperCase()}+${part}`,
    lsn: "0/1000",
    xid: "7",
    last: true,
    at: null,
    operation: "INSERT",
    schema: "public",
    table: "users",
    token: "users",
    msg_id: `${sequence}`,
    sequence: String(sequence),
    source: "headrace",
    key: null,
    columns: [],
    note: null,
  };
}

function frame(items: Event[], notShown = 0): LiveEvents {
  const shown = items.length;
  return {
    items,
    shown: String(shown),
    not_shown: String(notShown),
    missed: "0",
    published: String(shown + notShown),
    by_table: {},
    last_sequence: items.at(-1)?.sequence ?? "0",
  };
}

const listed = (window: EventWindow) =>
  Array.from({ length: window.length }, (_, row) => Number(window.at(row)!.sequence));

test("a row that the search and the live stream both have is listed once", () => {
  const window = new EventWindow();
  window.addOlder([event(3), event(2), event(1)]);
  window.take(frame([event(2), event(3), event(4)]));
  assert.deepEqual(listed(window), [4, 3, 2, 1]);
});

test("events that share a message are all listed, each once", () => {
  const window = new EventWindow();
  window.addOlder([event(1, 0)]);
  window.take(frame([event(1, 0), event(1, 1), event(1, 2)]));
  window.take(frame([event(1, 2), event(1, 3)]));
  assert.equal(window.length, 4);
});

test("what was published while the page was away is caught up with, and nothing twice", () => {
  const window = new EventWindow();
  window.addOlder([event(2), event(1)]);
  window.take(frame([event(3)]));
  assert.equal(window.newestPosition, event(3).position);
  window.catchUp([event(6), event(5), event(4), event(3)]);
  window.take(frame([event(6), event(7)]));
  assert.deepEqual(listed(window), [7, 6, 5, 4, 3, 2, 1]);
});

test("a burst in the middle of which the page connects is counted exactly", () => {
  const window = new EventWindow();
  window.addOlder([event(2), event(1)]);
  // The search runs on while events are published: it sees some that a frame counts.
  window.catchUp([event(6), event(5), event(4), event(3)], 4n);
  window.take(frame([event(6)], 1));
  assert.equal(window.matched, 4n);
  assert.deepEqual(listed(window), [6, 4, 3, 2, 1]);
});

test("pausing holds rows back and counts them, continuing lists them in order", () => {
  const window = new EventWindow();
  window.pause(true);
  window.take(frame([event(1), event(2)]));
  assert.equal(window.length, 0);
  assert.equal(window.waiting, 2);
  window.pause(false);
  assert.deepEqual(listed(window), [2, 1]);
  assert.equal(window.waiting, 0);
});

test("what is published is what is listed, dropped or counted alone", () => {
  const window = new EventWindow();
  let sequence = 0;
  for (let turn = 0; turn < 300; turn += 1) {
    const items = Array.from({ length: 100 }, () => event((sequence += 1)));
    window.take(frame(items, 400));
  }
  assert.equal(window.published, 150_000n);
  assert.equal(window.matched, window.published);
  assert.equal(BigInt(window.added) + window.notShown, window.matched);
  assert.equal(window.length, 20_000);
});
