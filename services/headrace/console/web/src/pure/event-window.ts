// The events that a page lists: stored ones and live ones, each once, in the stream's order.
//
// Everything that matches is counted exactly, listed or not: matched = listed live rows +
// notShown + what waits while the page is paused.
import type { Event, LiveEvents } from "../types";
import { Ring } from "./ring";

export const ROWS_MAX = 20_000;
export const BYTES_MAX = 64 * 1024 * 1024;

export class EventWindow {
  #live = new Ring<Event>(ROWS_MAX, BYTES_MAX);
  #waiting = new Ring<Event>(ROWS_MAX, BYTES_MAX);
  #stored: Event[] = [];
  #newest = 0n;
  #paused = false;
  published = 0n;
  matched = 0n;
  notShown = 0n;
  missed = 0n;
  /** Whether more was published while the page was away than it has caught up with. */
  hole = false;
  /** Rows that were ever added above the others. */
  added = 0;

  get length(): number {
    return this.#live.length + this.#stored.length;
  }

  get waiting(): number {
    return this.#waiting.length + this.#waiting.dropped;
  }

  /** The event of a row, the newest first. */
  at(row: number): Event | undefined {
    const live = this.#live.length;
    return row < live ? this.#live.newest(row) : this.#stored[row - live];
  }

  /** Stored events that follow those that are listed; they come with the newest first. */
  addOlder(events: readonly Event[]): void {
    this.#stored = [...this.#stored, ...events];
    const newest = this.#stored[0];
    if (newest && BigInt(newest.sequence) > this.#newest) this.#newest = BigInt(newest.sequence);
  }

  /** The sequence up to which everything that matches is listed and counted. */
  get newestSequence(): bigint {
    return this.#newest;
  }

  get newestPosition(): string | null {
    const newest = this.#waiting.newest(0) ?? this.at(0);
    return newest?.position ?? null;
  }

  /** Stored events that were published while the page was away, in any order, up to a sequence:
   * later ones come, and are counted, as live ones. */
  catchUp(events: readonly Event[], upTo: bigint | null = null): void {
    for (const event of inOrder(events)) {
      if (upTo !== null && BigInt(event.sequence) > upTo) break;
      if (!this.#isNew(event)) continue;
      this.published += 1n;
      this.matched += 1n;
      this.#push(event);
    }
  }

  take(frame: LiveEvents): void {
    this.published += BigInt(frame.published);
    this.matched += BigInt(frame.shown) + BigInt(frame.not_shown);
    this.notShown += BigInt(frame.not_shown);
    this.missed += BigInt(frame.missed);
    for (const event of inOrder(frame.items)) {
      if (this.#isNew(event)) this.#push(event);
    }
  }

  pause(paused: boolean): void {
    this.#paused = paused;
    if (paused) return;
    for (let behind = this.#waiting.length - 1; behind >= 0; behind -= 1) {
      const event = this.#waiting.newest(behind);
      if (event) this.#show(event);
    }
    this.#waiting.clear();
  }

  /** Not so is what the search found already, or what came before the connection was lost. */
  #isNew(event: Event): boolean {
    const sequence = BigInt(event.sequence);
    if (sequence < this.#newest) return false;
    return sequence > this.#newest || !this.#has(event);
  }

  #push(event: Event): void {
    this.#newest = BigInt(event.sequence);
    if (this.#paused) this.#waiting.push(event, sizeOf(event));
    else this.#show(event);
  }

  #show(event: Event): void {
    this.#live.push(event, sizeOf(event));
    this.added += 1;
  }

  /** With batches, several events share a message, hence a sequence. */
  #has(event: Event): boolean {
    for (const ring of [this.#waiting, this.#live]) {
      for (let behind = 0; behind < ring.length; behind += 1) {
        const other = ring.newest(behind);
        if (!other || other.sequence !== event.sequence) break;
        if (other.position === event.position && other.operation === event.operation) return true;
      }
    }
    return this.#stored.some(
      (other) =>
        other.sequence === event.sequence &&
        other.position === event.position &&
        other.operation === event.operation,
    );
  }
}

function inOrder(events: readonly Event[]): Event[] {
  return [...events].sort((one, other) => {
    const difference = BigInt(one.sequence) - BigInt(other.sequence);
    if (difference !== 0n) return difference < 0n ? -1 : 1;
    return 0;
  });
}

function sizeOf(event: Event): number {
  let size = 300;
  for (const { name, before, after } of event.columns) {
    size += name.length + (before?.text?.length ?? 0) + (after?.text?.length ?? 0) + 60;
  }
  return size * 2;
}
