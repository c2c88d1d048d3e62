// Ranges of the log that nobody can deliver any more.
import { Grid, type Column } from "../parts/grid";
import { Answered, Card, Empty, Page } from "../parts/layout";
import { Position, When } from "../parts/marks";
import { bytes, count, visible } from "../pure/format";
import { distance, parseLsn } from "../pure/position";
import { useQuery } from "../state/query";
import type { Gaps } from "../types";

type Gap = Gaps["items"][number];

function size({ after, up_to }: Gap): string {
  const [from, to] = [parseLsn(after), parseLsn(up_to)];
  return from === null || to === null ? "–" : bytes(distance(from, to));
}

const COLUMNS: readonly Column<Gap>[] = [
  { name: "After", kind: "nowrap", cell: (gap) => <Position at={gap.after} plain /> },
  { name: "Up to", kind: "nowrap", cell: (gap) => <Position at={gap.up_to} plain /> },
  { name: "Size", kind: "n", cell: size },
  { name: "Reason", kind: "wrap", cell: (gap) => <>{visible(gap.text)}<span class="sub">{visible(gap.reason)}</span></> },
  { name: "Reported", kind: "nowrap", cell: (gap) => <When at={gap.at} />, room: "wide-only" },
  { name: "Sequence", kind: "n", cell: (gap) => count(gap.sequence), room: "wider-only" },
];

export default function GapsPage() {
  const answer = useQuery<Gaps>("/gaps", {}, 10_000);
  return (
    <Page title="Gaps" lead="Ranges of PostgreSQL’s log that could not be delivered. Every gap is in the stream, too: mirrors copy their tables again.">
      <Answered answer={answer}>
        {({ items }) => (
          <Card title="Gaps that the stream still shows" note={count(items.length)} flush>
            {items.length > 0
              ? <Grid label="Gaps" columns={COLUMNS} rows={items} id={(gap) => gap.id} />
              : <Empty title="No gap">Every change since the start of the stream was delivered.</Empty>}
          </Card>
        )}
      </Answered>
    </Page>
  );
}
