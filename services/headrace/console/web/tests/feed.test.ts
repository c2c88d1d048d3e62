import assert from "node:assert/strict";
import { test } from "node:test";
import { FeedRefused, follow, type FeedWorld } from "../src/pure/feed";
import { EventParser, type ServerEvent } from "../src/pure/sse";

const encoder = new TextEncoder();

function stream(...pieces: (string | Error)[]): ReadableStream<Uint8Array> {
  let at = 0;
  return new ReadableStream({
    pull(controller) {
      const piece = pieces[at];
      at += 1;
      if (piece === undefined) controller.close();
      else if (piece instanceof Error) controller.error(piece);
      else controller.enqueue(encoder.encode(piece));
    },
  });
}

test("events are read from pieces of any size", () => {
  const text = ": hello\n\nid: 7\nevent: rows\ndata: [1,\ndata: 2]\n\r\ndata: ü\r\n\r\n";
  for (let size = 1; size <= text.length; size += 1) {
    const parser = new EventParser();
    const read: ServerEvent[] = [];
    for (let at = 0; at < text.length; at += size) read.push(...parser.push(text.slice(at, at + size)));
    assert.deepEqual(read, [
      { event: "rows", data: "[1,\n2]", id: "7" },
      { event: "message", data: "ü", id: "7" },
    ]);
  }
});

class World implements FeedWorld {
  readonly asked: string[] = [];
  readonly read: string[] = [];
  readonly states: string[] = [];
  readonly stop = new AbortController();

  constructor(readonly answers: (() => ReadableStream<Uint8Array>)[]) {}

  async open(after: string): Promise<ReadableStream<Uint8Array>> {
    this.asked.push(after);
    const answer = this.answers.shift();
    if (!answer) {
      this.stop.abort();
      throw new Error("stopped");
    }
    return answer();
  }

  sleep(ms: number, signal: AbortSignal): Promise<void> {
    // Waits before an attempt pass at once; the limit of silence is the longest.
    return new Promise((resolve, reject) => {
      const timer = setTimeout(resolve, ms >= 2500 ? 50 : 0);
      signal.addEventListener("abort", () => {
        clearTimeout(timer);
        reject(new Error("aborted"));
      });
    });
  }

  onEvent(event: ServerEvent): void {
    this.read.push(event.data);
  }

  onState(state: string, reason: string, status: number): void {
    this.states.push(state === "lost" ? `lost ${status}: ${reason}` : state);
  }
}

test("a feed resumes after the last event that was handled, and repeats none", async () => {
  const world = new World([
    () => stream("id: 1\ndata: a\n\nid: 2\ndata: b\n\nid: 3\nda", new Error("reset")),
    () => stream("id: 3\ndata: c\n\n"),
  ]);
  await follow(world, world.stop.signal);
  assert.deepEqual(world.asked, ["", "2", "3"]);
  assert.deepEqual(world.read, ["a", "b", "c"]);
});

test("a refusal is no end: its status and reason are shown, and the feed tries again", async () => {
  const world = new World([
    () => {
      throw new FeedRefused(503, "NATS is away");
    },
    () => stream("id: 1\ndata: a\n\n"),
  ]);
  await follow(world, world.stop.signal);
  assert.deepEqual(world.states.slice(0, 4), ["opening", "lost 503: NATS is away", "opening", "open"]);
  assert.deepEqual(world.read, ["a"]);
});

test("silence is noticed, though the connection stays open", async () => {
  const silent = () => new ReadableStream<Uint8Array>({ pull: () => new Promise(() => undefined) });
  const world = new World([silent]);
  await follow(world, world.stop.signal);
  assert.ok(world.states.includes("lost 0: the console's server is silent"));
});
