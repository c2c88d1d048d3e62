// A few events as a table; long lists are virtual.
import { summary } from "../pure/cells";
import { eventHref } from "../pure/search";
import type { Event } from "../types";
import { Grid, type Column } from "./grid";
import { Operation, Position, When } from "./marks";
import { eventTable } from "./event-name";

const COLUMNS: readonly Column<Event>[] = [
  { name: "Operation", quiet: true, cell: (event) => <Operation is={event.operation} /> },
  { name: "Position", kind: "nowrap", cell: (event) => <Position at={event.position} /> },
  { name: "Table", kind: "name", cell: (event) => eventTable(event) },
  { name: "Change", kind: "wrap", cell: (event) => <span class="mono">{event.note ?? summary(event.columns)}</span> },
  { name: "Committed", kind: "nowrap", cell: (event) => <When at={event.at} />, room: "wider-only" },
];

interface EventLinesProps {
  readonly events: readonly Event[];
  /** Where every event is of one commit, its time says nothing. */
  readonly withTime?: boolean;
}

export function EventLines({ events, withTime = true }: EventLinesProps) {
  const columns = withTime ? COLUMNS : COLUMNS.slice(0, -1);
  return (
    <Grid label="Events" columns={columns} rows={events} id={(event) => `${event.sequence} ${event.msg_id}`} href={(event) => eventHref(event.position)} />
  );
}
