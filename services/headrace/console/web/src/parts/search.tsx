// The search box: says what the text can mean, and leads there.
import { useEffect, useRef, useState } from "preact/hooks";
import { meanings, type Meaning } from "../pure/search";
import { visible } from "../pure/format";
import { get } from "../state/api";
import { navigate, route } from "../state/route";
import type { Tables } from "../types";
import { Icon } from "./icons";

const ASKS_AFTER_MS = 120;
const KINDS: Readonly<Record<Meaning["kind"], string>> = {
  event: "event",
  transaction: "transaction",
  row: "row",
  table: "table",
  text: "search",
  page: "page",
};

export function SearchBox() {
  const [text, setText] = useState("");
  const [found, setFound] = useState<readonly Meaning[]>([]);
  const [chosen, choose] = useState(0);
  const [open, setOpen] = useState(false);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    setText("");
    setOpen(false);
  }, [route.value.path]);
  useEffect(() => {
    setFound(meanings(text, []));
    choose(0);
    const name = text.trim().split(/[\s/]/)[0] ?? "";
    if (!name) return undefined;
    const stop = new AbortController();
    const ask = async () => {
      const answer = await get<Tables>("/tables", { q: name, limit: 20 }, stop.signal).catch(() => null);
      const tables = answer?.items.map(({ token, schema, table }) => ({
        token,
        name: schema === "public" ? table : `${schema}.${table}`,
      }));
      if (tables && !stop.signal.aborted) setFound(meanings(text, tables));
    };
    const timer = window.setTimeout(ask, ASKS_AFTER_MS);
    return () => {
      window.clearTimeout(timer);
      stop.abort();
    };
  }, [text]);
  const go = (meaning: Meaning | undefined) => {
    if (!meaning) return;
    setText("");
    setOpen(false);
    input.current?.blur();
    navigate(meaning.href);
  };
  const pressed = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step !== undefined && found.length > 0) {
      event.preventDefault();
      choose((chosen + step + found.length) % found.length);
    }
    if (event.key === "Enter") go(found[chosen]);
    if (event.key === "Escape") {
      setOpen(false);
      input.current?.blur();
    }
  };
  const shown = open && found.length > 0;
  return (
    <div class="search" role="search">
      <Icon name="search" size={16} />
      <input
        ref={input}
        id="search"
        type="text"
        role="combobox"
        aria-label="Search a position, transaction, table, row or value"
        aria-expanded={shown}
        aria-controls="search-found"
        aria-autocomplete="list"
        aria-activedescendant={shown ? `found-${chosen}` : undefined}
        placeholder="Position, transaction, table, row…"
        autocomplete="off"
        spellcheck={false}
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          setOpen(true);
        }}
        onFocus={() => setOpen(true)}
        onBlur={() => setOpen(false)}
        onKeyDown={pressed}
      />
      <kbd aria-hidden="true">/</kbd>
      <ul id="search-found" role="listbox" aria-label="What the text can mean" hidden={!shown}>
        {found.map((meaning, at) => (
          <li
            key={meaning.href}
            id={`found-${at}`}
            role="option"
            aria-selected={at === chosen}
            onMouseEnter={() => choose(at)}
            onMouseDown={(event) => {
              event.preventDefault();
              go(meaning);
            }}
          >
            {visible(meaning.label)}
            <small>{KINDS[meaning.kind]}</small>
          </li>
        ))}
      </ul>
    </div>
  );
}
