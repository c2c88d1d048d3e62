// What is known about an event besides its values.
import { count, visible } from "../pure/format";
import { tableHref } from "../pure/search";
import type { Event } from "../types";
import { eventTable } from "./event-name";
import { Facts } from "./layout";
import { Operation, Position, When } from "./marks";
import { keyText } from "./value";

export function keyHref(token: string, key: Readonly<Record<string, string | null>>): string {
  return `/rows/${encodeURIComponent(token)}?key=${encodeURIComponent(JSON.stringify(key))}`;
}

export function EventFacts({ of: event }: { of: Event }) {
  const { token, key, note } = event;
  const row = key && Object.keys(key).length > 0 ? keyText(key) : null;
  return (
    <>
      {note && <p>{visible(note)}</p>}
      <Facts
        of={[
          ["Operation", <Operation is={event.operation} word />],
          ["Table", token ? <a href={tableHref(token)}>{eventTable(event)}</a> : "–"],
          ["Row", row && token && key ? <a href={keyHref(token, key)}>{row}</a> : <span class="dim">no key</span>],
          ["Committed", <When at={event.at} both />],
          ["Transaction", <><Position at={event.position.split("+")[0]} /> {event.xid && <span class="dim">ID {event.xid}</span>}</>],
          ["Stream sequence", count(event.sequence)],
          ["LSN of the change", <Position at={event.lsn} plain />],
          ["Message ID", <code>{visible(event.msg_id)}</code>],
        ]}
      />
    </>
  );
}
