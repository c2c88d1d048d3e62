// Where stored events end and live ones begin, after each connection.
//
// The server begins to read a moment after it has greeted, and doesn't say where. So the first live
// frame only marks a place: a search lists and counts everything up to it, and live frames count
// from there on. Each event is then counted by exactly one of the two.
import type { LiveEvents } from "../types";
import type { EventWindow } from "./event-window";

const SECOND_SEARCH_MS = 1500;

export class Seam {
  #waiting: LiveEvents[] = [];
  #searches = 0;
  #marked = false;
  /** Searches without an end, and the frames that came meanwhile: how far such a search counts is
   * known when it is over. */
  #unbounded = 0;
  #early: LiveEvents[] = [];
  #timer: ReturnType<typeof setTimeout> | undefined;
  #last: Promise<void> = Promise.resolve();

  constructor(
    readonly window: Pick<EventWindow, "take" | "newestSequence">,
    /** List what is stored, up to this sequence if there is one. */
    readonly search: (upTo: bigint | null) => Promise<void>,
  ) {}

  /** A connection begins. If it resumes, its frames follow exactly on those of the one before. */
  begin(resumed = false): void {
    if (resumed) return;
    this.#marked = false;
    this.#waiting = [];
    this.#early = [];
    this.#run(null);
    // Without a live frame, what the server missed at its beginning would stay unlisted.
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#run(null), SECOND_SEARCH_MS);
  }

  take(frame: LiveEvents): void {
    if (this.#unbounded > 0) {
      clearTimeout(this.#timer);
      this.#early.push(frame);
      return;
    }
    if (!this.#marked) {
      // The search has counted later events already, which the next frames contain too.
      if (BigInt(frame.last_sequence) < this.window.newestSequence) return;
      this.#marked = true;
      clearTimeout(this.#timer);
      this.#run(BigInt(frame.last_sequence));
      return;
    }
    this.#waiting.push(frame);
    if (this.#searches === 0) this.#list();
  }

  end(): void {
    clearTimeout(this.#timer);
    this.#waiting = [];
    this.#early = [];
    this.#marked = true;
  }

  #run(upTo: bigint | null): void {
    const unbounded = Number(upTo === null);
    this.#searches += 1;
    this.#unbounded += unbounded;
    const search = () => this.search(upTo);
    this.#last = this.#last.then(search).finally(() => {
      this.#searches -= 1;
      this.#unbounded -= unbounded;
      if (this.#unbounded === 0) this.#takeEarly();
      if (this.#searches === 0) this.#list();
    });
  }

  #takeEarly(): void {
    const frames = this.#early;
    this.#early = [];
    for (const frame of frames) this.take(frame);
  }

  #list(): void {
    const frames = this.#waiting;
    this.#waiting = [];
    for (const frame of frames) this.window.take(frame);
  }
}
