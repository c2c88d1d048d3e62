// Shortcuts: single keys outside of fields, and "g" followed by the page's letter.
import { signal } from "@preact/signals";
import { navigate } from "./route";

export const helpOpen = signal(false);

export const GOES_TO: Readonly<Record<string, readonly [string, string]>> = {
  o: ["/", "Overview"],
  t: ["/tables", "Tables"],
  e: ["/events", "Events"],
  s: ["/snapshots", "Snapshots"],
  k: ["/sinks", "Sinks"],
  l: ["/lake", "Lake"],
  b: ["/backups", "Backups"],
  q: ["/sql", "SQL"],
  c: ["/consumers", "Consumers"],
  a: ["/audit", "Audit"],
  y: ["/system", "System"],
};
const SECOND_KEY_MS = 1200;

const own = new Map<string, () => void>();
let goPressedAt = -Infinity;

/** A page's own key, for as long as the page is shown. */
export function onKey(key: string, act: () => void): () => void {
  own.set(key, act);
  return () => {
    if (own.get(key) === act) own.delete(key);
  };
}

function writing(target: EventTarget | null): boolean {
  const element = target as HTMLElement | null;
  return !!element?.closest("input, textarea, select, [contenteditable]");
}

function pressed(event: KeyboardEvent): void {
  const search = event.key === "k" && (event.metaKey || event.ctrlKey);
  if (search || (event.key === "/" && !writing(event.target))) {
    event.preventDefault();
    document.querySelector<HTMLInputElement>("#search")?.focus();
    return;
  }
  const modified = event.metaKey || event.ctrlKey || event.altKey;
  if (modified || writing(event.target) || document.querySelector("dialog[open]")) return;
  const goes = GOES_TO[event.key];
  if (goes && event.timeStamp - goPressedAt < SECOND_KEY_MS) {
    goPressedAt = -Infinity;
    event.preventDefault();
    navigate(goes[0]);
    return;
  }
  goPressedAt = event.key === "g" ? event.timeStamp : -Infinity;
  if (event.key === "?") helpOpen.value = true;
  own.get(event.key)?.();
}

export function startKeys(): void {
  document.addEventListener("keydown", pressed);
}
