// One table: columns, the versions of its structure, its newest events.
import { EventLines } from "../parts/event-lines";
import { Answered, Card, Empty, Facts, Figures, Page, Tabs } from "../parts/layout";
import { Position, When } from "../parts/marks";
import { bytes, count, rate, visible } from "../pure/format";
import { tableHref } from "../pure/search";
import { useQuery } from "../state/query";
import { route } from "../state/route";
import type { Column, Events, Schemas_ as Schemas, SchemaVersion, TableAnswer } from "../types";
import { fullName } from "./tables";

export default function TablePage() {
  const [, token = "", tab = ""] = route.value.parts;
  const answer = useQuery<TableAnswer>(`/tables/${encodeURIComponent(token)}`, {}, 3000);
  const title = answer.data ? visible(fullName(answer.data.table)) : visible(token);
  const tabs = [
    { label: "Columns", href: tableHref(token), current: tab === "" },
    { label: "Schema history", href: tableHref(token, "/schema"), current: tab === "schema" },
    { label: "Newest events", href: tableHref(token, "/events"), current: tab === "events" },
  ];
  return (
    <Page
      title={title}
      crumbs={<a href="/tables">Tables</a>}
      acts={
        <>
          <a class="button" href={`/events?table=${encodeURIComponent(token)}`}>Live events</a>
          <a class="button" href={`/snapshots?new=${encodeURIComponent(token)}`}>Request a snapshot</a>
        </>
      }
    >
      <Answered answer={answer}>
        {(table) => (
          <>
            <Summary of={table} />
            <Tabs label="Parts of the table" tabs={tabs} />
            {tab === "" && <Structure of={table} />}
            {tab === "schema" && <SchemaHistory token={token} />}
            {tab === "events" && <Newest token={token} />}
          </>
        )}
      </Answered>
    </Page>
  );
}

function Summary({ of: { table } }: { of: TableAnswer }) {
  return (
    <Figures
      of={[
        { name: "Events per second", value: rate(table.events_per_s), note: `${count(table.events)} since the publisher started` },
        { name: "Inserts", value: count(table.inserts) },
        { name: "Updates", value: count(table.updates) },
        { name: "Deletes", value: count(table.deletes), note: table.truncates === "0" || table.truncates === null ? null : `and ${count(table.truncates)} truncates` },
        { name: "Estimated rows", value: count(table.rows_estimated), note: bytes(table.bytes) },
      ]}
    />
  );
}

const IDENTITY: Readonly<Record<string, string>> = {
  default: "the primary key",
  nothing: "nothing: updates and deletes are not published",
  full: "full: every old value is sent",
  index: "a unique index",
};

function Structure({ of: { table, columns, replica_identity, values } }: { of: TableAnswer }) {
  return (
    <div class="grid side">
      <Card title="Columns" note={`${count(columns.length)} columns`} flush>
        <ColumnsTable columns={columns} />
      </Card>
      <Card title="About the table">
        <Facts
          of={[
            ["Primary key", table.primary_key.map(visible).join(", ") || "none"],
            ["Replica identity", IDENTITY[replica_identity ?? ""] ?? "not known"],
            ["Schema version", table.schema_version ?? "–"],
            ["Last change", <When at={table.last_change} both />],
            ["Last position", <Position at={table.last_position} />],
            ["Token", <code>{table.token}</code>],
            ["Values", values ? "shown to you" : "hidden: you have no right to see them"],
          ]}
        />
      </Card>
    </div>
  );
}

function ColumnsTable({ columns }: { columns: readonly Column[] }) {
  return (
    <table>
      <caption class="hidden">Columns</caption>
      <thead>
        <tr>
          <th scope="col">Column</th>
          <th scope="col">Type</th>
          <th scope="col">Null</th>
          <th scope="col">Default</th>
        </tr>
      </thead>
      <tbody>
        {columns.map((column) => (
          <tr key={column.name}>
            <td class="break">{visible(column.name)}{column.key && <span class="dim small"> key</span>}</td>
            <td><code>{visible(column.type)}</code></td>
            <td>{column.nullable ? "allowed" : <span class="dim">no</span>}</td>
            <td class="wrap">{column.default === null ? <span class="dim">–</span> : <code>{visible(column.default)}</code>}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function SchemaHistory({ token }: { token: string }) {
  const answer = useQuery<Schemas>(`/tables/${encodeURIComponent(token)}/schemas`, {}, 10_000);
  return (
    <Answered answer={answer}>
      {({ items }) => items.length === 0
        ? <Empty title="No version is stored yet">The first change of the table stores one.</Empty>
        : <>{items.map((version) => <Version key={version.version} of={version} />)}</>}
    </Answered>
  );
}

function Version({ of: version }: { of: SchemaVersion }) {
  const title = `Version ${version.version}${version.current ? ", current" : ""}`;
  return (
    <Card title={title} note={<><When at={version.at} /> {version.position && <Position at={version.position} />}</>}>
      {version.resync && <p class="notice">Rows can’t express this change: copies of the table must be made again.</p>}
      <ul class="stack">
        {version.changes.map((change) => <li key={change}>{visible(change)}</li>)}
        {version.changes.length === 0 && <li class="dim">The first version that is stored.</li>}
      </ul>
      <details>
        <summary>{count(version.columns.length)} columns</summary>
        <ColumnsTable columns={version.columns} />
      </details>
    </Card>
  );
}

function Newest({ token }: { token: string }) {
  const answer = useQuery<Events>("/events", { table: token, limit: 50 }, 5000);
  return (
    <Answered answer={answer}>
      {({ items }) => (
        <Card title="Newest events" note={<a href={`/events?table=${encodeURIComponent(token)}`}>Live</a>} flush>
          {items.length > 0
            ? <EventLines events={items} />
            : <Empty title="The stream holds no event of this table">Change a row, or check whether the stream’s retention has removed older events.</Empty>}
        </Card>
      )}
    </Answered>
  );
}
