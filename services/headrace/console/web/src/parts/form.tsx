// Fields. A filter writes itself into the address when it is left or Enter is pressed.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { navigate, route, withQuery } from "../state/route";

interface FieldProps {
  readonly label: string;
  readonly wide?: boolean;
  readonly note?: ComponentChildren;
  readonly children: ComponentChildren;
}

export function Field({ label, wide = false, note, children }: FieldProps) {
  return (
    <label class={wide ? "field wide" : "field"}>
      <span>{label}</span>
      {children}
      {note && <small>{note}</small>}
    </label>
  );
}

interface FilterProps {
  readonly name: string;
  readonly label: string;
  readonly wide?: boolean;
  readonly placeholder?: string;
}

export function TextFilter({ name, label, wide = false, placeholder = "" }: FilterProps) {
  const applied = route.value.query.get(name) ?? "";
  const [text, setText] = useState(applied);
  useEffect(() => setText(applied), [applied]);
  const apply = () => {
    if (text !== applied) navigate(withQuery({ [name]: text.trim(), after: null }));
  };
  return (
    <Field label={label} wide={wide}>
      <input
        type="text"
        name={name}
        value={text}
        placeholder={placeholder}
        autocomplete="off"
        spellcheck={false}
        onInput={(event) => setText(event.currentTarget.value)}
        onBlur={apply}
        onKeyDown={(event) => event.key === "Enter" && apply()}
      />
    </Field>
  );
}

interface ChoiceProps extends FilterProps {
  readonly choices: readonly (readonly [string, string])[];
}

export function ChoiceFilter({ name, label, wide = false, choices }: ChoiceProps) {
  const chosen = route.value.query.get(name) ?? "";
  const apply = (value: string) => navigate(withQuery({ [name]: value, after: null }));
  return (
    <Field label={label} wide={wide}>
      <select name={name} value={chosen} onChange={(event) => apply(event.currentTarget.value)}>
        {choices.map(([value, words]) => (
          <option key={value} value={value} selected={value === chosen}>
            {words}
          </option>
        ))}
      </select>
    </Field>
  );
}

/** A way to remove every filter, where there is one. */
export function ClearFilters({ names }: { names: readonly string[] }) {
  const { query } = route.value;
  if (!names.some((name) => query.has(name))) return null;
  const none = Object.fromEntries(names.map((name) => [name, null]));
  return (
    <a class="button" href={withQuery(none)}>
      Clear filters
    </a>
  );
}
