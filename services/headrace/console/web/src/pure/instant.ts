// A moment that someone typed, as one instant: a text without a zone is UTC, never this browser's
// clock, where an hour of daylight saving would be two moments.
const FORM = /^(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?)\s*(Z|UTC|[+-]\d{2}(?::?\d{2})?)?)?$/i;

/** ISO 8601 in UTC with what was typed of a second, or null. */
export function instantOf(text: string): string | null {
  const [, day, time = "00:00", given = "Z"] = FORM.exec(text.trim()) ?? [];
  if (!day) return null;
  const zone = /^(z|utc)$/i.test(given) ? "Z" : given.replace(/^([+-]\d{2}):?(\d{2})?$/, (_, hours: string, minutes: string | undefined) => `${hours}:${minutes ?? "00"}`);
  const [clock = "", fraction = ""] = time.split(".");
  const whole = Date.parse(`${day}T${clock.length === 5 ? `${clock}:00` : clock}${zone}`);
  if (Number.isNaN(whole)) return null;
  const shown = new Date(whole).toISOString();
  // A day that the month lacks would otherwise be one of the next month.
  if (zone === "Z" && !shown.startsWith(day)) return null;
  return shown.replace(/\.000Z$/, fraction ? `.${fraction}Z` : "Z");
}
