// Services, settings, the doctor's findings, and the log of acts.
import { Fragment } from "preact";
import { useState } from "preact/hooks";
import { ActDialog } from "../parts/act-dialog";
import { Grid, type Column } from "../parts/grid";
import { TextFilter } from "../parts/form";
import { Answered, Card, Empty, Page, Tabs } from "../parts/layout";
import { State, When, type StateName } from "../parts/marks";
import { count, duration, plural, visible } from "../pure/format";
import { overview } from "../state/live";
import { useQuery } from "../state/query";
import { navigate, route, withQuery } from "../state/route";
import type { Acts, Doctor, Services, SettingsAnswer } from "../types";

export default function SystemPage() {
  const [, tab = "services"] = route.value.parts;
  const tabs = [
    ["services", "Services"], ["settings", "Settings"], ["doctor", "Doctor"], ["acts", "Acts"],
  ].map(([name = "", label = ""]) => ({ label, href: `/system/${name}`, current: tab === name }));
  return (
    <Page title="System" acts={<PauseButton />}>
      <Tabs label="Parts of the system" tabs={tabs} />
      {tab === "services" && <ServicesTab />}
      {tab === "settings" && <SettingsTab />}
      {tab === "doctor" && <DoctorTab />}
      {tab === "acts" && <ActsTab />}
    </Page>
  );
}

function PauseButton() {
  const [open, setOpen] = useState(false);
  const paused = overview.value?.paused;
  const word = paused ? "Resume publishing" : "Pause publishing";
  return (
    <>
      <button type="button" class="button" onClick={() => setOpen(true)}>{word}</button>
      {open && (
        <ActDialog
          title={word}
          button={word}
          path={paused ? "/suite/resume" : "/suite/pause"}
          onClose={() => setOpen(false)}
          onDone={() => setOpen(false)}
        />
      )}
    </>
  );
}

type Service = Services["items"][number];
const SERVICE_COLUMNS: readonly Column<Service>[] = [
  { name: "Service", kind: "name", cell: (row) => <>{row.name}{row.instances > 1 && <span class="dim"> × {row.instances}</span>}<span class="sub wide-only">{visible(row.purpose)}</span></> },
  { name: "State", cell: (row) => <State is={row.state} /> },
  { name: "Reason", kind: "wrap", cell: (row) => row.reasons.map(visible).join("; ") || <span class="dim">–</span>, room: "wide-only" },
  { name: "Running for", kind: "n", cell: (row) => duration(row.uptime_s) },
  { name: "Figures", kind: "wrap", cell: (row) => Object.entries(row.figures).map(([name, value]) => `${name} ${value}`).join(" · ") || <span class="dim">–</span>, room: "wider-only" },
];

function ServicesTab() {
  const answer = useQuery<Services>("/services", {}, 2000);
  return (
    <Answered answer={answer}>
      {({ items }) => (
        <Card title="Services" note={count(items.length)} flush>
          <Grid label="Services" columns={SERVICE_COLUMNS} rows={items} id={(row) => row.name} />
        </Card>
      )}
    </Answered>
  );
}

type Setting = SettingsAnswer["items"][number];
const SETTING_COLUMNS: readonly Column<Setting>[] = [
  { name: "Setting", kind: "name", cell: (row) => <SettingName of={row.name} />, sort: (row) => row.name },
  { name: "Value", kind: "wrap", cell: (row) => <SettingValue of={row} /> },
  { name: "Default", kind: "wrap", cell: (row) => row.default === null ? <span class="dim">–</span> : <code>{visible(row.default)}</code>, room: "wider-only" },
  { name: "Set by", cell: (row) => row.origin === "default" ? <span class="dim">default</span> : row.origin, sort: (row) => row.origin },
  { name: "Meaning", kind: "wrap", cell: (row) => <Prose of={row.text} />, room: "wide-only" },
];

/** A long name wraps after an underscore. */
function SettingName({ of: name }: { of: string }) {
  const [first = "", ...words] = name.split("_");
  return <code>{first}{words.map((word, at) => <Fragment key={at}>_<wbr />{word}</Fragment>)}</code>;
}

/** The text of a setting, in which backticks mark names. */
function Prose({ of: text }: { of: string }) {
  return <>{visible(text).split("`").map((part, at) => at % 2 === 0 ? part : <code key={at}>{part}</code>)}</>;
}

function SettingValue({ of: { secret, value } }: { of: Setting }) {
  if (secret) return <span class="dim">a secret, not shown</span>;
  if (value === null || value === "") return <span class="dim">not set</span>;
  return <code>{visible(value)}</code>;
}

function SettingsTab() {
  const answer = useQuery<SettingsAnswer>("/settings");
  const wanted = (route.value.query.get("q") ?? "").toLowerCase();
  const matches = ({ name, text }: Setting) => `${name} ${text}`.toLowerCase().includes(wanted);
  return (
    <>
      <div class="filters"><TextFilter name="q" label="Name or meaning contains" wide /></div>
      <Answered answer={answer}>
        {({ items }) => groups(items.filter(matches)).map(([group, settings]) => (
          <Card key={group} title={group} note={plural(settings.length, "setting")} flush>
            <Grid class="settings" label={group} columns={SETTING_COLUMNS} rows={settings} id={(row) => row.name} />
          </Card>
        ))}
      </Answered>
    </>
  );
}

function groups(settings: readonly Setting[]): [string, Setting[]][] {
  const found = new Map<string, Setting[]>();
  for (const setting of settings) found.set(setting.group, [...(found.get(setting.group) ?? []), setting]);
  return [...found];
}

const LEVELS: Readonly<Record<string, StateName>> = { ok: "running", warning: "attention", failed: "failed" };

function DoctorTab() {
  const answer = useQuery<Doctor>("/doctor");
  return (
    <Answered answer={answer}>
      {({ items }) => (
        <Card title="Findings" note={<button type="button" class="button" onClick={answer.again}>Check again</button>}>
          {items.length === 0 && <Empty title="Nothing to report" />}
          <ul class="findings">
            {items.map((finding) => (
              <li key={`${finding.part} ${finding.text}`}>
                <span class="level"><State is={LEVELS[finding.level] ?? "attention"}>{finding.level}</State></span>
                <div>
                  <span class="strong">{visible(finding.part)}</span> {visible(finding.text)}
                  {finding.remedy && <p class="dim">{visible(finding.remedy)}</p>}
                </div>
              </li>
            ))}
          </ul>
        </Card>
      )}
    </Answered>
  );
}

type Act = Acts["items"][number];
const RESULTS: Readonly<Record<string, StateName>> = { done: "running", begun: "waiting", refused: "attention", failed: "failed" };
const ACT_COLUMNS: readonly Column<Act>[] = [
  { name: "Time", kind: "nowrap", cell: (row) => <When at={row.at} /> },
  { name: "Who", kind: "name", cell: (row) => <>{visible(row.user ?? "nobody")}<span class="sub">{row.role ?? "no role"}, {row.address}</span></> },
  { name: "Act", kind: "name", cell: (row) => <>{row.act}<span class="sub">{visible(row.object ?? "")}</span></> },
  { name: "Result", cell: (row) => <State is={RESULTS[row.result] ?? "attention"}>{row.result}</State> },
  { name: "Reason", kind: "wrap", cell: (row) => visible(row.reason) || <span class="dim">–</span>, room: "wide-only" },
  { name: "Detail", kind: "wrap", cell: (row) => visible(row.detail), room: "wider-only" },
];

function ActsTab() {
  const cursor = route.value.query.get("cursor");
  const answer = useQuery<Acts>("/acts", { cursor }, cursor ? 0 : 5000);
  return (
    <Answered answer={answer}>
      {({ items, next }) => (
        <>
          <Card title="Acts, the newest first" flush>
            {items.length > 0
              ? <Grid label="Acts" columns={ACT_COLUMNS} rows={items} id={(row) => row.id} />
              : <Empty title="Nobody has acted yet">Acts such as a pause or a snapshot appear here, and so do requests that were refused.</Empty>}
          </Card>
          {next && <button type="button" class="button" onClick={() => navigate(withQuery({ cursor: next }))}>Older acts</button>}
        </>
      )}
    </Answered>
  );
}
