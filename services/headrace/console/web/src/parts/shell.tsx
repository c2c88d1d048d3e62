// What surrounds every page: navigation, search, the banner, and what the keyboard can do.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { utc, visible } from "../pure/format";
import { GOES_TO, helpOpen } from "../state/keys";
import { link, overview, overviewAt } from "../state/live";
import { route } from "../state/route";
import { nextTheme, theme } from "../state/theme";
import type { Overview } from "../types";
import { Dialog } from "./dialog";
import { Icon, type IconName } from "./icons";
import { SearchBox } from "./search";

interface Place {
  readonly href: string;
  readonly name: string;
  readonly icon: IconName;
}

const PLACES: readonly (readonly [string, readonly Place[]])[] = [
  ["", [{ href: "/", name: "Overview", icon: "overview" }]],
  [
    "Data",
    [
      { href: "/tables", name: "Tables", icon: "tables" },
      { href: "/events", name: "Events", icon: "events" },
      { href: "/snapshots", name: "Snapshots", icon: "snapshots" },
      { href: "/gaps", name: "Gaps", icon: "gaps" },
      { href: "/parked", name: "Parked changes", icon: "parked" },
    ],
  ],
  [
    "Copies",
    [
      { href: "/sinks", name: "Sinks", icon: "sinks" },
      { href: "/lake", name: "Lake", icon: "lake" },
      { href: "/sql", name: "SQL", icon: "sql" },
      { href: "/backups", name: "Backups", icon: "backups" },
    ],
  ],
  [
    "Control",
    [
      { href: "/consumers", name: "Consumers", icon: "consumers" },
      { href: "/audit", name: "Audit", icon: "audit" },
      { href: "/system", name: "System", icon: "system" },
    ],
  ],
];
const ALL = PLACES.flatMap(([, places]) => places);
const ON_A_PHONE = ["/", "/tables", "/events", "/audit"];
/** Pages that belong to a place under another address. */
const BELONGS: Readonly<Record<string, string>> = { tx: "/events", rows: "/audit" };

function currentPlace(): string {
  const [first = ""] = route.value.parts;
  return BELONGS[first] ?? `/${first}`;
}

function PlaceLink({ place }: { place: Place }) {
  const here = currentPlace() === place.href;
  return (
    <a href={place.href} title={place.name} aria-current={here ? "page" : undefined}>
      <Icon name={place.icon} />
      <span>{place.name}</span>
    </a>
  );
}

function Rail() {
  return (
    <nav class="rail" aria-label="Pages">
      <a class="brand" href="/" title="Headrace">
        <Icon name="logo" size={24} />
        <span>Headrace</span>
      </a>
      {PLACES.map(([title, places]) => [
        title && <h2 key={title}>{title}</h2>,
        <ul key={`${title}.places`}>
          {places.map((place) => (
            <li key={place.href}>
              <PlaceLink place={place} />
            </li>
          ))}
        </ul>,
      ])}
      <p class="source">{overview.value && `Source ${overview.value.source}`}</p>
    </nav>
  );
}

function TabBar() {
  const [open, setOpen] = useState(false);
  return (
    <>
      <nav class="tabbar" aria-label="Main pages">
        {ALL.filter(({ href }) => ON_A_PHONE.includes(href)).map((place) => (
          <PlaceLink key={place.href} place={place} />
        ))}
        <button type="button" onClick={() => setOpen(true)}>
          <Icon name="menu" />
          <span>More</span>
        </button>
      </nav>
      {open && (
        <Dialog title="Pages" onClose={() => setOpen(false)}>
          <nav class="menu" aria-label="All pages" onClick={() => setOpen(false)}>
            {ALL.map((place) => (
              <PlaceLink key={place.href} place={place} />
            ))}
          </nav>
        </Dialog>
      )}
    </>
  );
}

const THEMES: Readonly<Record<string, readonly [IconName, string]>> = {
  system: ["screen", "Theme: as the system"],
  light: ["sun", "Theme: light"],
  dark: ["moon", "Theme: dark"],
};

function Top() {
  const [icon, label] = THEMES[theme.value] ?? ["screen", "Theme"];
  const { state } = link.value;
  const words = { open: "Live", opening: "Connecting", lost: "Not connected" }[state];
  return (
    <header class="top">
      <SearchBox />
      <div class="space" />
      <div class={`live ${state}`} title={words}>
        <span>{words}</span>
      </div>
      <button type="button" class="icon-button" title={label} aria-label={label} onClick={nextTheme}>
        <Icon name={icon} />
      </button>
      <button
        type="button"
        class="icon-button wide-only"
        title="Keyboard shortcuts (?)"
        aria-label="Keyboard shortcuts"
        onClick={() => {
          helpOpen.value = true;
        }}
      >
        <Icon name="help" />
      </button>
    </header>
  );
}

type Stale = Overview["stale"][number];

const PARTS: Readonly<Record<string, string>> = { nats: "NATS", postgres: "PostgreSQL" };

/** One line for all of them: they often end together. */
function silentText(silent: readonly Stale[]): string {
  const [first] = silent;
  const names = silent.map(({ part }) => part).join(", ");
  const since = silent.map((one) => one.since ?? "").sort()[0];
  const known = since ? ` What is shown of ${silent.length > 1 ? "them" : "it"} is as of ${utc(since, 0)}.` : "";
  if (silent.length > 1) return `${silent.length} services do not report any more: ${names}.${known}`;
  return `${first?.part} does not report any more.${known}`;
}

/** What is away, and since when what is shown is no longer current. */
function Banner() {
  const { state, reason } = link.value;
  const lines: string[] = [];
  if (state === "lost") {
    const known = overviewAt.value ? ` The page shows what was known at ${utc(new Date(overviewAt.value).toISOString(), 0)}.` : "";
    lines.push(`No connection: ${reason.replace(/\.$/, "")}.${known}`);
  } else {
    const { stale = [], services = [] } = overview.value ?? {};
    const isService = ({ part }: Stale) => services.some(({ name }) => name === part);
    const silent = stale.filter(isService);
    if (silent.length > 0) lines.push(silentText(silent));
    for (const { part, since, reason: why } of stale.filter((one) => !isService(one))) {
      const known = since ? ` What it says is as of ${utc(since, 0)}.` : "";
      lines.push(`${PARTS[part] ?? part} can’t be read: ${why.replace(/\.$/, "")}.${known}`);
    }
  }
  return (
    <div role="alert">
      {lines.map((line) => (
        <div class="banner" key={line.slice(0, 24)}>
          <Icon name="alert" />
          <span>{visible(line)}</span>
        </div>
      ))}
    </div>
  );
}

function Help() {
  const close = () => {
    helpOpen.value = false;
  };
  return (
    <Dialog title="Keyboard shortcuts" onClose={close}>
      <dl class="shortcuts">
        <dt><kbd>/</kbd> or <kbd>Ctrl</kbd> <kbd>K</kbd></dt><dd>Search</dd>
        <dt><kbd>?</kbd></dt><dd>This list</dd>
        <dt><kbd>J</kbd> <kbd>K</kbd></dt><dd>Next and previous row of a list</dd>
        <dt><kbd>Enter</kbd></dt><dd>Open the row</dd>
        <dt><kbd>Esc</kbd></dt><dd>Close the dialog or drawer</dd>
        <dt><kbd>P</kbd></dt><dd>Pause or continue live events</dd>
        {Object.entries(GOES_TO).map(([key, [, name]]) => [
          <dt key={key}><kbd>G</kbd> <kbd>{key.toUpperCase()}</kbd></dt>,
          <dd key={name}>{name}</dd>,
        ])}
      </dl>
    </Dialog>
  );
}

export function Shell({ children }: { children: ComponentChildren }) {
  return (
    <div class="shell">
      <a class="skip" href="#main" onClick={(event) => {
        event.preventDefault();
        document.querySelector<HTMLElement>("#main")?.focus();
      }}>
        Skip to the content
      </a>
      <Rail />
      <div class="frame">
        <Top />
        <Banner />
        <main id="main" tabIndex={-1}>{children}</main>
      </div>
      <TabBar />
      {helpOpen.value && <Help />}
    </div>
  );
}
