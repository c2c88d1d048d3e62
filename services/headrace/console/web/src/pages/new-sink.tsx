// A new sink: its text for the sinks' file, checked with every key. The console never writes the file.
import { useEffect, useState } from "preact/hooks";
import { Field } from "../parts/form";
import { Card, Empty, Facts, Page, ProblemBox } from "../parts/layout";
import { Copy } from "../parts/marks";
import { visible } from "../pure/format";
import { isDatabase, sinkText, type SinkFields } from "../pure/sink-text";
import { act, Problem } from "../state/api";
import type { SinkDraft } from "../types";

const EMPTY: SinkFields = { name: "", to: "", tables: "", snapshot: false, park: true };
const PAUSE_MS = 300;

interface Checked {
  readonly draft: SinkDraft | null;
  readonly problem: Problem | null;
}

/** What the console says about the text, a moment after the last key. */
function useCheck(text: string): Checked {
  const [checked, setChecked] = useState<Checked>({ draft: null, problem: null });
  useEffect(() => {
    setChecked({ draft: null, problem: null });
    if (!text) return undefined;
    let left = false;
    const check = async () => {
      try {
        const draft = await act<SinkDraft>("POST", "/sinks/drafts", { text });
        if (!left) setChecked({ draft, problem: null });
      } catch (error) {
        if (!left) setChecked({ draft: null, problem: error instanceof Problem ? error : new Problem(0, { detail: String(error) }) });
      }
    };
    const timer = window.setTimeout(() => void check(), PAUSE_MS);
    return () => {
      left = true;
      window.clearTimeout(timer);
    };
  }, [text]);
  return checked;
}

export function NewSink() {
  const [fields, setFields] = useState(EMPTY);
  const [text, setText] = useState("");
  const { draft, problem } = useCheck(text);
  const change = (more: Partial<SinkFields>) => {
    const changed = { ...fields, ...more };
    setFields(changed);
    setText(changed.name.trim() && changed.to.trim() ? sinkText(changed) : "");
  };
  const database = isDatabase(fields.to);
  return (
    <Page title="New sink" crumbs={<a href="/sinks">Sinks</a>} lead="The console checks the text of a sink, and you add it to the file. Only people who may write that file decide where values go.">
      <div class="grid two start">
        <Card title="The sink">
          <div class="stack">
            <Field label="Name" note="Lower-case letters, digits and hyphens"><input type="text" value={fields.name} autocomplete="off" spellcheck={false} onInput={(event) => change({ name: event.currentTarget.value })} /></Field>
            <Field label="Address of the target" note="Such as kafka://broker:9092, file:///srv/changes or a webhook’s address; env:NAME if it has a password"><input type="text" value={fields.to} autocomplete="off" spellcheck={false} onInput={(event) => change({ to: event.currentTarget.value })} /></Field>
            <Field label="Tables" note="Patterns, separated by commas; empty for all"><input type="text" value={fields.tables} autocomplete="off" spellcheck={false} onInput={(event) => change({ tables: event.currentTarget.value })} /></Field>
            {!database && (
              <>
                <Field label="Rows that exist already">
                  <select value={fields.snapshot ? "yes" : "no"} onChange={(event) => change({ snapshot: event.currentTarget.value === "yes" })}>
                    <option value="no">Leave out: changes from now on</option>
                    <option value="yes">Copy them first</option>
                  </select>
                </Field>
                <Field label="A record that the target refuses">
                  <select value={fields.park ? "yes" : "no"} onChange={(event) => change({ park: event.currentTarget.value === "yes" })}>
                    <option value="yes">Is parked; the others continue</option>
                    <option value="no">Stops the sink</option>
                  </select>
                </Field>
              </>
            )}
          </div>
        </Card>
        <div class="stack">
          <Card title="The text" note={text && <Copy text={text} label="Copy the text" />}>
            <div class="stack">
              <Field label="You may also write it here" wide><textarea class="editor" rows={8} value={text} spellcheck={false} onInput={(event) => setText(event.currentTarget.value)} /></Field>
              <div role="status" class="stack quiet">
                {problem && <ProblemBox message={problem.message} remedy={problem.remedy} />}
                {draft?.problem && <ProblemBox message={visible(draft.problem)} />}
                {text && !draft && !problem && <p class="dim">Checking…</p>}
                {draft && !draft.problem && <p class="strong">The text is valid. Add it to {visible(draft.file)}.</p>}
              </div>
            </div>
          </Card>
          {draft && !draft.problem ? draft.sinks.map((sink) => <Planned key={sink.name} of={sink} commands={draft.commands} />) : (
            !text && <Card title="The plan"><Empty title="Give the sink a name and an address">Its promise and its tables appear here.</Empty></Card>
          )}
        </div>
      </div>
    </Page>
  );
}

interface PlannedProps {
  readonly of: SinkDraft["sinks"][number];
  readonly commands: readonly string[];
}

function Planned({ of: sink, commands }: PlannedProps) {
  return (
    <Card title={`The plan of ${sink.name}`}>
      <Facts
        of={[
          ["Target", <code class="break">{visible(sink.to)}</code>],
          ["Promise", sink.promise ?? <span class="dim">not known</span>],
          ["Tables now", sink.tables.length > 0 ? visible(sink.tables.join(", ")) : <span class="dim">no published table matches</span>],
          ["Format", sink.format],
          ["Then run", <ol>{commands.map((command) => <li key={command} class="line tight"><code class="break">{visible(command)}</code><Copy text={command} label={`Copy ${command}`} /></li>)}</ol>],
        ]}
      />
    </Card>
  );
}
