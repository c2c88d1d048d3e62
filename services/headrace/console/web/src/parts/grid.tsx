// A table of rows: columns are described once, sorting is in the address.
import type { ComponentChildren } from "preact";
import { navigate, route, withQuery } from "../state/route";
import { Icon } from "./icons";

export interface Column<T> {
  readonly name: string;
  readonly cell: (row: T) => ComponentChildren;
  /** A value to sort by makes the column sortable. */
  readonly sort?: (row: T) => number | bigint | string;
  readonly kind?: "n" | "wrap" | "nowrap" | "name";
  /** Left out on narrow screens, or on all but wide ones. */
  readonly room?: "wide-only" | "wider-only";
  /** The cells explain themselves: only assistive technology needs the name. */
  readonly quiet?: boolean;
}

interface GridProps<T> {
  readonly label: string;
  readonly columns: readonly Column<T>[];
  readonly rows: readonly T[];
  readonly id: (row: T) => string;
  readonly href?: (row: T) => string | null;
  readonly class?: string;
}

function classes(...names: (string | undefined)[]): string | undefined {
  return names.filter(Boolean).join(" ") || undefined;
}

export function sorted<T>(rows: readonly T[], columns: readonly Column<T>[], wanted: string): T[] {
  const down = wanted.startsWith("-");
  const value = columns.find(({ name }) => name === wanted.replace(/^-/, ""))?.sort;
  if (!value) return [...rows];
  const direction = down ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (a === b) return 0;
    return a < b ? -direction : direction;
  });
}

export function Grid<T>({ label, columns, rows, id, href, class: named }: GridProps<T>) {
  const wanted = route.value.query.get("sort") ?? "";
  return (
    <table class={named}>
      <caption class="hidden">{label}</caption>
      <thead>
        <tr>
          {columns.map((column) => (
            <Heading key={column.name} column={column} wanted={wanted} />
          ))}
        </tr>
      </thead>
      <tbody>
        {sorted(rows, columns, wanted).map((row) => {
          const target = href?.(row) ?? null;
          return (
            <tr key={id(row)} class={target ? "link" : undefined} onClick={open(target)}>
              {columns.map((column) => (
                <td key={column.name} class={classes(column.kind, column.room)}>
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

/** The row is a larger target for the pointer; the keyboard has the link in its first cell. */
function open(target: string | null) {
  if (!target) return undefined;
  return (event: MouseEvent) => {
    const on = event.target as Element;
    if (!on.closest("a, button, input, select") && !window.getSelection()?.toString()) navigate(target);
  };
}

function Heading<T>({ column, wanted }: { column: Column<T>; wanted: string }) {
  const { name, sort, kind, room, quiet } = column;
  if (!sort) return <th scope="col" class={classes(kind, room)}>{quiet ? <span class="hidden">{name}</span> : name}</th>;
  const down = wanted === `-${name}`;
  const active = down || wanted === name;
  const next = down ? name : `-${name}`;
  const order = down ? "descending" : "ascending";
  return (
    <th scope="col" class={classes(kind, room)} aria-sort={active ? order : undefined}>
      <button type="button" onClick={() => navigate(withQuery({ sort: next }), { replace: true })}>
        {name}
        {active && <Icon name={down ? "down" : "up"} size={12} />}
      </button>
    </th>
  );
}
