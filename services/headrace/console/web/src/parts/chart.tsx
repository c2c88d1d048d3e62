// A line over time. The newest value is also text: a screen reader has no use for a canvas.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { dark } from "../state/theme";
import { Card } from "./layout";

export interface Series {
  readonly name: string;
  readonly values: readonly (number | null)[];
}

interface ChartProps {
  readonly title: string;
  readonly at: readonly number[];
  readonly series: readonly Series[];
  readonly text: (value: number | null) => string;
  /** The axis is at least this high, so that silence looks like silence. */
  readonly least: number;
  /** Bytes are divided by powers of two. */
  readonly binary?: boolean;
}

const HEIGHT = 152;
const LABEL_WIDTH = 56;
const COLOURS = ["--accent", "--line-strong"] as const;

function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const POWERS = Array.from({ length: 60 }, (_, power) => 2 ** power);

function options({ series, text, least, binary }: ChartProps, width: number): uPlot.Options {
  const axis = {
    stroke: colour("--dim"),
    font: "12px system-ui, sans-serif",
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
  };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false } },
    padding: [8, 0, 0, 0],
    tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "UTC"),
    scales: { y: { range: (_plot, _low, high) => [0, Math.max((high ?? 0) * 1.1, least)] } },
    axes: [
      { ...axis, size: 26, space: 90, grid: { show: false }, values: (plot, ticks, _axis, _space, apart) => ticks.map((at) => roomFor(plot, at) ? clock(at, apart) : null) },
      { ...axis, size: 64, space: 44, ...(binary ? { incrs: POWERS } : {}), values: (_plot, ticks) => ticks.map(text) },
    ],
    series: [
      {},
      ...series.map(({ name }, at) => ({
        label: name,
        stroke: colour(COLOURS[at] ?? "--accent"),
        width: 1.5,
        ...(at === 0 ? { fill: colour("--accent-soft") } : {}),
        points: { show: series[at]?.values.length === 1 },
      })),
    ],
  };
}

/** Whether the label of a tick, which is centred below it, ends within the chart. */
function roomFor(plot: uPlot, at: number): boolean {
  return plot.valToPos(at, "x") + LABEL_WIDTH / 2 <= plot.over.clientWidth;
}

/** The time of a tick, with seconds where two would otherwise read alike. */
function clock(at: number, apart: number): string {
  return new Date(at * 1000).toISOString().slice(11, apart < 60 ? 19 : 16);
}

export function Chart(props: ChartProps) {
  const { title, at, series, text } = props;
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const newest = useRef(props);
  newest.current = props;
  const isDark = dark.value;
  const data = [at, ...series.map(({ values }) => values)] as unknown as uPlot.AlignedData;
  useEffect(() => {
    const element = place.current;
    if (!element) return undefined;
    const made = new uPlot(options(newest.current, element.clientWidth || 300), data, element);
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }));
    watch.observe(element);
    return () => {
      watch.disconnect();
      made.destroy();
    };
  }, [isDark, series.length]);
  useEffect(() => {
    plot.current?.setData(data);
  }, [at.at(-1), at.length]);
  const legend = series.map(({ name, values }, index) => (
    <span key={name}>
      <i class={index === 0 ? "series-a" : "series-b"} aria-hidden="true" />
      {name} <b>{text(values.at(-1) ?? null)}</b>
    </span>
  ));
  return (
    <Card title={title} note={<div class="legend">{legend}</div>}>
      <div class="chart" ref={place} role="img" aria-label={`${title}, the last 15 minutes`} />
    </Card>
  );
}
