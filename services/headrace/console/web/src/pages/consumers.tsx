// Consumers of the stream: who loses events first, and when.
import { Grid, type Column } from "../parts/grid";
import { Answered, Card, Empty, Page } from "../parts/layout";
import { State } from "../parts/marks";
import { bytes, count, duration, visible } from "../pure/format";
import { useQuery } from "../state/query";
import type { Consumers } from "../types";

type Consumer = Consumers["items"][number];

function Room({ of: { left_ratio: left, state } }: { of: Consumer }) {
  const percent = Math.round(left * 100);
  return (
    <div class={`bar ${state}`} role="meter" aria-label="Room left" aria-valuemin={0} aria-valuemax={100} aria-valuenow={percent} title={`${percent} % left`}>
      <i style={{ width: `${Math.max(0, Math.min(1, left)) * 100}%` }} />
    </div>
  );
}

const COLUMNS: readonly Column<Consumer>[] = [
  { name: "Consumer", kind: "name", cell: (row) => <>{visible(row.name)}<span class="sub">{visible(row.stream)}</span></>, sort: (row) => row.name },
  { name: "State", cell: (row) => <State is={row.state} /> },
  { name: "Room left", cell: (row) => <Room of={row} />, sort: (row) => row.left_ratio, room: "wide-only" },
  { name: "Time left", kind: "n", cell: (row) => <>{duration(row.left_s)}<span class="sub">{bytes(row.left_bytes)}</span></>, sort: (row) => row.left_s ?? Infinity },
  { name: "Behind", kind: "n", cell: (row) => <>{duration(row.lag_s)}<span class="sub">{count(row.pending)} pending</span></>, sort: (row) => row.lag_s },
  { name: "Unacknowledged", kind: "n", cell: (row) => count(row.unacknowledged), room: "wider-only" },
  { name: "Lost", kind: "n", cell: (row) => <span class={row.lost === "0" ? "dim" : "bad"}>{count(row.lost)}</span> },
  { name: "What happens next", kind: "wrap", cell: (row) => visible(row.text), room: "wide-only" },
];

export default function ConsumersPage() {
  const answer = useQuery<Consumers>("/consumers", {}, 3000);
  return (
    <Page title="Consumers" lead="Programs that read the streams. The one that will lose events first is at the top.">
      <Answered answer={answer}>
        {({ items }) => (
          <Card title="All consumers" note={count(items.length)} flush>
            {items.length > 0
              ? <Grid label="Consumers" columns={COLUMNS} rows={items} id={(row) => `${row.stream} ${row.name}`} />
              : <Empty title="Nobody has a durable consumer">A consumer appears here when it is created in NATS, for example by <code>headrace tail --durable NAME</code>.</Empty>}
          </Card>
        )}
      </Answered>
    </Page>
  );
}
