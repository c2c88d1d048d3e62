// The address is the state: every page, filter and choice is in it, so that each can be shared and
// each step back undoes one.
import { signal } from "@preact/signals";

export interface Route {
  readonly path: string;
  readonly parts: readonly string[];
  readonly query: URLSearchParams;
}

function read(): Route {
  const { pathname, search } = window.location;
  const parts = pathname.split("/").filter((part) => part !== "").map(decoded);
  return { path: pathname, parts, query: new URLSearchParams(search) };
}

/** What is no valid escape is taken as it stands, so that a mistyped address still shows a page. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const route = signal<Route>(read());

export function navigate(href: string, how: { replace?: boolean } = {}): void {
  const here = window.location.pathname;
  if (how.replace) window.history.replaceState(null, "", href);
  else window.history.pushState(null, "", href);
  route.value = read();
  if (route.value.path !== here) window.scrollTo(0, 0);
}

/** The address of this page with other values in its query; an empty value is left out. */
export function withQuery(values: Record<string, string | null>): string {
  const query = new URLSearchParams(route.value.query);
  for (const [name, value] of Object.entries(values)) {
    if (value === null || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  return route.value.path + (text ? `?${text}` : "");
}

function followLink(event: MouseEvent): void {
  const link = (event.target as Element | null)?.closest("a");
  const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey;
  if (!link || !plain || event.defaultPrevented || event.altKey) return;
  const elsewhere = link.origin !== window.location.origin || link.pathname.startsWith("/api/");
  if (elsewhere || link.target || link.hasAttribute("download") || link.hash) return;
  event.preventDefault();
  navigate(link.pathname + link.search);
}

export function startRouting(): void {
  window.addEventListener("popstate", () => {
    route.value = read();
  });
  document.addEventListener("click", followLink);
}
