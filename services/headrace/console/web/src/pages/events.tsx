// Events as they are published, or those that are stored: one filter for both, in the address.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { EventDrawer } from "../parts/event-drawer";
import { eventTable } from "../parts/event-name";
import { ExportLinks } from "../parts/export-links";
import { ChoiceFilter, ClearFilters, TextFilter } from "../parts/form";
import { Icon } from "../parts/icons";
import { Empty, Page, ProblemBox } from "../parts/layout";
import { VirtualList } from "../parts/list";
import { Operation } from "../parts/marks";
import { summary } from "../pure/cells";
import { count, local, plural, utc } from "../pure/format";
import { EventWindow } from "../pure/event-window";
import { Seam } from "../pure/seam";
import { get, Problem, type Query } from "../state/api";
import { onKey } from "../state/keys";
import { current, followEvents } from "../state/live";
import { navigate, route, withQuery } from "../state/route";
import type { Event, Events, LiveEvents } from "../types";

const FILTERS = ["table", "op", "key", "where", "text", "xid"] as const;
const STORED_ONLY = ["from", "to", "msg_id"] as const;
const ALL_FILTERS = [...FILTERS, ...STORED_ONLY];
const ROW = 34;
const PHONE_ROW = 44;
const FIRST = 100;
const CATCH_UP_PAGE = 500;
const CATCH_UP_MAX = 5000;
const PHONE = "(max-width: 43.99rem)";

const COLUMNS = [[""], ["Position", "wide-only"], ["Committed", "wider-only"], ["Table"], ["Change"]] as const;
const OPERATIONS = [
  ["", "All"], ["INSERT", "Inserts"], ["UPDATE", "Updates"], ["DELETE", "Deletes"], ["TRUNCATE", "Truncates"],
  ["SCHEMA", "Schema changes"], ["MESSAGE", "Messages"], ["GAP", "Gaps"],
] as const;

function asked(names: readonly string[]): Query {
  const { query } = route.value;
  return Object.fromEntries(names.filter((name) => query.has(name)).map((name) => [name, query.get(name)]));
}

interface Search {
  readonly next: string | null;
  readonly complete: boolean;
  readonly oldest: string | null;
  readonly read: number;
  /** Events whose values are not in their messages. */
  readonly large: number;
}

/** The window of events, and how to have more of them. */
function useEvents(live: boolean, paused: boolean) {
  const filter = JSON.stringify(asked(live ? FILTERS : ALL_FILTERS));
  const window = useMemo(() => new EventWindow(), [filter, live]);
  const [turn, redraw] = useState(0);
  const [search, setSearch] = useState<Search | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const frame = useRef(0);
  const draw = () => {
    // Several frames of the server make one of the screen.
    if (frame.current) return;
    frame.current = requestAnimationFrame(() => {
      frame.current = 0;
      redraw((turn) => turn + 1);
    });
  };
  const older = async (cursor: string | null, signal?: AbortSignal) => {
    try {
      const query = { ...(JSON.parse(filter) as Query), limit: FIRST, cursor };
      const { items, next, searched } = await get<Events>("/events", query, signal);
      window.addOlder(items);
      setProblem(null);
      // A search that continues has read what came before, too.
      setSearch((before) => {
        const earlier = cursor === null ? null : before;
        return {
          next,
          complete: searched.complete,
          oldest: searched.oldest ?? earlier?.oldest ?? null,
          read: Number(searched.events) + (earlier?.read ?? 0),
          large: Number(searched.large) + (earlier?.large ?? 0),
        };
      });
    } catch (error) {
      if (signal?.aborted) return;
      setProblem(error instanceof Problem ? error : new Problem(0, { detail: String(error) }));
    }
  };
  useEffect(() => {
    window.pause(paused);
    draw();
  }, [paused, window]);
  useEffect(() => {
    const stop = new AbortController();
    setSearch(null);
    if (!live) {
      void older(null, stop.signal);
      return () => stop.abort();
    }
    const query = JSON.parse(filter) as Query;
    let searched = false;
    const seam = new Seam(window, async (upTo) => {
      if (searched) await catchUp(window, query, upTo, stop.signal);
      else await older(null, stop.signal);
      searched = true;
      draw();
    });
    const take = (received: LiveEvents) => {
      seam.take(received);
      draw();
    };
    const leave = followEvents({ filter: query, begun: (resumed) => seam.begin(resumed), take });
    return () => {
      stop.abort();
      seam.end();
      leave();
    };
  }, [filter, live, window]);
  return { window, turn, search, problem, older: () => older(search?.next ?? null) };
}

/** What was published while the connection was away, up to a number. */
async function catchUp(
  window: EventWindow,
  filter: Query,
  upTo: bigint | null,
  signal: AbortSignal,
): Promise<void> {
  const from = window.newestPosition;
  const found: Event[] = [];
  let cursor: string | null = null;
  do {
    const query: Query = { ...filter, from, cursor, limit: CATCH_UP_PAGE };
    const answer: Events | null = await get<Events>("/events", query, signal).catch(() => null);
    if (!answer) {
      window.hole = true;
      break;
    }
    found.push(...answer.items);
    cursor = answer.next;
  } while (cursor && found.length < CATCH_UP_MAX);
  if (cursor) window.hole = true;
  window.catchUp(found, upTo);
}

function useRowHeight(): number {
  const [narrow, setNarrow] = useState(window.matchMedia(PHONE).matches);
  useEffect(() => {
    const media = window.matchMedia(PHONE);
    const changed = () => setNarrow(media.matches);
    media.addEventListener("change", changed);
    return () => media.removeEventListener("change", changed);
  }, []);
  return narrow ? PHONE_ROW : ROW;
}

export default function EventsPage() {
  const { query } = route.value;
  const live = !STORED_ONLY.some((name) => query.has(name));
  const paused = query.get("paused") === "1";
  const { window: events, turn, search, problem, older } = useEvents(live, paused);
  const rowHeight = useRowHeight();
  const toggle = () => navigate(withQuery({ paused: paused ? null : "1" }), { replace: true });
  useEffect(() => onKey("p", toggle), [paused]);
  const opened = query.get("open");
  return (
    <Page
      title="Events"
      lead={live ? "Every change as it is published, in commit order, the newest first." : "Stored events that match the filter, the newest first."}
      acts={(
        <>
          <ExportLinks path="/events/export" query={asked(ALL_FILTERS)} />
          {live && (
            <button type="button" class="button" aria-pressed={paused} onClick={toggle}>
              <Icon name={paused ? "play" : "pause"} size={16} />
              {paused ? "Continue" : "Pause"}
            </button>
          )}
        </>
      )}
    >
      <Filters />
      {problem && <ProblemBox message={problem.message} remedy={problem.remedy} />}
      <section class="card" aria-label="Events">
        <header>
          <Tally of={events} turn={turn} live={live} search={search} />
        </header>
        <VirtualList
          label="Events, the newest first"
          columns={COLUMNS}
          rows={events.length}
          added={events.added}
          rowHeight={rowHeight}
          gridClass="events-grid"
          id={(row) => identity(events.at(row)) ?? String(row)}
          render={(row) => <Line of={events.at(row)} />}
          open={(row) => navigate(withQuery({ open: events.at(row)?.position ?? null }))}
        />
        {events.length === 0 && search && <Nothing live={live} search={search} />}
      </section>
      {search !== null && search.large > 0 && (
        <p class="notice">{notCompared(search.large)}</p>
      )}
      {search?.next && (
        <button type="button" class="button" onClick={older}>
          {events.length > 0 ? "Older events" : "Continue the search"}
        </button>
      )}
      {opened && <EventDrawer position={opened} onClose={() => navigate(withQuery({ open: null }))} />}
    </Page>
  );
}

function notCompared(large: number): string {
  const events = large === 1 ? "1 event is larger than a message; its values were" : `${count(large)} events are larger than a message; their values were`;
  return `${events} not compared. Search for the key or the table instead.`;
}

const SELDOM = ["xid", "from", "to", "msg_id"] as const;

function Filters() {
  const used = SELDOM.some((name) => route.value.query.has(name));
  return (
    <div role="search" aria-label="Filter of events">
    <div class="filters">
      <TextFilter name="table" label="Table" placeholder="users" />
      <ChoiceFilter name="op" label="Operation" choices={OPERATIONS} />
      <TextFilter name="key" label="Key" placeholder="7" />
      <TextFilter name="where" label="Column = value" placeholder="status=paid" />
      <TextFilter name="text" label="Any value contains" wide />
      <ClearFilters names={ALL_FILTERS} />
    </div>
    <details open={used}>
      <summary>Time, position, transaction</summary>
      <div class="filters">
      <TextFilter name="xid" label="Transaction ID" />
      <TextFilter name="from" label="From, UTC or position" placeholder="2026-01-31T12:00Z" />
      <TextFilter name="to" label="To" placeholder="0/1D6BD80+5" />
      <TextFilter name="msg_id" label="Message ID" wide />
      </div>
    </details>
    </div>
  );
}

interface TallyProps {
  readonly of: EventWindow;
  /** The window is one object that changes: a part is drawn again only for other properties. */
  readonly turn: number;
  readonly live: boolean;
  readonly search: Search | null;
}

function Tally({ of: events, live, search }: TallyProps) {
  const { published, matched, notShown, missed, waiting } = events;
  if (!live) {
    return (
      <p class="tally" role="status">
        <span><b>{count(events.length)}</b> found</span>
        {search && <span>{count(search.read)} events read, back to {utc(search.oldest, 0)}</span>}
      </p>
    );
  }
  return (
    <p class="tally">
      <span><b data-count="published">{count(published)}</b> published since this page opened</span>
      <span><b data-count="matched">{count(matched)}</b> of them match</span>
      {notShown > 0n && <span><b data-count="not-shown">{count(notShown)}</b> counted but not listed</span>}
      {missed > 0n && <span class="warn"><b data-count="missed">{count(missed)}</b> missed while away</span>}
      {waiting > 0 && <span class="warn"><b data-count="waiting">{count(waiting)}</b> new while paused</span>}
      {events.hole && <span class="warn">more was published while away than is listed</span>}
      {!current.value && <span class="bad">not connected</span>}
    </p>
  );
}

/** With batches, several events share a sequence; a schema has the position of the change after it. */
function identity(event: Event | undefined): string | undefined {
  return event && `${event.sequence} ${event.position} ${event.operation}`;
}

function Line({ of: event }: { of: Event | undefined }) {
  if (!event) return null;
  return (
    <>
      <span role="gridcell"><Operation is={event.operation} /></span>
      <span role="gridcell" class="position wide-only">{event.position}</span>
      <span role="gridcell" class="dim wider-only" title={`${utc(event.at)}, ${local(event.at)}`}>{utc(event.at).slice(11, 23)}</span>
      <span role="gridcell">{eventTable(event)}</span>
      <span role="gridcell" class="values">{event.note ?? summary(event.columns)}</span>
    </>
  );
}

function Nothing({ live, search }: { live: boolean; search: Search }) {
  if (!search.complete) {
    return (
      <Empty title="No match so far">
        The search read {plural(search.read, "event")}, back to {utc(search.oldest, 0)}. Continue below.
      </Empty>
    );
  }
  const filtered = ALL_FILTERS.some((name) => route.value.query.has(name));
  if (filtered) return <Empty title="No stored event matches the filter">{live ? "New ones appear here." : "Retention may have removed older ones."}</Empty>;
  return (
    <Empty title="No events yet">
      Change a row: <code>INSERT INTO users (name) VALUES ('Ada');</code>
    </Empty>
  );
}
