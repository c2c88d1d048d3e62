// The list of a page as a file, for those who may export. The server decides what is in it.
import { address, type Query } from "../state/api";
import { useQuery } from "../state/query";
import type { ApiPath, Me } from "../types";

const FORMATS = [["csv", "Export CSV"], ["ndjson", "Export NDJSON"]] as const;

export function ExportLinks({ path, query = {} }: { path: ApiPath; query?: Query }) {
  const me = useQuery<Me>("/me");
  if (!me.data || me.data.export.length === 0) return null;
  return (
    <>
      {FORMATS.map(([format, words]) => <a key={format} class="button" download href={address(path, { ...query, format })}>{words}</a>)}
    </>
  );
}
