// Where each reader stands behind the head of the log, on an axis that shows a hundred bytes and a
// terabyte at the same time: equal lengths are equal factors.

const LEAST_BYTES = 64;

/** 1 at the head, 0 at the oldest point of the axis. */
export function share(behind: number, most: number): number {
  if (behind <= 0) return 1;
  const span = Math.log2(1 + Math.max(most, LEAST_BYTES) / LEAST_BYTES);
  return Math.max(0, 1 - Math.log2(1 + behind / LEAST_BYTES) / span);
}

export interface Tick {
  readonly at: number;
  readonly bytes: number;
}

const STEPS = [0, 1024, 1024 ** 2, 1024 ** 3, 1024 ** 4, 1024 ** 5] as const;

/** The axis reaches the next step beyond the reader that is furthest behind. */
export function axisEnd(behind: readonly number[]): number {
  const most = Math.max(1024, ...behind);
  return STEPS.find((step) => step >= most) ?? most;
}

export function ticks(most: number): Tick[] {
  return STEPS.filter((step) => step <= most).map((bytes) => ({ bytes, at: share(bytes, most) }));
}
