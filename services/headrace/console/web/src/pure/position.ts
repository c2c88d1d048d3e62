// Positions in the write-ahead log, and every form in which people write them.
//
// On screen a position is `0/1D6BD80+5`, in an address `0-1D6BD80-5`: an address has no slash
// within a part. LSNs have 64 bits, which a JavaScript number can't hold: they are bigints.

const LSN_MAX = 2n ** 64n;

export interface Position {
  readonly lsn: bigint;
  readonly seq: number;
}

export function lsnText(lsn: bigint): string {
  return `${(lsn >> 32n).toString(16)}/${(lsn & 0xffffffffn).toString(16)}`.toUpperCase();
}

export function positionText({ lsn, seq }: Position): string {
  return `${lsnText(lsn)}+${seq}`;
}

/** `0/1D6BD80+5` or `0/1D6BD80`, as a part of an address. */
export function addressed(text: string): string {
  return text.replace("/", "-").replace("+", "-");
}

/** The opposite of `addressed`; what has another form stays as it is. */
export function fromAddress(part: string): string {
  const found = /^([0-9a-f]{1,8})-([0-9a-f]{1,8})(?:-(\d+))?$/i.exec(part);
  if (!found) return part;
  const lsn = `${found[1]}/${found[2]}`.toUpperCase();
  return found[3] === undefined ? lsn : `${lsn}+${found[3]}`;
}

export function parseLsn(text: string): bigint | null {
  const trimmed = text.trim();
  const halves = /^([0-9a-f]{1,8})[/-]([0-9a-f]{1,8})$/i.exec(trimmed);
  if (halves) return (BigInt(`0x${halves[1]}`) << 32n) | BigInt(`0x${halves[2]}`);
  if (!/^\d{1,20}$/.test(trimmed)) return null;
  const decimal = BigInt(trimmed);
  return decimal < LSN_MAX ? decimal : null;
}

export function parsePosition(text: string): Position | null {
  const found = /^(.+?)(?:\+|-(?=\d+$))(\d{1,10})$/.exec(text.trim());
  if (!found) return null;
  const lsn = parseLsn(found[1] ?? "");
  if (lsn === null) return null;
  return { lsn, seq: Number(found[2]) };
}

/** Bytes of log between two LSNs; negative if the second is earlier. */
export function distance(from: bigint, to: bigint): bigint {
  return to - from;
}

export function compare(one: Position, other: Position): number {
  if (one.lsn !== other.lsn) return one.lsn < other.lsn ? -1 : 1;
  return one.seq - other.seq;
}
