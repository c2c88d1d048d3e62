// Light or dark: the system's choice until a person chooses another.
import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";

const KEY = "headrace.theme";
const THEMES: readonly Theme[] = ["system", "light", "dark"];
const system = window.matchMedia("(prefers-color-scheme: dark)");
const systemDark = signal(system.matches);

export const theme = signal<Theme>(remembered());
export const dark = signal(false);

function remembered(): Theme {
  const stored = window.localStorage.getItem(KEY) as Theme | null;
  return stored && THEMES.includes(stored) ? stored : "system";
}

export function nextTheme(): void {
  const at = THEMES.indexOf(theme.value);
  theme.value = THEMES[(at + 1) % THEMES.length] ?? "system";
}

export function startTheme(): void {
  system.addEventListener("change", () => {
    systemDark.value = system.matches;
  });
  effect(() => {
    dark.value = theme.value === "system" ? systemDark.value : theme.value === "dark";
    document.documentElement.dataset["theme"] = dark.value ? "dark" : "light";
    if (theme.value === "system") window.localStorage.removeItem(KEY);
    else window.localStorage.setItem(KEY, theme.value);
  });
}
