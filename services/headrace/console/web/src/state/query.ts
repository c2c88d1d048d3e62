// What a page has asked the API, asked again while the page is shown. A failure keeps the last
// answer, with its time, and says so: nothing old passes for current.
import { useEffect, useRef, useState } from "preact/hooks";
import type { ApiPath } from "../types";
import { get, Problem, type Query } from "./api";
import { away } from "./live";

export interface Answer<T> {
  readonly data: T | null;
  readonly problem: Problem | null;
  /** When the data came; 0 before the first. */
  readonly at: number;
  readonly again: () => void;
}

interface Held<T> {
  readonly asked: string;
  readonly data: T | null;
  readonly problem: Problem | null;
  readonly at: number;
}

const RETRY_MS = 1000;

/** The answer to this question; without a path, nothing is asked. */
export function useQuery<T>(path: ApiPath | null, query: Query = {}, everyMs = 0): Answer<T> {
  const asked = path === null ? "" : `${path} ${JSON.stringify(query)}`;
  const [held, hold] = useState<Held<T>>({ asked: "", data: null, problem: null, at: 0 });
  const [turn, setTurn] = useState(0);
  const newest = useRef(held);
  newest.current = held;
  useEffect(() => {
    if (path === null) return undefined;
    const stop = new AbortController();
    let timer: number | undefined;
    const later = (ms: number) => {
      if (ms > 0 && !stop.signal.aborted) timer = window.setTimeout(run, ms);
    };
    const run = async () => {
      // A page in the background asks nothing; it asks at once when it is seen again.
      if (document.hidden) {
        document.addEventListener("visibilitychange", run, { once: true, signal: stop.signal });
        return;
      }
      try {
        const data = await get<T>(path, query, stop.signal);
        if (stop.signal.aborted) return;
        hold({ asked, data, problem: null, at: Date.now() });
        later(everyMs);
      } catch (error) {
        if (stop.signal.aborted) return;
        const problem = error instanceof Problem ? error : new Problem(0, { detail: String(error) });
        const kept = newest.current.asked === asked ? newest.current : { data: null, at: 0 };
        hold({ asked, data: kept.data, problem, at: kept.at });
        later(everyMs || (problem.status === 0 || problem.status >= 500 ? RETRY_MS : 0));
      }
    };
    void run();
    return () => {
      stop.abort();
      window.clearTimeout(timer);
    };
  }, [asked, everyMs, turn, away.value]);
  // The answer to an earlier question is none to this one.
  const current = held.asked === asked ? held : { data: null, problem: null, at: 0 };
  return { ...current, again: () => setTurn((value) => value + 1) };
}
