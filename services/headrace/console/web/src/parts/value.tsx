// The values of a change: before and after, what changed set apart by sign, weight and colour.
import { cellText, isWord, prettyCell } from "../pure/cells";
import { count, visible } from "../pure/format";
import type { Cell, ChangedColumn } from "../types";

export function Value({ of: cell }: { of: Cell | null }) {
  if (!cell) return <span class="value unchanged">–</span>;
  const tone = isWord(cell) ? "unchanged" : cell.kind;
  return (
    <span class={`value ${tone}`} title={hint(cell)}>
      {prettyCell(cell)}
      {cell.size !== undefined && (
        <i class="dim"> … of {count(cell.size)} characters</i>
      )}
    </span>
  );
}

function hint(cell: Cell): string | undefined {
  if (cell.kind === "hidden") return "You have no right to see the values of this table";
  if (cell.kind === "unchanged") return "A large value that did not change, which PostgreSQL does not send";
  if (cell.kind === "bytes") return "Bytes, in base64";
  return undefined;
}

interface DiffProps {
  readonly columns: readonly ChangedColumn[];
  readonly label: string;
}

export function Diff({ columns, label }: DiffProps) {
  const before = columns.some((column) => column.before !== null);
  const after = columns.some((column) => column.after !== null);
  if (columns.length === 0) return null;
  const signed = columns.some((column) => column.changed);
  return (
    <table class={signed ? "diff signed" : "diff"}>
      <caption class="hidden">{label}</caption>
      <thead>
        <tr>
          <th scope="col">Column</th>
          {before && <th scope="col">Before</th>}
          {after && <th scope="col">After</th>}
        </tr>
      </thead>
      <tbody>
        {columns.map((column) => (
          <tr key={column.name} class={column.changed ? "changed" : undefined}>
            <td class="break">
              {visible(column.name)}
              {column.key && <span class="dim small"> key</span>}
            </td>
            {before && <td class={column.changed ? "before" : undefined}><Value of={column.before} /></td>}
            {after && <td class={column.changed ? "after" : undefined}><Value of={column.after} /></td>}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** A row's key as `id 7`. */
export function keyText(key: Readonly<Record<string, string | null>> | null): string {
  if (!key) return "";
  return Object.entries(key)
    .map(([name, value]) => `${visible(name)} ${visible(value ?? "null")}`)
    .join(", ");
}

export { cellText };
