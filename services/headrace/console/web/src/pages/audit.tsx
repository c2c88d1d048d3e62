// Who changed what: the audit trail, by transaction.
import { AuditList } from "../parts/audit-list";
import { ExportLinks } from "../parts/export-links";
import { ChoiceFilter, ClearFilters, TextFilter } from "../parts/form";
import { Answered, Card, Empty, Page } from "../parts/layout";
import { RevertDialog } from "../parts/revert-dialog";
import { fromAddress } from "../pure/position";
import { useQuery } from "../state/query";
import { navigate, route, withQuery } from "../state/route";
import type { AuditTransactions } from "../types";

const FILTERS = ["table", "op", "key", "context", "from", "to"] as const;
const OPERATIONS = [["", "All"], ["INSERT", "Inserts"], ["UPDATE", "Updates"], ["DELETE", "Deletes"], ["TRUNCATE", "Truncates"]] as const;

export default function AuditPage() {
  const { query } = route.value;
  const asked = Object.fromEntries([...FILTERS, "cursor"].map((name) => [name, query.get(name)]));
  const answer = useQuery<AuditTransactions>("/audit/transactions", { ...asked, limit: 50 }, query.has("cursor") ? 0 : 5000);
  const revert = query.get("revert");
  const filtered = FILTERS.some((name) => query.has(name));
  return (
    <Page
      title="Audit"
      lead="Every change of the trail, grouped by transaction, with the context that the application gave."
      acts={<ExportLinks path="/audit/export" query={asked} />}
    >
      <div class="filters" role="search" aria-label="Filter of changes">
        <TextFilter name="table" label="Table" />
        <ChoiceFilter name="op" label="Operation" choices={OPERATIONS} />
        <TextFilter name="key" label="Key" placeholder="7" />
        <TextFilter name="context" label="Context contains" placeholder='{"user": "ada"}' />
        <TextFilter name="from" label="From, UTC or position" placeholder="2026-01-31T12:00Z" />
        <TextFilter name="to" label="To" />
        <ClearFilters names={FILTERS} />
      </div>
      <Answered answer={answer}>
        {({ items, next }) => (
          <>
            {items.length > 0 ? <AuditList items={items} /> : (
              <Card>
                {filtered
                  ? <Empty title="No change of the trail matches the filter">Clear a field of the filter to see more.</Empty>
                  : <Empty title="The trail is empty">The audit-writer writes every change here. Change a row to see the first.</Empty>}
              </Card>
            )}
            {next && <a class="button" href={withQuery({ cursor: next })}>Older transactions</a>}
          </>
        )}
      </Answered>
      {revert && <RevertDialog of={fromAddress(revert)} onClose={() => navigate(withQuery({ revert: null }))} />}
    </Page>
  );
}
