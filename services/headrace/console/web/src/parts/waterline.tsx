// Where every reader of the log stands, on one axis: the end of PostgreSQL's log at the right, each
// reader as far to the left as it is behind.
import { bytes, duration, visible } from "../pure/format";
import { axisEnd, share, ticks } from "../pure/waterline";
import type { Waterline as Points } from "../types";
import { State } from "./marks";

const KINDS: Readonly<Record<string, string>> = {
  wal: "end of the log",
  restart: "oldest log that the slot retains",
  confirmed: "confirmed to PostgreSQL",
  publisher: "published to the stream",
  archive: "in the archive",
  lake: "last cut",
  sink: "sink",
  consumer: "consumer",
  audit: "in the audit trail",
  backup: "in the backup store",
};

export function Waterline({ of: water, current }: { of: Points; current: boolean }) {
  const behind = water.points.map((point) => Number(point.behind_bytes ?? 0));
  const most = axisEnd(behind);
  return (
    <table class="water">
      <caption class="hidden">How far each reader is behind the end of PostgreSQL’s log</caption>
      <thead>
        <tr>
          <th scope="col">Reader</th>
          <th scope="col">
            <div class="scale" aria-hidden="true">
              {ticks(most).map((tick) => (
                <span key={tick.bytes} style={{ left: `${tick.at * 100}%` }}>
                  {tick.bytes === 0 ? "0" : `−${bytes(tick.bytes).replace(".0", "")}`}
                </span>
              ))}
            </div>
            <span class="hidden">Position on the axis</span>
          </th>
          <th scope="col" class="n">Behind</th>
          <th scope="col" class="n wide-only">Position</th>
          <th scope="col" class="wider-only">State</th>
        </tr>
      </thead>
      <tbody>
        {water.points.map((point) => (
          <tr key={`${point.kind} ${point.name}`} class={current ? point.state : "paused"} title={visible(point.text)}>
            <td class="name">
              {visible(point.name)}
              <span class="sub">{KINDS[point.kind] ?? point.kind}</span>
            </td>
            <td class="axis">
              <Track at={point.behind_bytes === null ? null : share(Number(point.behind_bytes), most)} />
            </td>
            <td class="n">
              {duration(point.behind_s)}
              <span class="sub">{bytes(point.behind_bytes)}</span>
            </td>
            <td class="n wide-only position">{point.lsn ?? "–"}</td>
            <td class="wider-only">
              {current ? <State is={point.state} /> : <State is="paused">not known</State>}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Track({ at }: { at: number | null }) {
  if (at === null) return <span class="dim">not known</span>;
  return (
    <div class="track">
      <i style={{ width: `${at * 100}%` }} />
      <b style={{ left: `${Math.max(at, 0.004) * 100}%` }} />
    </div>
  );
}
