// The table of an event as people write it.
import { visible } from "../pure/format";
import type { Event } from "../types";

export function eventTable({ schema, table, operation }: Event): string {
  if (!table) return operation.toLowerCase();
  return visible(schema === "public" || !schema ? table : `${schema}.${table}`);
}
