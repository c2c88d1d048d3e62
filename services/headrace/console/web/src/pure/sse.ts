// The format of server-sent events (WHATWG HTML, 9.2), read from pieces of any size.
//
// The browser's EventSource gives up after an answer other than 200 and shows no reason. A stream
// that the page reads itself resumes after any answer, with the reason of the refusal.

export interface ServerEvent {
  readonly event: string;
  readonly data: string;
  readonly id: string;
}

export class EventParser {
  #rest = "";
  #event = "";
  #data: string[] = [];
  #id = "";

  /** The events that this piece completes. */
  push(piece: string): ServerEvent[] {
    const text = this.#rest + piece;
    const done: ServerEvent[] = [];
    let from = 0;
    for (;;) {
      const end = text.indexOf("\n", from);
      if (end < 0) break;
      const line = text.slice(from, text[end - 1] === "\r" ? Math.max(from, end - 1) : end);
      from = end + 1;
      const event = this.#line(line);
      if (event) done.push(event);
    }
    this.#rest = text.slice(from);
    return done;
  }

  #line(line: string): ServerEvent | null {
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    if (colon === 0) return null;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.#event = value;
    if (field === "data") this.#data.push(value);
    if (field === "id" && !value.includes("\0")) this.#id = value;
    return null;
  }

  #dispatch(): ServerEvent | null {
    const event = { event: this.#event || "message", data: this.#data.join("\n"), id: this.#id };
    const empty = this.#data.length === 0;
    this.#event = "";
    this.#data = [];
    return empty ? null : event;
  }
}
