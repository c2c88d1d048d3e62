// One sink: its figures, its tables, the records that its target refused, and what to do about them.
import { useState } from "preact/hooks";
import { ActDialog } from "../parts/act-dialog";
import { Correct, correctable, Drop } from "../parts/letter-dialogs";
import { Dialog } from "../parts/dialog";
import { EventFacts } from "../parts/event-facts";
import { eventTable } from "../parts/event-name";
import { Field } from "../parts/form";
import { Grid, type Column } from "../parts/grid";
import { Answered, Card, Empty, Facts, Figures, Page } from "../parts/layout";
import { Operation, Position, State, TableName, When } from "../parts/marks";
import { Diff, keyText } from "../parts/value";
import { count, duration, visible } from "../pure/format";
import { useQuery } from "../state/query";
import { navigate, route, withQuery } from "../state/route";
import type { DeadLetter, SinkAnswer, SinkLine } from "../types";
import { SinkReason } from "./sinks";
import { fullName } from "./tables";

export default function SinkPage() {
  const [, name = ""] = route.value.parts;
  const { query } = route.value;
  const answer = useQuery<SinkAnswer>(`/sinks/${encodeURIComponent(name)}`, {}, 3000);
  const [done, setDone] = useState("");
  const sink = answer.data?.sink;
  const letter = answer.data?.letters.find(({ id }) => id === query.get("letter"));
  const act = query.get("act");
  const close = () => navigate(withQuery({ act: null, id: null }));
  const finished = ({ result }: { result: string }) => {
    setDone(result);
    navigate(withQuery({ act: null, id: null, letter: null }));
    answer.again();
  };
  const corrected = ({ result }: { result: string }) => {
    setDone(result);
    navigate(withQuery({ act: null }));
    answer.again();
  };
  return (
    <Page
      title={`Sink ${visible(name)}`}
      crumbs={<a href="/sinks">Sinks</a>}
      lead={sink?.to && <code class="break">{visible(sink.to)}</code>}
      acts={sink && (
        <>
          {sink.letters !== "0" && <a class="button" href={withQuery({ act: "replay" })}>Deliver all again</a>}
          <a class="button" href={withQuery({ act: "test" })}>Test the connection</a>
          <a class="button" href={withQuery({ act: "reset" })}>Reset</a>
          <a class="button primary" href={withQuery({ act: sink.paused ? "resume" : "pause" })}>{sink.paused ? "Resume" : "Pause"}</a>
        </>
      )}
    >
      {done && <p class="notice" role="status">{visible(done)}</p>}
      <Answered answer={answer}>
        {(data) => (
          <>
            <Summary of={data.sink} />
            <div class="grid side">
              <div class="stack">
                <Letters of={data} />
                <TablesCard of={data} />
              </div>
              <About of={data} />
            </div>
          </>
        )}
      </Answered>
      {letter && !act && <LetterDrawer of={letter} />}
      {sink && (act === "pause" || act === "resume") && (
        <ActDialog
          title={`${act === "pause" ? "Pause" : "Resume"} the sink ${name}`}
          button={`${act === "pause" ? "Pause" : "Resume"} the sink`}
          path={`/sinks/${encodeURIComponent(name)}/${act}`}
          onClose={close}
          onDone={finished}
        />
      )}
      {sink && act === "test" && <ActDialog title={`Test the connection of ${name}`} button="Connect" path={`/sinks/${encodeURIComponent(name)}/test`} onClose={close} onDone={finished} />}
      {letter && act === "correct" && <Correct sink={name} of={letter} onClose={close} onDone={corrected} />}
      {letter && act === "drop" && <Drop sink={name} of={letter} onClose={close} onDone={finished} />}
      {sink && act === "reset" && <Reset name={name} onClose={close} onDone={finished} />}
      {sink && act === "replay" && (
        <ActDialog
          title="Deliver dead letters again"
          button="Deliver again"
          path={`/sinks/${encodeURIComponent(name)}/replay`}
          body={query.get("id") ? { id: query.get("id") } : {}}
          onClose={close}
          onDone={finished}
        />
      )}
    </Page>
  );
}

function Summary({ of: sink }: { of: SinkLine }) {
  return (
    <Figures
      of={[
        { name: "Behind the stream", value: duration(sink.behind_s), note: sink.behind_messages === null ? "never ran" : `${count(sink.behind_messages)} messages` },
        { name: "Up to message", value: count(sink.sequence), note: <Position at={sink.position} /> },
        { name: "Records written", value: count(sink.records), note: "by the current process" },
        { name: "Dead letters", value: count(sink.letters), note: sink.replaying > 0 ? `${count(sink.replaying)} to be delivered` : null },
      ]}
    />
  );
}

function About({ of: { sink, facts } }: { of: SinkAnswer }) {
  return (
    <Card title="About the sink">
      <Facts
        of={[
          ["State", <State is={sink.state} />],
          ["Last error", <SinkReason of={sink} />],
          ...(sink.reset ? [["Reset", `to ${sink.reset}, once its process takes it`] as const] : []),
          ["Promise", sink.promise ?? <span class="dim">not known</span>],
          ...Object.entries(facts).map(([name, value]) => [name, visible(value)] as const),
        ]}
      />
    </Card>
  );
}

const LETTER_COLUMNS: readonly Column<DeadLetter>[] = [
  { name: "Operation", quiet: true, cell: ({ event }) => <Operation is={event.operation} /> },
  { name: "Record", kind: "name", cell: ({ id, event }) => <><a href={withQuery({ letter: id })}>{eventTable(event)}</a><span class="sub">{event.key ? keyText(event.key) : event.position}</span></> },
  { name: "Reason", kind: "wrap", cell: ({ reason }) => reason === null ? <Hidden /> : visible(reason) },
  { name: "Parked", kind: "nowrap", cell: ({ at }) => <When at={at} />, room: "wide-only" },
];

function Hidden() {
  return <span class="dim">hidden: it may quote values of the table</span>;
}

function Letters({ of: { letters, sink } }: { of: SinkAnswer }) {
  return (
    <Card title="Dead letters" note={count(sink.letters)} flush>
      {letters.length > 0
        ? <Grid label="Dead letters" columns={LETTER_COLUMNS} rows={letters} id={({ id }) => id} href={({ id }) => withQuery({ letter: id })} />
        : <Empty title="The target has refused nothing">A record that the target refuses waits here, if the sink has <code>on_error = "park"</code>.</Empty>}
    </Card>
  );
}

function LetterDrawer({ of: letter }: { of: DeadLetter }) {
  const footer = (
    <>
      <a class="button danger" href={withQuery({ act: "drop" })}>Drop</a>
      {correctable(letter).length > 0 && <a class="button" href={withQuery({ act: "correct" })}>Correct</a>}
      <a class="button primary" href={withQuery({ act: "replay", id: letter.id })}>Deliver again</a>
    </>
  );
  return (
    <Dialog title="Dead letter" drawer onClose={() => navigate(withQuery({ letter: null }))} footer={footer}>
      <Facts
        of={[
          ["Reason", letter.reason === null ? <Hidden /> : visible(letter.reason)],
          ["Destination", letter.destination === null ? <Hidden /> : <code class="break">{visible(letter.destination)}</code>],
          ["Parked", <When at={letter.at} both />],
          ["Record", <code class="break">{visible(letter.id)}</code>],
          ...(letter.corrected.length > 0 ? [["Corrected", visible(`${letter.corrected.join(", ")} by ${letter.corrected_by ?? "someone"}`)] as const] : []),
        ]}
      />
      <EventFacts of={letter.event} />
      <Diff columns={letter.event.columns} label="Columns before and after" />
    </Dialog>
  );
}

type SinkTable = SinkAnswer["tables"][number];
const TABLE_COLUMNS: readonly Column<SinkTable>[] = [
  { name: "Table", kind: "name", cell: (table) => <TableName name={fullName(table)} token={table.token} />, sort: fullName },
];

function TablesCard({ of: { tables } }: { of: SinkAnswer }) {
  return (
    <Card title="Tables" note={count(tables.length)} flush>
      {tables.length > 0
        ? <Grid label="Tables" columns={TABLE_COLUMNS} rows={tables} id={({ token }) => token} />
        : <Empty title="No published table matches its patterns">Compare <code>tables</code> of the sink with the <a href="/tables">published tables</a>.</Empty>}
    </Card>
  );
}

const RESETS = [
  ["snapshot", "Copy every table again"], ["start", "From the start of the stream"], ["now", "After the stream’s last event"],
] as const;

interface ResetProps {
  readonly name: string;
  readonly onClose: () => void;
  readonly onDone: (done: { result: string }) => void;
}

function Reset({ name, onClose, onDone }: ResetProps) {
  const [to, setTo] = useState<string>("snapshot");
  return (
    <ActDialog title={`Reset the sink ${name}`} button="Reset the sink" path={`/sinks/${encodeURIComponent(name)}/reset`} body={{ to }} onClose={onClose} onDone={onDone}>
      <Field label="Where it continues">
        <select value={to} onChange={(event) => setTo(event.currentTarget.value)}>
          {RESETS.map(([value, words]) => <option key={value} value={value}>{words}</option>)}
        </select>
      </Field>
    </ActDialog>
  );
}
