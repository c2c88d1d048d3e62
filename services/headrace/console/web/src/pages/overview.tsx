// The suite's health in a sentence, the waterline, and the last quarter of an hour.
import { useEffect, useState } from "preact/hooks";
import { Chart } from "../parts/chart";
import { Icon } from "../parts/icons";
import { Card, Empty, Figures, Page } from "../parts/layout";
import { State } from "../parts/marks";
import { Waterline } from "../parts/waterline";
import { bytes, count, duration, rate, utc, visible } from "../pure/format";
import { get } from "../state/api";
import { current, overview, overviewAt } from "../state/live";
import type { History, Overview } from "../types";

const EVERY_MS = 2000;
const SAMPLES_MAX = 450;

export default function OverviewPage() {
  const shown = overview.value;
  if (!shown) {
    return (
      <Page title="Overview">
        <div class="loading">Waiting for the first figures…</div>
      </Page>
    );
  }
  return (
    <Page title="Overview">
      <Verdict of={shown} />
      <FigureRow of={shown} />
      <Card title="Waterline" note="How far each reader is behind the end of PostgreSQL’s log, on a logarithmic axis" flush>
        {shown.waterline.points.length > 0
          ? <Waterline of={shown.waterline} current={current.value} />
          : <Empty title="No reader of the log is known yet">Start the services with <code>headrace up</code>.</Empty>}
      </Card>
      <Charts />
      <Services of={shown} />
    </Page>
  );
}

function Verdict({ of: { health, paused } }: { of: Overview }) {
  const known = current.value;
  const tone = known ? health.state : "unknown";
  const icon = tone === "running" ? "done" : "alert";
  // The sentence says all of a lone finding but its remedy.
  const only = known && health.troubles.length === 1 ? health.troubles[0] : undefined;
  return (
    <section class="card" aria-label="Health">
      <div class="body">
        <div class={`verdict ${tone}`}>
          <Icon name={known ? icon : "unknown"} size={24} />
          <div>
            <p>{known ? visible(health.sentence) : "The state is not known now."}</p>
            {!known && <p>At {utc(new Date(overviewAt.value).toISOString(), 0)}: {visible(health.sentence)}</p>}
            {only && <p>{visible(only.remedy)}</p>}
            {paused && <p>Paused by {visible(paused.by)} since {utc(paused.at, 0)}: {visible(paused.reason) || "no reason given"}.</p>}
          </div>
          {only?.link && <a href={only.link}>{visible(only.part)}</a>}
        </div>
      </div>
      {health.troubles.length > 0 && !only && (
        <ul class="troubles">
          {health.troubles.map((trouble) => (
            <li key={`${trouble.part} ${trouble.text}`}>
              <State is={trouble.state} />
              <div>
                {visible(trouble.text)} <span class="dim">{visible(trouble.remedy)}</span>
              </div>
              {trouble.link && <a href={trouble.link}>{visible(trouble.part)}</a>}
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

function FigureRow({ of: { rate: flow, lag, room, totals } }: { of: Overview }) {
  return (
    <Figures
      of={[
        { name: "Events per second", value: rate(flow.events_per_s), note: flow.bytes_per_s === null ? null : `${bytes(flow.bytes_per_s)} per second` },
        { name: "Behind the log’s end", value: duration(lag.seconds), note: bytes(lag.bytes) },
        room
          ? { name: "Least time before a loss", value: duration(room.seconds), note: visible(room.consumer) }
          : { name: "Least time before a loss", value: "–", note: "nobody is losing events" },
        { name: "Events", value: count(totals.events), note: totals.transactions === null ? null : `${count(totals.transactions)} transactions` },
        { name: "Tables", value: count(totals.tables) },
      ]}
    />
  );
}

const NO_HISTORY: Pick<History, "at" | "events_per_s" | "lag_s" | "lag_bytes" | "retained_bytes"> = {
  at: [], events_per_s: [], lag_s: [], lag_bytes: [], retained_bytes: [],
};

/** Only new samples are asked for. */
function useHistory() {
  const [held, hold] = useState(NO_HISTORY);
  useEffect(() => {
    const stop = new AbortController();
    let known = NO_HISTORY;
    const ask = async () => {
      const answer = await get<History>("/history", { after: known.at.at(-1) ?? null }, stop.signal).catch(() => null);
      if (!answer || stop.signal.aborted || answer.at.length === 0) return;
      const joined = <T,>(old: readonly T[], more: readonly T[]) => [...old, ...more].slice(-SAMPLES_MAX);
      known = {
        at: joined(known.at, answer.at),
        events_per_s: joined(known.events_per_s, answer.events_per_s),
        lag_s: joined(known.lag_s, answer.lag_s),
        lag_bytes: joined(known.lag_bytes, answer.lag_bytes),
        retained_bytes: joined(known.retained_bytes, answer.retained_bytes),
      };
      hold(known);
    };
    void ask();
    const timer = window.setInterval(() => !document.hidden && ask(), EVERY_MS);
    return () => {
      stop.abort();
      window.clearInterval(timer);
    };
  }, []);
  return held;
}

function Charts() {
  const { at, events_per_s, lag_s, lag_bytes, retained_bytes } = useHistory();
  return (
    <div class="grid three">
      <Chart title="Events per second" at={at} series={[{ name: "now", values: events_per_s }]} text={rate} least={1} />
      <Chart title="Lag in time" at={at} series={[{ name: "now", values: lag_s }]} text={duration} least={0.01} />
      <Chart title="Log" at={at} series={[{ name: "behind", values: lag_bytes }, { name: "retained", values: retained_bytes }]} text={bytes} least={1024} binary />
    </div>
  );
}

function Services({ of: { services } }: { of: Overview }) {
  return (
    <Card title="Services" note={<a href="/system">Details</a>} flush>
      <table>
        <caption class="hidden">Services</caption>
        <thead>
          <tr>
            <th scope="col">Service</th>
            <th scope="col">State</th>
            <th scope="col" class="wide-only">Reason</th>
            <th scope="col" class="n">Running for</th>
          </tr>
        </thead>
        <tbody>
          {services.map((service) => (
            <tr key={service.name}>
              <td class="name">{visible(service.name)}{service.instances > 1 && <span class="dim"> × {service.instances}</span>}</td>
              <td><State is={current.value ? service.state : "paused"}>{current.value ? undefined : "not known"}</State></td>
              <td class="wrap wide-only">{service.reasons.map(visible).join("; ") || <span class="dim">–</span>}</td>
              <td class="n">{duration(service.uptime_s)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Card>
  );
}
