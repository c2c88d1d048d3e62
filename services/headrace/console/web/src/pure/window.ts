// Which rows of a long list are in the page: rows of one height, so no row is ever measured.

export interface Window {
  readonly first: number;
  readonly end: number;
  readonly top: number;
  readonly height: number;
}

const BEYOND = 8;
// Browsers lose precision in taller boxes.
export const HEIGHT_MAX = 15_000_000;

export function windowOf(
  rows: number,
  rowHeight: number,
  scrolled: number,
  viewport: number,
): Window {
  const height = Math.min(rows * rowHeight, HEIGHT_MAX);
  const visible = Math.ceil(viewport / rowHeight) + 1;
  const last = Math.max(0, rows - visible + 1);
  const at = Math.min(Math.max(0, Math.floor(scrolled / rowHeight)), last);
  const first = Math.max(0, at - BEYOND);
  const end = Math.min(rows, at + visible + BEYOND);
  return { first, end, top: first * rowHeight, height };
}

/** Where to scroll so that a row is in view; where it is already, if it is. */
export function scrollTo(row: number, rowHeight: number, scrolled: number, viewport: number): number {
  const top = row * rowHeight;
  if (top < scrolled) return top;
  if (top + rowHeight > scrolled + viewport) return top + rowHeight - viewport;
  return scrolled;
}
