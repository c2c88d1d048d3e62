// The console. Pages are loaded when they are first shown; the shell and the overview come at once.
import { render, type ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import "uplot/dist/uPlot.min.css";
import "./style/tokens.css";
import "./style/base.css";
import "./style/shell.css";
import "./style/parts.css";
import { Empty, Page, ProblemBox } from "./parts/layout";
import { Shell } from "./parts/shell";
import { startKeys } from "./state/keys";
import { signedIn, startLive } from "./state/live";
import { route, startRouting } from "./state/route";
import { startTheme } from "./state/theme";

type Loaded = Promise<{ default: ComponentType }>;

const PAGES: Readonly<Record<string, () => Loaded>> = {
  "": () => import("./pages/overview"),
  tables: () => import("./pages/tables"),
  events: () => import("./pages/events"),
  tx: () => import("./pages/transaction"),
  snapshots: () => import("./pages/snapshots"),
  consumers: () => import("./pages/consumers"),
  sinks: () => import("./pages/sinks"),
  lake: () => import("./pages/lake"),
  backups: () => import("./pages/backups"),
  sql: () => import("./pages/sql"),
  gaps: () => import("./pages/gaps"),
  parked: () => import("./pages/parked"),
  audit: () => import("./pages/audit"),
  rows: () => import("./pages/rows"),
  system: () => import("./pages/system"),
};
/** Pages with more parts in their address than the first. */
const OBJECTS: Readonly<Record<string, () => Loaded>> = {
  tables: () => import("./pages/table"),
  events: () => import("./pages/event"),
  sinks: () => import("./pages/sink"),
  lake: () => import("./pages/lake"),
};

const signIn = () => import("./pages/sign-in");

function NotFound() {
  return (
    <Page title="No such page">
      <Empty title="Nothing has this address.">
        <a href="/">Go to the overview</a>, or search above.
      </Empty>
    </Page>
  );
}

function wanted(): (() => Loaded) | null {
  if (!signedIn.value) return signIn;
  const [first = "", second] = route.value.parts;
  if (second !== undefined && OBJECTS[first]) return OBJECTS[first];
  return PAGES[first] ?? null;
}

function App() {
  const load = wanted();
  const key = route.value.parts.slice(0, 2).join("/");
  const [page, setPage] = useState<{ load: unknown; Shown: ComponentType } | null>(null);
  const [failed, setFailed] = useState(false);
  useEffect(() => {
    let left = false;
    setFailed(false);
    load?.()
      .then(({ default: Shown }) => left || setPage({ load, Shown }))
      .catch(() => left || setFailed(true));
    return () => {
      left = true;
    };
  }, [load]);
  if (!load) return <Shell><NotFound /></Shell>;
  if (failed) {
    return (
      <Shell>
        <ProblemBox message="The page could not be loaded." remedy="Load it again once the console’s server answers." />
      </Shell>
    );
  }
  return <Shell>{page?.load === load && <page.Shown key={key} />}</Shell>;
}

startTheme();
startRouting();
startKeys();
startLive();
const place = document.querySelector("#app");
if (place) render(<App />, place);
