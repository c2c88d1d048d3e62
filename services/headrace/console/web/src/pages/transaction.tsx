// All changes of one commit.
import { EventLines } from "../parts/event-lines";
import { Answered, Card, Empty, Figures, Page } from "../parts/layout";
import { Copy, Position, When } from "../parts/marks";
import { count, visible } from "../pure/format";
import { indented } from "../pure/cells";
import { addressed, fromAddress } from "../pure/position";
import { tableHref } from "../pure/search";
import { useQuery } from "../state/query";
import { navigate, route, withQuery } from "../state/route";
import type { Transaction } from "../types";

export default function TransactionPage() {
  const [, part = ""] = route.value.parts;
  const lsn = fromAddress(part);
  const cursor = route.value.query.get("cursor");
  const answer = useQuery<Transaction>(`/transactions/${addressed(lsn)}`, { cursor, limit: 200 });
  return (
    <Page
      title="Transaction"
      crumbs={<a href="/events">Events</a>}
      lead={<span class="line"><Position at={lsn} plain /><Copy text={lsn} label="Copy the LSN" /></span>}
      acts={<a class="button" href={`/audit?revert=${addressed(lsn)}`}>Preview its revert</a>}
    >
      <Answered answer={answer}>
        {(transaction) => (
          <>
            <Summary of={transaction} />
            {transaction.context && (
              <Card title="Context of the application">
                <pre class="code">{visible(indented(transaction.context))}</pre>
              </Card>
            )}
            <Card title="Changes in order" note={!transaction.complete && "More follow"} flush>
              {transaction.items.length > 0
                ? <EventLines events={transaction.items} withTime={false} />
                : <Empty title="The stream holds no change of this transaction">Retention may have removed it; the audit trail may still have it.</Empty>}
            </Card>
            {transaction.next && (
              <button type="button" class="button" onClick={() => navigate(withQuery({ cursor: transaction.next }))}>
                Next changes
              </button>
            )}
          </>
        )}
      </Answered>
    </Page>
  );
}

function Summary({ of: transaction }: { of: Transaction }) {
  const tables = Object.entries(transaction.tables);
  const changes = tables.reduce((sum, [, number]) => sum + BigInt(number), 0n);
  return (
    <>
      <Figures
        of={[
          { name: "Changes read", value: count(changes), note: transaction.complete ? "all of the transaction" : "there are more" },
          { name: "Tables", value: count(tables.length) },
          { name: "Transaction ID", value: transaction.xid ?? "–" },
        ]}
      />
      <p class="line"><span class="dim">Committed</span> <When at={transaction.at} both /></p>
      <p class="line">
        {tables.map(([token, number]) => (
          <a key={token} class="button" href={tableHref(token)}>{visible(token)} <span class="dim">{count(number)}</span></a>
        ))}
      </p>
    </>
  );
}
