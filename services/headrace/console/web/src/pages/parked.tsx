// Changes that could not be read and were set aside.
import { Grid, type Column } from "../parts/grid";
import { Answered, Card, Empty, Page } from "../parts/layout";
import { When } from "../parts/marks";
import { bytes, count, visible } from "../pure/format";
import { useQuery } from "../state/query";
import type { Parked } from "../types";

type Change = Parked["items"][number];

const COLUMNS: readonly Column<Change>[] = [
  { name: "Change", kind: "name", cell: (change) => <code class="break">{visible(change.id)}</code> },
  { name: "Reason", kind: "wrap", cell: (change) => visible(change.reason ?? "not recorded") },
  { name: "Size", kind: "n", cell: (change) => bytes(change.bytes) },
  { name: "Parked", kind: "nowrap", cell: (change) => <When at={change.at} />, room: "wide-only" },
  {
    name: "Facts", kind: "wrap", room: "wider-only",
    cell: (change) => Object.entries(change.facts).map(([name, value]) => `${visible(name)} ${visible(value)}`).join(" · ") || <span class="dim">–</span>,
  },
];

export default function ParkedPage() {
  const answer = useQuery<Parked>("/parked", {}, 10_000);
  return (
    <Page title="Parked changes" lead="Changes that the publisher could not read. They wait in an object store, and the stream continues without them.">
      <Answered answer={answer}>
        {({ items }) => (
          <Card title="Waiting" note={count(items.length)} flush>
            {items.length > 0
              ? <Grid label="Parked changes" columns={COLUMNS} rows={items} id={(change) => change.id} />
              : <Empty title="No change is parked">The publisher has read every change that PostgreSQL sent.</Empty>}
          </Card>
        )}
      </Answered>
    </Page>
  );
}
