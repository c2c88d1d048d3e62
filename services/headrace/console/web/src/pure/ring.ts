// The newest entries of an endless list, up to a number and a size. Counts are exact: what was
// dropped is counted, too.

export class Ring<T> {
  #entries: (T | undefined)[] = [];
  #sizes: number[] = [];
  #start = 0;
  #bytes = 0;
  #dropped = 0;

  constructor(
    readonly entriesMax: number,
    readonly bytesMax: number,
  ) {}

  get length(): number {
    return this.#entries.length - this.#start;
  }

  get dropped(): number {
    return this.#dropped;
  }

  push(entry: T, bytes: number): void {
    this.#entries.push(entry);
    this.#sizes.push(bytes);
    this.#bytes += bytes;
    // The newest entry stays, however large it is.
    while (this.length > this.entriesMax || (this.#bytes > this.bytesMax && this.length > 1)) {
      this.#bytes -= this.#sizes[this.#start] ?? 0;
      this.#entries[this.#start] = undefined;
      this.#start += 1;
      this.#dropped += 1;
    }
    // One copy after many drops, so that a drop costs nothing on average.
    if (this.#start > this.entriesMax) this.#compact();
  }

  /** The entry this many places behind the newest. */
  newest(behind: number): T | undefined {
    return this.#entries[this.#entries.length - 1 - behind];
  }

  clear(): void {
    this.#entries = [];
    this.#sizes = [];
    this.#start = 0;
    this.#bytes = 0;
    this.#dropped = 0;
  }

  #compact(): void {
    this.#entries = this.#entries.slice(this.#start);
    this.#sizes = this.#sizes.slice(this.#start);
    this.#start = 0;
  }
}
