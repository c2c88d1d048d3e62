// Numbers, times and values as text. What other people wrote is shown as text only: control
// characters and marks that change the direction of writing appear as escapes.

const THIN_SPACE = "\u2009";
const MISSING = "–";
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"] as const;
// C0 and C1 controls but for tab and newline, and the marks of Unicode's bidirectional algorithm.
const UNSAFE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Digits in groups of three. */
export function count(value: number | bigint | string | null | undefined): string {
  if (value === null || value === undefined || value === "") return MISSING;
  const text = typeof value === "number" ? String(Math.round(value)) : String(value);
  const [, sign = "", digits = "", rest = ""] = /^(-?)(\d+)(.*)$/.exec(text) ?? [];
  if (!digits) return text;
  return sign.replace("-", "−") + digits.replace(/\B(?=(\d{3})+(?!\d))/g, THIN_SPACE) + rest;
}

export function rate(value: number | null | undefined): string {
  if (value === null || value === undefined) return MISSING;
  if (value === 0) return "0";
  if (value < 10) return value.toFixed(value < 1 ? 2 : 1);
  return count(value);
}

export function bytes(value: number | bigint | string | null | undefined): string {
  if (value === null || value === undefined || value === "") return MISSING;
  let left = Number(value);
  if (!Number.isFinite(left)) return MISSING;
  let unit = 0;
  while (Math.abs(left) >= 1024 && unit < BYTE_UNITS.length - 1) {
    left /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || Math.abs(left) >= 100 ? 0 : 1;
  return `${left.toFixed(digits)} ${BYTE_UNITS[unit]}`;
}

/** `3.4 ms`, `12.0 s`, `2 h 05 m`, `3 d 04 h`. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return MISSING;
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds === 0) return "0 s";
  if (seconds < 0.001) return "<1 ms";
  if (seconds < 0.9995) return `${(seconds * 1000).toFixed(seconds < 0.0995 ? 1 : 0)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  return longDuration(Math.round(seconds));
}

function longDuration(seconds: number): string {
  const two = (value: number) => String(value).padStart(2, "0");
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} m ${two(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${two(minutes % 60)} m`;
  return `${count(Math.floor(hours / 24))} d ${two(hours % 24)} h`;
}

/** `2026-01-31 12:00:34.338 UTC`; text that is no time stays as it is. */
export function utc(iso: string | null | undefined, digits = 3): string {
  if (!iso) return MISSING;
  const found = /^(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d+))?(?:Z|\+00:?00)?$/.exec(iso);
  if (!found) return iso;
  const fraction = digits > 0 ? `.${(found[3] ?? "").padEnd(digits, "0").slice(0, digits)}` : "";
  return `${found[1]} ${found[2]}${fraction} UTC`;
}

/** The clock of this browser, with its distance from UTC. */
export function local(iso: string | null | undefined): string {
  const at = iso ? new Date(iso) : null;
  if (!at || Number.isNaN(at.getTime())) return MISSING;
  const two = (value: number) => String(value).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return `${day} ${clock} ${zone(-at.getTimezoneOffset())}`;
}

/** Whether this browser's clock shows that moment as UTC does. */
export function isUtc(iso: string): boolean {
  return new Date(iso).getTimezoneOffset() === 0;
}

export function zone(minutes: number): string {
  const ahead = Math.abs(minutes);
  const two = (value: number) => String(value).padStart(2, "0");
  return `UTC${minutes < 0 ? "−" : "+"}${two(Math.floor(ahead / 60))}:${two(ahead % 60)}`;
}

/** The escape of what must not act on the page's text. */
export function visible(text: string): string {
  return text.replace(UNSAFE, (mark) => {
    const code = mark.charCodeAt(0);
    return code < 0x100
      ? `\\x${code.toString(16).padStart(2, "0")}`
      : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

export type ValueKind = "null" | "text" | "number" | "boolean" | "structure" | "unchanged";

export function valueKind(value: unknown): ValueKind {
  if (value === null || value === undefined) return "null";
  if (typeof value === "number" || typeof value === "bigint") return "number";
  if (typeof value === "boolean") return "boolean";
  if (typeof value === "object") return "structure";
  return "text";
}

/** A value on one line. A text is quoted only where it could be mistaken for something else. */
export function inline(value: unknown): string {
  if (value === null || value === undefined) return "null";
  if (typeof value === "string") return value === "" ? '""' : visible(value).replace(/\n/g, "⏎");
  return visible(JSON.stringify(value));
}

/** A value on as many lines as it needs. */
export function pretty(value: unknown): string {
  if (typeof value === "string") return value === "" ? '""' : visible(value);
  return visible(JSON.stringify(value, null, 2) ?? "null");
}

export function plural(value: number | bigint, one: string, many = `${one}s`): string {
  return `${count(value)} ${Number(value) === 1 ? one : many}`;
}
