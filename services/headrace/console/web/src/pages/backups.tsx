// Backups: what can be restored, and the command that restores a chosen moment.
import { useState } from "preact/hooks";
import { ChoiceFilter, TextFilter } from "../parts/form";
import { Grid, type Column } from "../parts/grid";
import { Answered, Card, Empty, Facts, Figures, Page, ProblemBox } from "../parts/layout";
import { Copy, Position, State, When } from "../parts/marks";
import { bytes, count, duration, local, plural, visible } from "../pure/format";
import { instantOf } from "../pure/instant";
import { useQuery } from "../state/query";
import { navigate, route, withQuery } from "../state/route";
import type { Backup, Backups, Drops, RestorePlan } from "../types";

export default function BackupsPage() {
  const answer = useQuery<Backups>("/backups", {}, 10_000);
  return (
    <Page title="Backups" lead="The physical log and base backups: any moment of the window can be restored.">
      <Answered answer={answer}>
        {(backups) => (
          <>
            {backups.stale.filter(({ part }) => part === "backups").map(({ reason }) => <p class="notice" key={reason}>The store can’t be read: {visible(reason)}</p>)}
            {backups.writer === null && <p class="notice">No wal-archiver reports, so the log is not being stored. Start <code>headrace wal-archiver</code>.</p>}
            {backups.writer?.reasons.map((reason) => <p class="notice" key={reason}>{visible(reason)}</p>)}
            {backups.holes.map((hole) => <p class="notice" key={hole.from}>The log lacks {hole.from} to {hole.to}: moments after it need a later backup.</p>)}
            <Summary of={backups} />
            <div class="grid two start">
              <Restore of={backups} />
              <Store of={backups} />
            </div>
            <Card title="Base backups" note={count(backups.items.length)} flush>
              {backups.items.length > 0
                ? <Grid label="Base backups" columns={COLUMNS} rows={backups.items} id={({ label }) => label} />
                : <Empty title="There is no backup yet">Take the first one with <code>headrace backup now</code>.</Empty>}
            </Card>
          </>
        )}
      </Answered>
    </Page>
  );
}

function Summary({ of: { writer, window, items: [newest], last_drill } }: { of: Backups }) {
  const age = (at: string | null | undefined) => (at ? duration(Math.max(0, (Date.now() - Date.parse(at)) / 1000)) : "–");
  const span = window?.to ? (Date.parse(window.to) - Date.parse(window.from)) / 1000 : null;
  return (
    <Figures
      of={[
        { name: "Can be restored", value: duration(span), note: window ? "up to the last stored moment" : "no backup can be restored" },
        { name: "Log not stored yet", value: bytes(writer?.unstored_bytes), note: writer ? duration(writer.lag_s) : "wal-archiver does not report" },
        { name: "Newest backup", value: age(newest?.at), note: newest ? `ago, ${newest.kind}` : "none yet" },
        { name: "Last drill", value: age(last_drill?.at), note: last_drill ? `ago, ${last_drill.passed ? "passed" : "failed"}` : "never: headrace restore --drill" },
      ]}
    />
  );
}

function Store({ of: { store, window, stored_bytes, writer, standbys, unfinished, timeline } }: { of: Backups }) {
  return (
    <Card title="About the store">
      <Facts
        of={[
          ["wal-archiver", writer ? <State is={writer.state} /> : <span class="dim">does not report</span>],
          ["Window from", window ? <><When at={window.from} both /> <Position at={window.from_lsn} plain /></> : "–"],
          ["Window to", window ? <><When at={window.to} both /> <Position at={window.to_lsn} plain /></> : "–"],
          ["Timeline", timeline ?? "–"],
          ["Place", <code class="break">{visible(store)}</code>],
          ["Size", bytes(stored_bytes)],
          ...standbys.map((one) => [`Standby ${visible(one.name)}`, <>{duration(one.lag_s)} behind, from {visible(one.from)}</>] as const),
          ...(unfinished.length > 0 ? [["Unfinished", unfinished.map(visible).join(", ")] as const] : []),
        ]}
      />
    </Card>
  );
}

const COLUMNS: readonly Column<Backup>[] = [
  { name: "Backup", kind: "name", cell: (row) => <>{visible(row.label)}{row.tags.length > 0 && <span class="sub">{row.tags.map(visible).join(", ")}</span>}</>, sort: (row) => row.label },
  { name: "Kind", cell: (row) => <>{row.kind}{row.parent && <span class="sub wide-only">on {visible(row.parent)}</span>}</> },
  { name: "Taken", kind: "nowrap", cell: (row) => <When at={row.at} />, sort: (row) => row.at, room: "wide-only" },
  { name: "LSN", kind: "n", cell: (row) => <Position at={row.lsn} plain />, room: "wider-only" },
  { name: "Log until", kind: "n", cell: (row) => <Position at={row.log_until} plain />, room: "wider-only" },
  { name: "Size", kind: "n", cell: (row) => bytes(row.bytes), sort: (row) => BigInt(row.bytes), room: "wider-only" },
  { name: "Stored", kind: "n", cell: (row) => bytes(row.stored), sort: (row) => BigInt(row.stored) },
  { name: "Restore", cell: (row) => row.restorable ? <span class="dim">possible</span> : <State is="attention">log missing</State>, room: "wide-only" },
];

const WHATS = [["", "The whole cluster"], ["table", "One table"]] as const;
const MOMENTS = [
  ["", "The end of the log"], ["time", "A time"], ["lsn", "An LSN"], ["before-xid", "Before a transaction"],
] as const;
const DROP = ["before-drop", "Before the table was dropped"] as const;
const VALUES: Readonly<Record<string, readonly [string, string]>> = {
  time: ["Time, UTC if it names no zone", "2026-01-31 12:00:00"],
  lsn: ["LSN", "0/16F73F0"],
  "before-xid": ["Transaction ID", "757"],
};

/** What, when and where are in the address, and the answer is a command. */
function Restore({ of: { window } }: { of: Backups }) {
  const { query } = route.value;
  const what = query.get("what") ?? "";
  const moment = query.get("moment") ?? "";
  const value = query.get("value") ?? "";
  const field = VALUES[moment];
  const instant = moment === "time" ? instantOf(value) : null;
  const ready = (!field || value !== "") && (what === "table" ? query.get("table") : query.get("to")) && !(moment === "time" && !instant);
  const asked = {
    what: what || "cluster", moment: moment || "latest", value: instant ?? value,
    table: what === "table" ? query.get("table") : null, to: what === "table" ? null : query.get("to"),
  };
  return (
    <Card title="Restore a moment">
      <div class="stack">
        <div class="filters pair" role="group" aria-label="Restore">
          <ChoiceFilter name="what" label="What" choices={WHATS} />
          {what === "table" ? <TextFilter name="table" label="Table" placeholder="orders" /> : <TextFilter name="to" label="New folder" placeholder="/srv/restored" />}
          <ChoiceFilter name="moment" label="When" wide choices={what === "table" ? [...MOMENTS, DROP] : MOMENTS} />
          {field && <TextFilter name="value" label={field[0]} placeholder={field[1]} />}
        </div>
        {moment === "time" && value && (
          <p class="dim">{instant ? <>{instant.replace("T", " ").replace("Z", " UTC")}, which is {local(instant)} here</> : "This is not a time: write 2026-01-31 12:00:00."}</p>
        )}
        {what === "table" && <Dropped />}
        {ready ? <Plan asked={asked} /> : <p class="dim">{window ? "Fill in the fields to see the plan and its command." : "There is nothing to restore yet."}</p>}
      </div>
    </Card>
  );
}

function Plan({ asked }: { asked: Readonly<Record<string, string | null>> }) {
  const answer = useQuery<RestorePlan>("/backups/plan", asked);
  return (
    <Answered answer={answer}>
      {({ command, lines, problem }) => (
        <>
          {problem
            ? <ProblemBox message={visible(problem)} remedy="Choose another moment." />
            : (
              <>
                <pre class="code" tabIndex={0} aria-label="Plan">{lines.map(visible).join("\n")}</pre>
                <p class="line tight"><code class="break strong">{visible(command)}</code><Copy text={command} label="Copy the command" /></p>
                <p class="dim">The console never restores. Run the command where there is room: it needs <code>HEADRACE_BACKUP_URL</code> and PostgreSQL’s programs there.</p>
              </>
            )}
        </>
      )}
    </Answered>
  );
}

function Dropped() {
  const [open, setOpen] = useState(false);
  const answer = useQuery<Drops>(open ? "/backups/drops" : null);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Dropped tables</summary>
      {open && (
        <Answered answer={answer}>
          {({ items }) => items.length === 0 ? <p class="dim">The stored log contains no DROP of a table whose name is known.</p> : (
            <ul class="stack">
              {items.slice(0, 20).map(({ table, xid, at }) => (
                <li key={xid + table} class="line">
                  <button type="button" class="button" onClick={() => navigate(withQuery({ table, moment: "before-drop", value: null }))}>{visible(table)}</button>
                  <span class="dim">dropped <When at={at} /> by transaction {xid}</span>
                </li>
              ))}
              {items.length > 20 && <li class="dim">and {plural(items.length - 20, "other")}</li>}
            </ul>
          )}
        </Answered>
      )}
    </details>
  );
}
