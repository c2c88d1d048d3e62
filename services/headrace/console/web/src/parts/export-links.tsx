// The list of a page as a file, for those who may export. The server decides what is in it.
import { address, type Query } from "../state/api";
import { useQuery } from "../state/query";
import type { ApiPath, Me } from "../types";

const LISTS = [["csv", "Export CSV"], ["ndjson", "Export NDJSON"]] as const;
const TRACE = [[null, "Export JSON"]] as const;

export function ExportLinks({ path, query = {}, trace = false }: { path: ApiPath; query?: Query; trace?: boolean }) {
  const me = useQuery<Me>("/me");
  if (!me.data || me.data.export.length === 0) return null;
  return (
    <>
      {(trace ? TRACE : LISTS).map(([format, words]) => <a key={format} class="button" download href={address(path, { ...query, format })}>{words}</a>)}
    </>
  );
}
