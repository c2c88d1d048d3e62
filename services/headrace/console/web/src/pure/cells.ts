// Values of columns as text: null, an empty text and a value that was not sent look different from
// one another, on one line and on many.
import type { Cell, ChangedColumn } from "../types";
import { visible } from "./format";

const WORDS: Readonly<Record<string, string>> = {
  null: "null",
  unchanged: "unchanged",
  absent: "not sent",
  redacted: "[redacted]",
  hidden: "•••",
};
const INLINE_MAX = 80;
const SUMMARY_MAX = 260;

/** Whether the cell shows a word about the value rather than the value. */
export function isWord(cell: Cell): boolean {
  return cell.kind in WORDS;
}

export function cellText(cell: Cell): string {
  const word = WORDS[cell.kind];
  if (word !== undefined) return word;
  if (cell.text === "") return '""';
  return visible(cell.text ?? "");
}

/** JSON on several lines; what is no JSON after all stays as it is. Numbers keep their digits. */
export function prettyCell(cell: Cell): string {
  if (cell.kind !== "json" || cell.size !== undefined) return cellText(cell);
  return visible(indented(cell.text ?? ""));
}

/** JSON text with line breaks and indents, its tokens untouched: no number is parsed. */
export function indented(json: string): string {
  const tokens = json.match(/"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s[\]{},:"]+/g) ?? [];
  let depth = 0;
  let text = "";
  tokens.forEach((token, at) => {
    const next = tokens[at + 1] ?? "";
    const before = tokens[at - 1] ?? "";
    const empty = (token === "[" || token === "{") && (next === "]" || next === "}");
    const closesEmpty = (token === "]" || token === "}") && (before === "[" || before === "{");
    if ((token === "]" || token === "}") && !closesEmpty) {
      depth -= 1;
      text += `\n${"  ".repeat(depth)}`;
    }
    text += token === ":" ? ": " : token;
    if ((token === "[" || token === "{") && !empty) {
      depth += 1;
      text += `\n${"  ".repeat(depth)}`;
    }
    if (token === ",") text += `\n${"  ".repeat(depth)}`;
  });
  return text;
}

export function inlineCell(cell: Cell): string {
  const text = cellText(cell).replace(/\n/g, "⏎");
  return text.length > INLINE_MAX ? `${text.slice(0, INLINE_MAX)}…` : text;
}

/** `id 7 · name Ada → Ada L.`: a change on one line, its changed columns first after the key. */
export function summary(columns: readonly ChangedColumn[]): string {
  const order = (column: ChangedColumn) => {
    if (column.key) return 0;
    return column.changed ? 1 : 2;
  };
  let text = "";
  for (const column of [...columns].sort((one, other) => order(one) - order(other))) {
    if (text) text += " · ";
    text += `${visible(column.name)} ${change(column)}`;
    if (text.length > SUMMARY_MAX) return `${text.slice(0, SUMMARY_MAX)}…`;
  }
  return text;
}

function change({ before, after, changed }: ChangedColumn): string {
  if (before && after && changed) return `${inlineCell(before)} → ${inlineCell(after)}`;
  const shown = after ?? before;
  return shown ? inlineCell(shown) : "–";
}
