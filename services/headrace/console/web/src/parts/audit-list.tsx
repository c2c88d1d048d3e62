// Transactions of the audit trail with what each changed.
import { indented } from "../pure/cells";
import { plural, visible } from "../pure/format";
import { addressed } from "../pure/position";
import { tableHref } from "../pure/search";
import { withQuery } from "../state/route";
import type { AuditChange, AuditTransaction } from "../types";
import { keyHref } from "./event-facts";
import { Operation, Position, When } from "./marks";
import { Diff, keyText } from "./value";

export function AuditList({ items }: { items: readonly AuditTransaction[] }) {
  return <>{items.map((transaction) => <TransactionCard key={transaction.lsn} of={transaction} />)}</>;
}

/** Who did it, in words: the context's texts, or that there is none. */
export function who(context: string | null): string {
  if (!context) return "no context was given";
  try {
    const entries = Object.entries(JSON.parse(context) as Record<string, unknown>);
    return entries.map(([name, value]) => `${name} ${typeof value === "string" ? value : JSON.stringify(value)}`).join(" · ");
  } catch {
    return context;
  }
}

function TransactionCard({ of: { lsn, xid, at, context, changes } }: { of: AuditTransaction }) {
  return (
    <section class="card" aria-label={`Transaction ${lsn}`}>
      <header>
        <h2 class="line"><Position at={lsn} /> <When at={at} /></h2>
        <span class={context ? "break" : "dim"}>{visible(who(context))}</span>
        <div class="note line">
          <span>{plural(changes.length, "change")}{xid && `, ID ${xid}`}</span>
          <a href={withQuery({ revert: addressed(lsn) })}>Preview its revert</a>
        </div>
      </header>
      <ul class="troubles">
        {changes.map((change) => <ChangeLine key={change.position + change.operation} of={change} />)}
      </ul>
      {context && context.length > 120 && (
        <details class="body"><summary>Context</summary><pre class="code">{visible(indented(context))}</pre></details>
      )}
    </section>
  );
}

function ChangeLine({ of: change }: { of: AuditChange }) {
  const { schema, table, token, key, position, operation } = change;
  const name = schema === "public" ? table : `${schema}.${table}`;
  const changed = change.columns.filter((column) => column.changed !== false);
  const shown = changed.length > 0 ? changed : change.columns;
  return (
    <li>
      <Operation is={operation} />
      <div class="stack">
        <p class="line">
          <a href={tableHref(token)}>{visible(name)}</a>
          {key && Object.keys(key).length > 0 && <a href={keyHref(token, key)}>{keyText(key)}</a>}
          <Position at={position} />
        </p>
        <Diff columns={shown} label={`Changed columns of ${name}`} />
      </div>
    </li>
  );
}
