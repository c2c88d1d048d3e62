// Small marks that mean the same on every page: states, operations, positions, times.
import { useState } from "preact/hooks";
import { isUtc, local, utc, visible } from "../pure/format";
import { eventHref, tableHref, transactionHref } from "../pure/search";
import { Icon } from "./icons";

export type StateName = "running" | "waiting" | "paused" | "attention" | "failed";

const STATE_WORDS: Readonly<Record<StateName, string>> = {
  running: "running",
  waiting: "waiting",
  paused: "paused",
  attention: "attention",
  failed: "failed",
};

export function State({ is, children }: { is: StateName; children?: string | undefined }) {
  return <span class={`pill ${is}`}>{children ?? STATE_WORDS[is]}</span>;
}

const OPERATIONS: Readonly<Record<string, string>> = {
  INSERT: "I",
  // The audit trail's word.
  CREATE: "I",
  UPDATE: "U",
  DELETE: "D",
  TRUNCATE: "T",
  SCHEMA: "S",
  MESSAGE: "M",
  GAP: "G",
};

export function operationLetter(operation: string): string {
  return OPERATIONS[operation.toUpperCase()] ?? "?";
}

export function Operation({ is, word = false }: { is: string; word?: boolean }) {
  const letter = operationLetter(is);
  const name = is.toLowerCase();
  return (
    <span class={word ? "line" : undefined}>
      <span class={`op ${letter}`} role="img" aria-label={name} title={name}>
        {letter}
      </span>
      {word && <span>{name}</span>}
    </span>
  );
}

/** A position leads to its event, an LSN to its transaction. */
export function Position({ at, plain = false }: { at: string | null | undefined; plain?: boolean }) {
  if (!at) return <span class="dim">–</span>;
  if (plain) return <span class="position">{at}</span>;
  const href = at.includes("+") ? eventHref(at) : transactionHref(at);
  return (
    <a class="position" href={href}>
      {at}
    </a>
  );
}

/** The time in UTC; this browser's clock is beside it or, in narrow places, its title. */
export function When({ at, both = false }: { at: string | null | undefined; both?: boolean }) {
  if (!at) return <span class="dim">–</span>;
  return (
    <time class="when" dateTime={at} title={local(at)}>
      {utc(at)}
      {both && !isUtc(at) && <small>{local(at)}</small>}
    </time>
  );
}

export function TableName({ name, token }: { name: string; token: string }) {
  return <a href={tableHref(token)}>{visible(name)}</a>;
}

const COPIED_MS = 1500;

export function Copy({ text, label }: { text: string; label: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    window.setTimeout(() => setCopied(false), COPIED_MS);
  };
  return (
    <button type="button" class="icon-button tiny" title={label} aria-label={label} onClick={copy}>
      {copied ? <span class="copied"><Icon name="check" size={14} /></span> : <Icon name="copy" size={14} />}
    </button>
  );
}
