// Sinks: how far each is, and what stops it.
import { Grid, type Column } from "../parts/grid";
import { Answered, Card, Empty, Page } from "../parts/layout";
import { Position, State } from "../parts/marks";
import { count, duration, plural, visible } from "../pure/format";
import { useQuery } from "../state/query";
import { route, withQuery } from "../state/route";
import type { SinkLine, Sinks } from "../types";
import { NewSink } from "./new-sink";

export function sinkHref(name: string): string {
  return `/sinks/${encodeURIComponent(name)}`;
}

export function SinkReason({ of: sink }: { of: SinkLine }) {
  if (sink.reason_hidden) return <span class="dim">hidden: it may quote values of rows</span>;
  return sink.reason ? <>{visible(sink.reason)}</> : <span class="dim">–</span>;
}

const COLUMNS: readonly Column<SinkLine>[] = [
  { name: "Sink", kind: "name", cell: (row) => <><a href={sinkHref(row.name)}>{row.name}</a><span class="sub break wide-only">{visible(row.to ?? "")}</span></>, sort: (row) => row.name },
  { name: "State", cell: (row) => <State is={row.state} />, sort: (row) => row.state },
  { name: "Behind", kind: "n", cell: (row) => <>{duration(row.behind_s)}<span class="sub">{row.behind_messages === null ? "never ran" : plural(Number(row.behind_messages), "message")}</span></>, sort: (row) => row.behind_s ?? -1 },
  { name: "Position", kind: "n", cell: (row) => <><Position at={row.position} /><span class="sub">message {count(row.sequence)}</span></>, room: "wider-only" },
  { name: "Dead letters", kind: "n", cell: (row) => <span class={row.letters === "0" ? "dim" : "bad"}>{count(row.letters)}</span>, sort: (row) => BigInt(row.letters) },
  { name: "Promise", cell: (row) => row.promise ?? <span class="dim">not known</span>, room: "wider-only" },
  { name: "Last error", kind: "wrap", cell: (row) => <SinkReason of={row} />, room: "wide-only" },
];

export default function SinksPage() {
  return route.value.query.has("new") ? <NewSink /> : <SinkList />;
}

function SinkList() {
  const answer = useQuery<Sinks>("/sinks", {}, 3000);
  return (
    <Page
      title="Sinks"
      lead="Other systems that receive the changes. Each has a separate process and position."
      acts={<a class="button primary" href={withQuery({ new: "1" })}>New sink</a>}
    >
      <Answered answer={answer}>
        {({ items, configuration }) => (
          <>
            {items.length > 0 && configuration.problem && (
              <p class="notice">
                Targets are not known, because the console can’t read the sinks’ file: {visible(configuration.problem)}. Set <code>HEADRACE_CONFIG</code> for the console, too.
              </p>
            )}
            <Card title="All sinks" note={count(items.length)} flush>
              {items.length > 0
                ? <Grid label="Sinks" columns={COLUMNS} rows={items} id={(row) => row.name} href={(row) => sinkHref(row.name)} />
                : (
                  <Empty title="No sink is configured">
                    <a href={withQuery({ new: "1" })}>Prepare the text of one</a> for the file that <code>HEADRACE_CONFIG</code> names. {configuration.problem && visible(configuration.problem)}
                  </Empty>
                )}
            </Card>
          </>
        )}
      </Answered>
    </Page>
  );
}
