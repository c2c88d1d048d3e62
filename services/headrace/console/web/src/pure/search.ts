// What a person means who types into the search box: a position, an LSN, a transaction, a row or
// a table. Each meaning is an address; several are offered if the text allows several.
import { addressed, lsnText, parseLsn, parsePosition, positionText } from "./position";

export interface Meaning {
  readonly kind: "event" | "transaction" | "row" | "table" | "text" | "page";
  readonly label: string;
  readonly href: string;
}

const MESSAGE_ID = /^([0-9a-f]{1,16})-(.+)-(insert|update|delete|truncate|schema)(?:-\d+)?$/i;
const XID_MAX = 2 ** 32;

/** A table as it stands in an address: schema and name as one part. */
export function tableHref(token: string, tail = ""): string {
  return `/tables/${encodeURIComponent(token)}${tail}`;
}

export function rowHref(token: string, key: readonly string[]): string {
  const values = key.map((value) => encodeURIComponent(value)).join(",");
  return `/rows/${encodeURIComponent(token)}/${values}`;
}

export function eventHref(position: string): string {
  return `/events/${addressed(position)}`;
}

export function transactionHref(lsn: string): string {
  return `/tx/${addressed(lsn)}`;
}

interface NamedTable {
  readonly token: string;
  readonly name: string;
}

/** All that the text may mean, the most exact first. */
export function meanings(text: string, tables: readonly NamedTable[]): Meaning[] {
  const wanted = text.trim();
  if (!wanted) return [];
  return [...places(wanted), ...rows(wanted, tables), ...named(wanted, tables), ...anywhere(wanted)];
}

function places(wanted: string): Meaning[] {
  const position = parsePosition(wanted);
  if (position) {
    const shown = positionText(position);
    return [{ kind: "event", label: `Event ${shown}`, href: eventHref(shown) }];
  }
  const id = MESSAGE_ID.exec(wanted);
  if (id) {
    const label = `Event with the message ID ${wanted}`;
    return [{ kind: "event", label, href: `/events?msg_id=${encodeURIComponent(wanted)}` }];
  }
  return [...xids(wanted), ...commits(wanted)];
}

function xids(wanted: string): Meaning[] {
  if (!/^\d{1,10}$/.test(wanted) || Number(wanted) >= XID_MAX) return [];
  const href = `/events?xid=${wanted}`;
  return [{ kind: "transaction", label: `Transaction ID ${wanted}`, href }];
}

function commits(wanted: string): Meaning[] {
  const lsn = parseLsn(wanted);
  if (lsn === null) return [];
  const shown = lsnText(lsn);
  return [{ kind: "transaction", label: `Transaction at ${shown}`, href: transactionHref(shown) }];
}

/** `users 7`, `app.orders 7,2` or `users/7`. */
function rows(wanted: string, tables: readonly NamedTable[]): Meaning[] {
  const found = /^(\S+?)[\s/]+(\S.*)$/.exec(wanted);
  if (!found) return [];
  const table = tables.find(({ name, token }) => name === found[1] || token === found[1]);
  if (!table) return [];
  const key = (found[2] ?? "").split(",").map((value) => value.trim());
  const label = `Row ${key.join(", ")} of ${table.name}`;
  return [{ kind: "row", label, href: rowHref(table.token, key) }];
}

function named(wanted: string, tables: readonly NamedTable[]): Meaning[] {
  const low = wanted.toLowerCase();
  return tables
    .filter(({ name }) => name.toLowerCase().includes(low))
    .sort((one, other) => one.name.length - other.name.length)
    .slice(0, 6)
    .map(({ name, token }) => ({ kind: "table", label: name, href: tableHref(token) }));
}

function anywhere(wanted: string): Meaning[] {
  const href = `/events?text=${encodeURIComponent(wanted)}`;
  return [{ kind: "text", label: `Events that contain “${wanted}”`, href }];
}
