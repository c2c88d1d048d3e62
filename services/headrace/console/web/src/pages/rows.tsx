// Everything that happened to one row.
import { AuditList } from "../parts/audit-list";
import { Answered, Card, Empty, Page } from "../parts/layout";
import { RevertDialog } from "../parts/revert-dialog";
import { keyText } from "../parts/value";
import { plural, visible } from "../pure/format";
import { fromAddress } from "../pure/position";
import { tableHref } from "../pure/search";
import { useQuery } from "../state/query";
import { navigate, route, withQuery } from "../state/route";
import type { ApiPath, RowHistory, TableAnswer } from "../types";

type Key = Readonly<Record<string, string>>;

/** The key of the address: named, or values in the order of the primary key. */
function keyOf(values: string | undefined, primary: readonly string[] | null): Key | null {
  const named = route.value.query.get("key");
  try {
    if (named) return JSON.parse(named) as Key;
  } catch {
    return null;
  }
  if (values === undefined || !primary) return null;
  const parts = values.split(",");
  return Object.fromEntries(primary.map((name, at) => [name, parts[at] ?? ""]));
}

export default function RowPage() {
  const [, token = "", values] = route.value.parts;
  const table = useQuery<TableAnswer>(`/tables/${encodeURIComponent(token)}`);
  const key = keyOf(values, table.data?.table.primary_key ?? null);
  const path: ApiPath | null = key ? `/rows/${encodeURIComponent(token)}/history` : null;
  const query = { key: key && JSON.stringify(key), cursor: route.value.query.get("cursor") };
  const answer = useQuery<RowHistory>(path, query, 5000);
  const revert = route.value.query.get("revert");
  const title = key ? `Row ${keyText(key)}` : "Row";
  return (
    <Page
      title={title}
      crumbs={<><a href="/tables">Tables</a> / <a href={tableHref(token)}>{visible(token)}</a></>}
      lead="All changes of this row in the audit trail, the newest first."
      acts={key && <a class="button" href={`/events?table=${encodeURIComponent(token)}&key=${encodeURIComponent(JSON.stringify(key))}`}>Its events</a>}
    >
      {table.problem && !key && <Answered answer={table}>{() => null}</Answered>}
      {path && (
        <Answered answer={answer}>
          {({ items, next }) => (
            <>
              {items.length > 0
                ? <><p class="dim">{plural(items.length, "transaction")}</p><AuditList items={items} /></>
                : <Card><Empty title="The trail has no change of this row">It has not changed since the audit-writer started, or its key is a different one.</Empty></Card>}
              {next && <a class="button" href={withQuery({ cursor: next })}>Older</a>}
            </>
          )}
        </Answered>
      )}
      {revert && <RevertDialog of={fromAddress(revert)} onClose={() => navigate(withQuery({ revert: null }))} />}
    </Page>
  );
}
