// The acts on one dead letter: other values for its columns, or its end.
import { useState } from "preact/hooks";
import { visible } from "../pure/format";
import type { DeadLetter, Done } from "../types";
import { ActDialog } from "./act-dialog";
import { Field } from "./form";

interface LetterActProps {
  readonly sink: string;
  readonly of: DeadLetter;
  readonly onClose: () => void;
  readonly onDone: (done: Done) => void;
}

/** Columns whose value the caller sees in full: another one can't be corrected. */
export function correctable({ event }: DeadLetter) {
  if (event.operation === "DELETE") return [];
  return event.columns.filter(({ key, after }) => !key && after && !["hidden", "redacted", "unchanged", "bytes"].includes(after.kind) && after.size === undefined);
}

export function Correct({ sink, of: letter, onClose, onDone }: LetterActProps) {
  const [values, setValues] = useState<Readonly<Record<string, string | null>>>({});
  const change = (name: string, value: string | null, before: string | null) => {
    const { [name]: _, ...others } = values;
    setValues(value === before ? others : { ...others, [name]: value });
  };
  return (
    <ActDialog
      title="Correct the dead letter"
      button="Correct"
      path={`/sinks/${encodeURIComponent(sink)}/correct`}
      body={{ id: letter.id, columns: values }}
      waiting={Object.keys(values).length === 0 ? "Change a value: the plan appears here." : ""}
      onClose={onClose}
      onDone={onDone}
    >
      {correctable(letter).map(({ name, after }) => {
        const before = after?.kind === "null" ? null : (after?.text ?? "");
        const now = name in values ? values[name] : before;
        return (
          <div class="line fields" key={name}>
            <Field label={visible(name)} wide>
              <input type="text" value={now ?? ""} placeholder={now === null ? "NULL" : ""} autocomplete="off" spellcheck={false} onInput={(event) => change(name, event.currentTarget.value, before)} />
            </Field>
            <label class="check"><input type="checkbox" checked={now === null} aria-label={`${visible(name)} is NULL`} onChange={(event) => change(name, event.currentTarget.checked ? null : (before ?? ""), before)} /> NULL</label>
          </div>
        );
      })}
    </ActDialog>
  );
}

export function Drop({ sink, of: letter, onClose, onDone }: LetterActProps) {
  return <ActDialog title="Drop the dead letter" button="Drop permanently" path={`/sinks/${encodeURIComponent(sink)}/drop`} body={{ id: letter.id }} danger onClose={onClose} onDone={onDone} />;
}
