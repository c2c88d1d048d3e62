// Snapshots: what runs, what was taken, and how to request one.
import { useEffect, useState } from "preact/hooks";
import { ActDialog } from "../parts/act-dialog";
import { Dialog } from "../parts/dialog";
import { Field } from "../parts/form";
import { Grid, type Column } from "../parts/grid";
import { Answered, Card, Empty, Page } from "../parts/layout";
import { Position, State, When } from "../parts/marks";
import { count, plural, visible } from "../pure/format";
import { tableHref } from "../pure/search";
import { followSnapshots, snapshots as live } from "../state/live";
import { useQuery } from "../state/query";
import { navigate, route, withQuery } from "../state/route";
import type { Snapshot, Snapshots, Tables } from "../types";
import { fullName } from "./tables";

const RUNNING: readonly string[] = ["waiting", "copying"];

export default function SnapshotsPage() {
  useEffect(followSnapshots, []);
  const answer = useQuery<Snapshots>("/snapshots", {}, 5000);
  const [done, setDone] = useState("");
  const { query } = route.value;
  const token = query.get("new");
  const cancel = query.get("cancel");
  // The newer of what was asked and what was pushed.
  const pushed = live.value;
  const newer = pushed && answer.data && pushed.as_of > answer.data.as_of ? pushed : answer.data;
  const items = newer?.items ?? [];
  const cancelled = items.find(({ id }) => id === cancel);
  const close = () => navigate(withQuery({ new: null, cancel: null }));
  return (
    <Page
      title="Snapshots"
      lead="A snapshot publishes all rows of a table as of one position. The stream continues meanwhile."
      acts={<a class="button primary" href={withQuery({ new: "" }) + (route.value.query.size ? "&" : "?") + "new=*"}>Request a snapshot</a>}
    >
      {done && <p class="notice" role="status">{visible(done)}</p>}
      <Answered answer={answer}>
        {() => (
          <>
            <Card title="Running" flush>
              <Lines items={items.filter(({ phase }) => RUNNING.includes(phase))} empty="No snapshot is running">Request one to publish the rows that a table has now.</Lines>
            </Card>
            <Card title="Finished" flush>
              <Lines items={items.filter(({ phase }) => !RUNNING.includes(phase))} empty="The stream holds no finished snapshot">A snapshot stays here until the stream’s retention removes it.</Lines>
            </Card>
          </>
        )}
      </Answered>
      {token === "*" && <Choose onClose={close} />}
      {token && token !== "*" && (
        <ActDialog
          title={`Request a snapshot of ${visible(token)}`}
          button="Request the snapshot"
          path="/snapshots"
          body={{ token }}
          onClose={close}
          onDone={({ result }) => {
            setDone(result);
            close();
            answer.again();
          }}
        />
      )}
      {cancelled && (
        <ActDialog
          title={`Cancel the snapshot of ${visible(cancelled.token)}`}
          button="Cancel the snapshot"
          path={`/snapshots/${encodeURIComponent(cancelled.id)}/cancel`}
          body={{ token: cancelled.token }}
          onClose={close}
          onDone={({ result }) => {
            setDone(result);
            close();
            answer.again();
          }}
        />
      )}
    </Page>
  );
}

function Choose({ onClose }: { onClose: () => void }) {
  const answer = useQuery<Tables>("/tables", { limit: 500 });
  const [token, setToken] = useState("");
  const footer = (
    <>
      <button type="button" class="button" onClick={onClose}>Cancel</button>
      <button type="button" class="button primary" disabled={!token} onClick={() => navigate(withQuery({ new: token }))}>
        Preview
      </button>
    </>
  );
  return (
    <Dialog title="Request a snapshot" onClose={onClose} footer={footer}>
      <Answered answer={answer}>
        {({ items }) => (
          <Field label="Table">
            <select value={token} onChange={(event) => setToken(event.currentTarget.value)}>
              <option value="">Choose a table</option>
              {items.map((table) => <option key={table.token} value={table.token}>{visible(fullName(table))}</option>)}
            </select>
          </Field>
        )}
      </Answered>
    </Dialog>
  );
}

const COLUMNS: readonly Column<Snapshot>[] = [
  { name: "Table", kind: "name", cell: (row) => <a href={tableHref(row.token)}>{visible(row.token)}</a> },
  { name: "State", cell: (row) => <State is={row.state}>{row.phase}</State> },
  { name: "Rows", kind: "n", cell: (row) => <Rows of={row} /> },
  { name: "Position", kind: "nowrap", cell: (row) => <Position at={row.lsn} plain />, room: "wide-only" },
  { name: "Began", kind: "nowrap", cell: (row) => <When at={row.began} />, room: "wider-only" },
  { name: "Ended", kind: "nowrap", cell: (row) => <When at={row.ended} />, room: "wider-only" },
  { name: "Note", kind: "wrap", cell: (row) => <Note of={row} /> },
];

function Rows({ of: { rows, rows_estimated, phase } }: { of: Snapshot }) {
  const part = Number(rows_estimated) > 0 ? Math.min(1, Number(rows) / Number(rows_estimated)) : 0;
  return (
    <>
      {count(rows)}{phase === "copying" && rows_estimated && <span class="dim"> of about {count(rows_estimated)}</span>}
      {phase === "copying" && part > 0 && (
        <div class="bar" role="progressbar" aria-label="Rows copied" aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(part * 100)}>
          <i style={{ width: `${part * 100}%` }} />
        </div>
      )}
    </>
  );
}

function Note({ of: snapshot }: { of: Snapshot }) {
  if (RUNNING.includes(snapshot.phase)) return <a href={withQuery({ cancel: snapshot.id })}>Cancel</a>;
  if (snapshot.reason) return <>{visible(snapshot.reason)}</>;
  return <span class="dim">{snapshot.chunks === null ? "–" : plural(Number(snapshot.chunks), "chunk")}</span>;
}

function Lines({ items, empty, children }: { items: readonly Snapshot[]; empty: string; children: string }) {
  if (items.length === 0) return <Empty title={empty}>{children}</Empty>;
  return <Grid label="Snapshots" columns={COLUMNS} rows={items} id={(row) => row.id} />;
}
