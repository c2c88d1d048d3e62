// The lake: its newest cut, the cuts that readers can go back to, and the tables' files.
import { Grid, type Column } from "../parts/grid";
import { Answered, Card, Empty, Figures, Page, Tabs } from "../parts/layout";
import { Position, When } from "../parts/marks";
import { bytes, count, duration, plural, visible } from "../pure/format";
import { useQuery } from "../state/query";
import { route } from "../state/route";
import type { Lake, LakeCut, LakeTable, LakeTables } from "../types";

export default function LakePage() {
  const [, tab = ""] = route.value.parts;
  const answer = useQuery<Lake>("/lake", {}, 3000);
  const tabs = [
    { label: "Cuts", href: "/lake", current: tab === "" },
    { label: "Tables and files", href: "/lake/tables", current: tab === "tables" },
  ];
  return (
    <Page title="Lake" lead="The tables as Iceberg tables. A cut shows all of them at one LSN.">
      <Answered answer={answer}>
        {(lake) => (
          <>
            <Summary of={lake} />
            {lake.stale.filter(({ part }) => part === "lake").map(({ reason }) => <p class="notice" key={reason}>The catalog can’t be read: {visible(reason)}</p>)}
            {lake.writer === null && <p class="notice">No lake-writer reports, so no cut will be made. Start <code>headrace lake-writer</code>.</p>}
            {lake.writer?.reasons.map((reason) => <p class="notice" key={reason}>{visible(reason)}</p>)}
            <Tabs label="Parts of the lake" tabs={tabs} />
            {tab === "" ? <Cuts of={lake} /> : <Tables />}
          </>
        )}
      </Answered>
    </Page>
  );
}

function Summary({ of: { cuts: [newest], age_s, writer } }: { of: Lake }) {
  return (
    <Figures
      of={[
        { name: "Newest cut", value: newest ? count(newest.number) : "–", note: newest ? <Position at={newest.lsn} plain /> : "none yet" },
        { name: "Age of the newest cut", value: duration(age_s), note: newest && plural(newest.tables, "table") },
        { name: "Lake-writer behind", value: duration(writer?.lag_s), note: writer ? bytes(writer.lag_bytes) : "does not report" },
        { name: "Waiting archive files", value: count(writer?.behind_files), note: writer && `lake-writer: ${writer.state}` },
        { name: "Data files", value: count(writer?.data_files), note: writer?.delete_files ? `${plural(Number(writer.delete_files), "delete file")}` : null },
      ]}
    />
  );
}

const CUT_COLUMNS: readonly Column<LakeCut>[] = [
  { name: "Cut", kind: "n", cell: (cut) => count(cut.number) },
  { name: "LSN", kind: "n", cell: (cut) => <Position at={cut.lsn} plain />, room: "wider-only" },
  { name: "Made", kind: "nowrap", cell: (cut) => <When at={cut.made} /> },
  { name: "Last commit", kind: "nowrap", cell: (cut) => <When at={cut.commit} />, room: "wider-only" },
  { name: "Tables", kind: "n", cell: (cut) => count(cut.tables), room: "wider-only" },
  { name: "Changed", kind: "wrap", cell: (cut) => <Changed of={cut} />, room: "wide-only" },
  { name: "Read", kind: "n", cell: (cut) => <a href={`/sql?cut=${cut.number}`} aria-label={`SQL at cut ${cut.number}`}>SQL</a> },
];
const NAMED_MAX = 4;

function Changed({ of: { changed } }: { of: LakeCut }) {
  if (changed === null) return <span class="dim">not known: the cut before is gone</span>;
  if (changed.length === 0) return <span class="dim">nothing</span>;
  const more = changed.length - NAMED_MAX;
  return <>{changed.slice(0, NAMED_MAX).map(visible).join(", ")}{more > 0 && <span class="dim"> and {count(more)} more</span>}</>;
}

function Cuts({ of: { cuts, copies } }: { of: Lake }) {
  return (
    <>
      {copies.length > 0 && (
        <p class="notice" role="status">
          Copied again: {copies.map(({ table, state, rows }) => `${visible(table)} (${state}, ${plural(Number(rows), "row")})`).join(", ")}
        </p>
      )}
      <Card title="Cuts" note={`${plural(cuts.length, "cut")} to go back to`} flush>
        {cuts.length > 0
          ? <Grid label="Cuts" columns={CUT_COLUMNS} rows={cuts} id={({ number }) => number} />
          : <Empty title="The lake has no cut yet">The lake-writer makes the first cut after it has copied the tables.</Empty>}
      </Card>
    </>
  );
}

const TABLE_COLUMNS: readonly Column<LakeTable>[] = [
  { name: "Table", kind: "name", cell: (row) => <>{visible(row.table)}{!row.own && <span class="sub">of {visible(row.source ?? "another program")}</span>}</>, sort: (row) => row.table },
  { name: "Rows", kind: "n", cell: (row) => count(row.rows), sort: (row) => BigInt(row.rows) },
  { name: "Deleted rows", kind: "n", cell: (row) => count(row.deleted_rows), sort: (row) => BigInt(row.deleted_rows), room: "wider-only" },
  { name: "Files", kind: "n", cell: (row) => count(row.files), sort: (row) => BigInt(row.files) },
  { name: "Delete files", kind: "n", cell: (row) => count(row.delete_files), sort: (row) => BigInt(row.delete_files), room: "wide-only" },
  { name: "Size", kind: "n", cell: (row) => bytes(row.bytes), sort: (row) => BigInt(row.bytes) },
  { name: "Snapshots", kind: "n", cell: (row) => count(row.snapshots), sort: (row) => BigInt(row.snapshots), room: "wider-only" },
  { name: "Last change", kind: "nowrap", cell: (row) => <When at={row.changed} />, sort: (row) => row.changed ?? "", room: "wider-only" },
];

function Tables() {
  const answer = useQuery<LakeTables>("/lake/tables", {}, 15_000);
  const items = answer.data?.items ?? [];
  const sum = (of: (row: LakeTable) => string) => items.reduce((all, row) => all + BigInt(of(row)), 0n);
  return (
    <Answered answer={answer}>
      {({ stale }) => (
        <>
          {stale.filter(({ part }) => part === "lake").map(({ reason }) => <p class="notice" key={reason}>The tables can’t be read: {visible(reason)}</p>)}
          <Card title="Tables" note={`${count(sum((row) => row.files))} files, ${bytes(sum((row) => row.bytes))}`} flush>
            {items.length > 0
              ? <Grid label="Tables" columns={TABLE_COLUMNS} rows={items} id={({ table }) => table} />
              : <Empty title="The lake has no table yet">The lake-writer copies the published tables; its state is above.</Empty>}
          </Card>
        </>
      )}
    </Answered>
  );
}
