// One stream per tab, with every topic that the page needs. It ends while the tab is hidden and
// resumes after the last event that was seen; what it says about itself is the banner.
import { computed, effect, signal, untracked } from "@preact/signals";
import { FeedRefused, follow } from "../pure/feed";
import type { ServerEvent } from "../pure/sse";
import type { Hello, LiveEvents, Overview, Snapshots } from "../types";
import { address, problemOf, type Query } from "./api";

export interface Link {
  readonly state: "opening" | "open" | "lost";
  readonly reason: string;
  readonly status: number;
}

export const link = signal<Link>({ state: "opening", reason: "", status: 0 });
export const overview = signal<Overview | null>(null);
/** When the last overview came, by this browser's clock; only ever shown. */
export const overviewAt = signal(0);
export const snapshots = signal<Snapshots | null>(null);
export const signedIn = signal(true);
/** Nothing on the page may look current while the stream is away. */
export const current = computed(() => link.value.state === "open" && overview.value !== null);

/** The parts that do not answer now: every page asks again when they change. */
export const away = computed(() => (overview.value?.stale ?? []).map(({ part }) => part).join(" "));

interface EventsTopic {
  readonly filter: Query;
  /** The stream has begun: what follows comes after all that is stored now or, if it has resumed,
   * after the last frame. */
  readonly begun: (resumed: boolean) => void;
  readonly take: (frame: LiveEvents) => void;
}

const eventsTopic = signal<EventsTopic | null>(null);
const snapshotsWanted = signal(0);
const visible = signal(!document.hidden);

/** Events that match the filter, until the returned function is called. */
export function followEvents(topic: EventsTopic): () => void {
  eventsTopic.value = topic;
  return () => {
    if (eventsTopic.value === topic) eventsTopic.value = null;
  };
}

export function followSnapshots(): () => void {
  snapshotsWanted.value += 1;
  return () => {
    snapshotsWanted.value -= 1;
  };
}

const wanted = computed(() => {
  const topics = ["overview"];
  if (eventsTopic.value) topics.push("events");
  if (snapshotsWanted.value > 0) topics.push("snapshots");
  return address("/live", { topics: topics.join(","), ...eventsTopic.value?.filter });
});

function take({ event, data }: ServerEvent): void {
  if (event === "hello") eventsTopic.value?.begun((JSON.parse(data) as Hello).resumed);
  if (event === "overview") {
    overview.value = JSON.parse(data) as Overview;
    overviewAt.value = Date.now();
  }
  if (event === "snapshots") snapshots.value = JSON.parse(data) as Snapshots;
  if (event === "events") eventsTopic.value?.take(JSON.parse(data) as LiveEvents);
}

async function open(url: string, after: string, signal: AbortSignal) {
  const headers: Record<string, string> = { Accept: "text/event-stream" };
  if (after) headers["Last-Event-ID"] = after;
  const answer = await fetch(url, { headers, signal, credentials: "same-origin" });
  if (!answer.ok || !answer.body) {
    if (answer.status === 401) signedIn.value = false;
    throw new FeedRefused(answer.status, (await problemOf(answer)).message);
  }
  return answer.body;
}

function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = window.setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      window.clearTimeout(timer);
      reject(signal.reason as Error);
    });
  });
}

function says(state: Link["state"], reason: string, status: number): void {
  // While it tries again the reason stays: a banner that flickers can't be read.
  if (state === "opening" && link.value.state === "lost") return;
  link.value = { state, reason, status };
}

export function startLive(): void {
  document.addEventListener("visibilitychange", () => {
    visible.value = !document.hidden;
  });
  let seen = { url: "", id: "" };
  effect(() => {
    const url = wanted.value;
    if (!visible.value || !signedIn.value) return undefined;
    const stop = new AbortController();
    if (seen.url !== url) seen = { url, id: "" };
    const mine = seen;
    const world = {
      open: (after: string, signal: AbortSignal) => open(url, after || mine.id, signal),
      sleep,
      onState: says,
      onEvent: (event: ServerEvent) => {
        take(event);
        if (event.id) mine.id = event.id;
      },
    };
    // What it says about itself must not start it again.
    untracked(() => void follow(world, stop.signal));
    return () => stop.abort();
  });
}
