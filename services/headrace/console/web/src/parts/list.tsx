// A list of any length with few rows in the page, under the keyboard's and the screen reader's
// control: arrows or J and K choose a row, Enter opens it.
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { scrollTo, windowOf } from "../pure/window";

interface ListProps {
  readonly label: string;
  /** Names, each with where it has room. */
  readonly columns: readonly (readonly [string, string?])[];
  readonly rows: number;
  /** How many rows were ever added at the top: what one looks at stays where it is. */
  readonly added: number;
  readonly rowHeight: number;
  readonly id: (row: number) => string;
  readonly render: (row: number) => ComponentChildren;
  readonly open: (row: number) => void;
  readonly gridClass: string;
}

export function VirtualList(props: ListProps) {
  const { label, columns, rows, added, rowHeight, id, render, open, gridClass } = props;
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ scrolled: 0, height: 600 });
  const [chosen, choose] = useState(-1);
  const seen = useRef(added);
  useEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const watch = new ResizeObserver(() => setView((old) => ({ ...old, height: element.clientHeight })));
    watch.observe(element);
    return () => watch.disconnect();
  }, []);
  useLayoutEffect(() => {
    const more = added - seen.current;
    seen.current = added;
    const element = box.current;
    if (!element || more <= 0) return;
    if (element.scrollTop > 0) element.scrollTop += more * rowHeight;
    if (chosen >= 0) choose(Math.min(rows - 1, chosen + more));
  }, [added]);
  const { first, end, height } = windowOf(rows, rowHeight, view.scrolled, view.height);
  const move = (to: number) => {
    const row = Math.min(rows - 1, Math.max(0, to));
    choose(row);
    const element = box.current;
    if (element) element.scrollTop = scrollTo(row, rowHeight, element.scrollTop, element.clientHeight);
  };
  const pressed = (event: KeyboardEvent) => {
    const page = Math.max(1, Math.floor(view.height / rowHeight) - 1);
    const moves: Readonly<Record<string, number>> = {
      ArrowDown: chosen + 1, j: chosen + 1, ArrowUp: chosen - 1, k: chosen - 1,
      PageDown: chosen + page, PageUp: chosen - page, Home: 0, End: rows - 1,
    };
    const to = moves[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (to !== undefined) {
      event.preventDefault();
      move(to);
    }
    if (event.key === "Enter" && chosen >= 0) open(chosen);
  };
  const shown = Array.from({ length: end - first }, (_, at) => first + at);
  return (
    <div role="grid" aria-label={label} aria-rowcount={rows + 1} aria-colcount={columns.length}>
      <div role="rowgroup">
        <div class={`columns ${gridClass}`} role="row" aria-rowindex={1}>
          {columns.map(([name, room]) => <span key={name} role="columnheader" class={room}>{name || <span class="hidden">Operation</span>}</span>)}
        </div>
      </div>
      <div
        class="list"
        ref={box}
        tabIndex={0}
        role="rowgroup"
        aria-label={`${label}: arrows choose, Enter opens`}
        onScroll={(event) => {
          // Read before the state is set: the event's target is gone afterwards.
          const scrolled = event.currentTarget.scrollTop;
          setView((old) => ({ ...old, scrolled }));
        }}
        onKeyDown={pressed}
      >
        <div class="rows" role="presentation" style={{ height: `${height}px` }}>
          {shown.map((row) => (
            <div
              key={id(row)}
              role="row"
              aria-rowindex={row + 2}
              aria-selected={row === chosen}
              class={row === chosen ? `${gridClass} chosen` : gridClass}
              style={{ top: `${row * rowHeight}px`, height: `${rowHeight}px` }}
              onClick={() => {
                choose(row);
                open(row);
              }}
            >
              {render(row)}
            </div>
          ))}
        </div>
      </div>
    </div>
  );
}
