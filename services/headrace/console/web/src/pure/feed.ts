// A stream of server-sent events that never ends: it resumes after the last event that it has
// seen, and says how it is. It knows no browser: reading and waiting are handed in.
import { EventParser, type ServerEvent } from "./sse";

export type FeedState = "opening" | "open" | "lost";

/** Why a feed is lost; `status` is that of the answer, 0 without one. */
export class FeedRefused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

export interface FeedWorld {
  /** Open the stream after this event, or throw `FeedRefused`. */
  open(after: string, signal: AbortSignal): Promise<ReadableStream<Uint8Array>>;
  sleep(ms: number, signal: AbortSignal): Promise<void>;
  onEvent(event: ServerEvent): void;
  onState(state: FeedState, reason: string, status: number): void;
}

export interface FeedLimits {
  /** The server sends a comment more often than this; silence means that it is away. */
  readonly silenceMs: number;
  readonly waitMs: number;
  readonly waitMostMs: number;
}

export const LIMITS: FeedLimits = { silenceMs: 2500, waitMs: 250, waitMostMs: 2000 };

/** Read until the signal aborts. */
export async function follow(
  world: FeedWorld,
  signal: AbortSignal,
  limits: FeedLimits = LIMITS,
): Promise<void> {
  let after = "";
  let wait = limits.waitMs;
  while (!signal.aborted) {
    const attempt = new AbortController();
    const end = () => attempt.abort();
    signal.addEventListener("abort", end);
    try {
      world.onState("opening", "", 0);
      const body = await patient(world.open(after, attempt.signal), world, attempt, limits);
      world.onState("open", "", 200);
      for await (const event of events(body, world, attempt, limits)) {
        wait = limits.waitMs;
        // An event counts as seen only when it has been handled: a resume then repeats nothing.
        world.onEvent(event);
        if (event.id) after = event.id;
      }
      throw new FeedRefused(0, "the server ended the stream");
    } catch (error) {
      if (signal.aborted) return;
      const { status, reason } = described(error);
      world.onState("lost", reason, status);
    } finally {
      attempt.abort();
      signal.removeEventListener("abort", end);
    }
    await world.sleep(wait, signal).catch(() => undefined);
    wait = Math.min(wait * 2, limits.waitMostMs);
  }
}

function described(error: unknown): { status: number; reason: string } {
  if (error instanceof FeedRefused) return { status: error.status, reason: error.message };
  return { status: 0, reason: "the console's server does not answer" };
}

async function* events(
  body: ReadableStream<Uint8Array>,
  world: FeedWorld,
  attempt: AbortController,
  limits: FeedLimits,
): AsyncGenerator<ServerEvent> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  for (;;) {
    const { done, value } = await patient(reader.read(), world, attempt, limits);
    if (done) return;
    yield* parser.push(decoder.decode(value, { stream: true }));
  }
}

/** What is promised, unless nothing comes for too long. */
async function patient<T>(
  promised: Promise<T>,
  world: FeedWorld,
  attempt: AbortController,
  limits: FeedLimits,
): Promise<T> {
  const waiting = new AbortController();
  const silent = world.sleep(limits.silenceMs, waiting.signal).then(
    () => {
      attempt.abort();
      throw new FeedRefused(0, "the console's server is silent");
    },
    () => new Promise<never>(() => undefined),
  );
  try {
    return await Promise.race([promised, silent]);
  } finally {
    waiting.abort();
  }
}
