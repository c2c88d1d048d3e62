// One event: its values, and its way from the commit to everything that has it.
import { EventFacts } from "../parts/event-facts";
import { ExportLinks } from "../parts/export-links";
import { eventTable } from "../parts/event-name";
import { Icon, type IconName } from "../parts/icons";
import { Answered, Card, Facts, Page } from "../parts/layout";
import { Copy, Position, When } from "../parts/marks";
import { Diff } from "../parts/value";
import { duration, visible } from "../pure/format";
import { addressed, fromAddress } from "../pure/position";
import { useQuery } from "../state/query";
import { route } from "../state/route";
import type { EventAnswer, Station, Trace } from "../types";

export default function EventPage() {
  const [, part = ""] = route.value.parts;
  const position = fromAddress(part);
  const full = route.value.query.get("full") === "1";
  const answer = useQuery<EventAnswer>(`/events/${addressed(position)}`, { full: full || null });
  const trace = useQuery<Trace>(`/events/${addressed(position)}/trace`, {}, 2000);
  const event = answer.data?.event;
  const cut = event?.columns.some(({ before, after }) => before?.size !== undefined || after?.size !== undefined);
  return (
    <Page
      title={event ? `${capital(event.operation)} on ${eventTable(event)}` : "Event"}
      crumbs={<a href="/events">Events</a>}
      lead={<span class="line"><Position at={position} plain /><Copy text={position} label="Copy the position" /></span>}
      acts={<ExportLinks path={`/events/${addressed(position)}/trace/export`} trace />}
    >
      <div class="grid side">
        <div class="stack">
          <Answered answer={answer}>
            {({ event: shown }) => (
              <>
                {shown.columns.length > 0 && (
                  <Card title="Values" note={cut && !full && <a href={`${route.value.path}?full=1`}>Show long values in full</a>} flush>
                    <Diff columns={shown.columns} label="Columns before and after" />
                  </Card>
                )}
                <Card title="Details"><EventFacts of={shown} /></Card>
              </>
            )}
          </Answered>
        </div>
        <Card title="Trace" note="Who has this change">
          <Answered answer={trace}>
            {({ stations }) => (
              <ol class="stations">
                {stations.map((station) => <StationLine key={`${station.kind} ${station.name}`} of={station} />)}
              </ol>
            )}
          </Answered>
        </Card>
      </div>
    </Page>
  );
}

function capital(word: string): string {
  return word.slice(0, 1) + word.slice(1).toLowerCase();
}

const REACHED: Readonly<Record<Station["reached"], readonly [string, IconName, string]>> = {
  yes: ["done", "done", "has it"],
  no: ["waiting", "wait", "not yet"],
  unknown: ["unknown", "unknown", "not known"],
  filtered: ["unknown", "unknown", "does not ask for it"],
  refused: ["failed", "alert", "has refused it"],
};

function StationLine({ of: station }: { of: Station }) {
  const [tone, icon, words] = REACHED[station.reached];
  const facts = Object.entries(station.facts);
  return (
    <li class={tone}>
      <Icon name={icon} size={20} />
      <div class="name">
        {station.link ? <a href={station.link}>{visible(station.name)}</a> : visible(station.name)}
        <span>{words}{station.after_s !== null && station.after_s > 0 && `, ${duration(station.after_s)} after the commit`}</span>
      </div>
      <p class="dim">{visible(station.text)}</p>
      {(station.at || station.lsn || facts.length > 0) && (
        <details>
          <summary>Details</summary>
          <Facts
            of={[
              ...(station.at ? [["Time", <When at={station.at} both />] as const] : []),
              ...(station.lsn ? [["LSN", <Position at={station.lsn} plain />] as const] : []),
              ...facts.map(([name, value]) => [name, visible(value)] as const),
            ]}
          />
        </details>
      )}
    </li>
  );
}
