// The text of a new sink for headrace.toml. Only what differs from a default is written.

export interface SinkFields {
  readonly name: string;
  readonly to: string;
  /** Patterns, separated by commas. */
  readonly tables: string;
  readonly snapshot: boolean;
  readonly park: boolean;
}

const DATABASES = /^(postgres(ql)?|sqlite|duckdb|mariadb|mysql):/;

/** A copy of tables has no records to choose: these keys don't apply to it. */
export function isDatabase(to: string): boolean {
  return DATABASES.test(to.trim());
}

export function sinkText({ name, to, tables, snapshot, park }: SinkFields): string {
  const patterns = tables.split(",").map((one) => one.trim()).filter(Boolean);
  const lines = ["[[sink]]", `name = ${quoted(name.trim())}`, `to = ${quoted(to.trim())}`];
  if (patterns.length > 0) lines.push(`tables = [${patterns.map(quoted).join(", ")}]`);
  if (snapshot && !isDatabase(to)) lines.push('snapshot = "initial"');
  if (park && !isDatabase(to)) lines.push('on_error = "park"');
  return `${lines.join("\n")}\n`;
}

/** A basic string of TOML, whose escapes are those of JSON; JSON leaves DEL as it is. */
function quoted(text: string): string {
  return JSON.stringify(text).replaceAll("\u007f", "\\u007f");
}
