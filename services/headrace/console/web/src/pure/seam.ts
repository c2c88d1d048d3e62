// Where stored events end and live ones begin, after each connection.
//
// The server begins to read a moment after it has greeted: what was published between the search
// and that moment is in neither. So there is a second search, before the first live rows are
// listed, or after a while if none come. Live rows wait for a search that runs.
import type { LiveEvents } from "../types";
import type { EventWindow } from "./event-window";

const SECOND_SEARCH_MS = 1500;

export class Seam {
  #waiting: LiveEvents[] = [];
  #searches = 0;
  #sure = false;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    readonly window: Pick<EventWindow, "take">,
    readonly search: () => Promise<void>,
  ) {}

  begin(): void {
    this.#sure = false;
    void this.#run();
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#beSure(), SECOND_SEARCH_MS);
  }

  take(frame: LiveEvents): void {
    this.#waiting.push(frame);
    if (!this.#sure) this.#beSure();
    else if (this.#searches === 0) this.#list();
  }

  end(): void {
    clearTimeout(this.#timer);
    this.#waiting = [];
    this.#sure = true;
  }

  #beSure(): void {
    if (this.#sure) return;
    this.#sure = true;
    clearTimeout(this.#timer);
    void this.#run();
  }

  #run(): Promise<void> {
    this.#searches += 1;
    this.#last = this.#last.then(this.search).finally(() => {
      this.#searches -= 1;
      if (this.#searches === 0) this.#list();
    });
    return this.#last;
  }

  #last: Promise<void> = Promise.resolve();

  #list(): void {
    const frames = this.#waiting;
    this.#waiting = [];
    for (const frame of frames) this.window.take(frame);
  }
}
