// The published tables.
import { Grid, type Column } from "../parts/grid";
import { ClearFilters, TextFilter } from "../parts/form";
import { Answered, Card, Empty, Page } from "../parts/layout";
import { TableName } from "../parts/marks";
import { bytes, count, rate } from "../pure/format";
import { tableHref } from "../pure/search";
import { useQuery } from "../state/query";
import { navigate, route, withQuery } from "../state/route";
import type { TableLine, Tables } from "../types";

export function fullName({ schema, table }: { schema: string; table: string }): string {
  return schema === "public" ? table : `${schema}.${table}`;
}

const COLUMNS: readonly Column<TableLine>[] = [
  { name: "Table", kind: "name", cell: (row) => <TableName name={fullName(row)} token={row.token} />, sort: fullName },
  { name: "Events/s", kind: "n", cell: (row) => rate(row.events_per_s), sort: (row) => row.events_per_s ?? -1 },
  { name: "Events", kind: "n", cell: (row) => count(row.events), sort: (row) => BigInt(row.events) },
  { name: "Estimated rows", kind: "n", cell: (row) => count(row.rows_estimated), sort: (row) => BigInt(row.rows_estimated ?? -1), room: "wide-only" },
  { name: "Size", kind: "n", cell: (row) => bytes(row.bytes), sort: (row) => BigInt(row.bytes ?? -1), room: "wide-only" },
  { name: "Schema", kind: "n", cell: (row) => row.schema_version === null ? "–" : `v${row.schema_version}`, sort: (row) => row.schema_version ?? -1, room: "wider-only" },
  { name: "Columns", kind: "n", cell: (row) => row.columns ?? "–", sort: (row) => row.columns ?? -1, room: "wider-only" },
];

export default function TablesPage() {
  const { query } = route.value;
  const asked = { q: query.get("q"), cursor: query.get("cursor"), limit: 200 };
  const answer = useQuery<Tables>("/tables", asked, 3000);
  return (
    <Page title="Tables" lead="Every table of the publication, with its events since the publisher started.">
      <div class="filters">
        <TextFilter name="q" label="Name contains" wide />
        <ClearFilters names={["q"]} />
      </div>
      <Answered answer={answer}>
        {(tables) => (
          <Card title={query.get("q") ? "Matching tables" : "All tables"} flush>
            {tables.items.length === 0 ? <NoTables filtered={query.has("q")} /> : (
              <Grid label="Tables" columns={COLUMNS} rows={tables.items} id={(row) => row.token} href={(row) => tableHref(row.token)} />
            )}
          </Card>
        )}
      </Answered>
      {answer.data?.next && (
        <button type="button" class="button" onClick={() => navigate(withQuery({ cursor: answer.data?.next ?? null }))}>
          More tables
        </button>
      )}
    </Page>
  );
}

function NoTables({ filtered }: { filtered: boolean }) {
  if (filtered) return <Empty title="No table name contains this">Clear the filter to see all tables of the publication.</Empty>;
  return (
    <Empty title="The publication has no tables yet">
      Add one in PostgreSQL: <code>ALTER PUBLICATION headrace ADD TABLE users;</code>
    </Empty>
  );
}
