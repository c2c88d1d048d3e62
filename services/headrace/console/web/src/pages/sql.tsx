// SQL over the lake: a statement, its result, and the tables that it may name.
import { useEffect, useRef, useState } from "preact/hooks";
import { ExportLinks } from "../parts/export-links";
import { Field } from "../parts/form";
import { Answered, Card, Empty, Page, ProblemBox } from "../parts/layout";
import { Position } from "../parts/marks";
import { cellText } from "../parts/value";
import { count, duration, plural, visible } from "../pure/format";
import { act, get, Problem } from "../state/api";
import { useQuery } from "../state/query";
import { navigate, route, withQuery } from "../state/route";
import type { Cell, Lake, SqlCatalog, SqlRun, SqlRunAnswer, SqlRows } from "../types";

const POLL_MS = 250;
const PAGE = 500;
const KEPT = 40;
/** In memory only: statements have values, which the browser must not keep. */
const past: string[] = [];
let draft = "";

interface Result {
  readonly run: SqlRun;
  readonly rows: readonly (readonly Cell[])[];
  readonly next: string | null;
}

function problemFrom(error: unknown): Problem {
  return error instanceof Problem ? error : new Problem(0, { detail: String(error) });
}

export default function SqlPage() {
  const catalog = useQuery<SqlCatalog>("/sql/catalog");
  return (
    <Page title="SQL" lead="Read-only queries over the lake. A statement sees all tables as of one cut.">
      <Answered answer={catalog}>{(found) => <Desk catalog={found} />}</Answered>
    </Page>
  );
}

function Desk({ catalog }: { catalog: SqlCatalog }) {
  const [text, setText] = useState(draft);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [result, setResult] = useState<Result | null>(null);
  const running = result?.run.state === "running";
  const stop = useRef<AbortController | null>(null);
  const cut = route.value.query.get("cut") ?? "";
  useEffect(() => () => stop.current?.abort(), []);
  useEffect(() => {
    draft = text;
  }, [text]);
  const follow = async (started: SqlRun, signal: AbortSignal) => {
    let run = started;
    setResult({ run, rows: [], next: null });
    while (run.state === "running" && !signal.aborted) {
      await new Promise((done) => window.setTimeout(done, POLL_MS));
      run = (await get<SqlRunAnswer>(`/sql/runs/${run.id}`, {}, signal)).run;
      setResult({ run, rows: [], next: null });
    }
    if (run.state !== "done") return;
    const { items, next } = await get<SqlRows>(`/sql/runs/${run.id}/rows`, { limit: PAGE }, signal);
    setResult({ run, rows: items, next });
  };
  const start = async () => {
    if (running || !text.trim()) return;
    stop.current?.abort();
    const mine = new AbortController();
    stop.current = mine;
    setProblem(null);
    setResult(null);
    past.splice(0, past.length, ...[text, ...past.filter((one) => one !== text)].slice(0, KEPT));
    try {
      const { run } = await act<SqlRunAnswer>("POST", "/sql/runs", cut ? { sql: text, cut } : { sql: text });
      await follow(run, mine.signal);
    } catch (error) {
      if (!mine.signal.aborted) setProblem(problemFrom(error));
    }
  };
  const cancel = async () => {
    if (!result) return;
    stop.current?.abort();
    await act("DELETE", `/sql/runs/${result.run.id}`).catch((error: unknown) => setProblem(problemFrom(error)));
    setResult({ ...result, run: { ...result.run, state: "cancelled", error: "The statement was cancelled." } });
  };
  const more = async () => {
    if (!result?.next) return;
    const { items, next } = await get<SqlRows>(`/sql/runs/${result.run.id}/rows`, { limit: PAGE, cursor: result.next });
    setResult({ ...result, rows: [...result.rows, ...items], next });
  };
  return (
    <div class="grid desk">
      <div class="stack">
        <Card>
          <div class="stack">
            <label class="field">
              <span>Statement</span>
              <textarea
                class="editor"
                rows={8}
                spellcheck={false}
                autocomplete="off"
                value={text}
                placeholder="SELECT count(*) FROM …"
                onInput={(event) => setText(event.currentTarget.value)}
                onKeyDown={(event) => {
                  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
                  event.preventDefault();
                  void start();
                }}
              />
            </label>
            <CutChoice of={cut} />
            <div class="line">
              {running
                ? <button type="button" class="button" onClick={cancel}>Cancel</button>
                : <button type="button" class="button primary" disabled={!text.trim()} onClick={start}>Run</button>}
              <span class="dim small">Ctrl+Enter runs it. At most 60 s and 10 000 rows.</span>
            </div>
          </div>
        </Card>
        {problem && <ProblemBox message={visible(problem.message)} remedy={problem.remedy} />}
        {result && <ResultCard of={result} more={more} />}
      </div>
      <div class="stack">
        <Tables of={catalog} onPick={(name) => setText((old) => (old.trim() ? `${old}${/\s$/.test(old) ? "" : " "}${name}` : `SELECT * FROM ${name} LIMIT 100`))} />
        {past.length > 0 && (
          <Card title="Earlier statements" note="of this tab">
            <ul class="stack past">
              {past.map((one) => (
                <li key={one}><button type="button" class="plain" title={one} onClick={() => setText(one)}>{visible(one.replace(/\s+/g, " ").trim())}</button></li>
              ))}
            </ul>
          </Card>
        )}
      </div>
    </div>
  );
}

function CutChoice({ of: cut }: { of: string }) {
  const answer = useQuery<Lake>("/lake");
  const cuts = answer.data?.cuts ?? [];
  const known = cut === "" || cuts.some(({ number }) => number === cut);
  return (
    <div class="filters pair">
      <Field label="As of the cut">
        <select value={cut} onChange={(event) => navigate(withQuery({ cut: event.currentTarget.value }), { replace: true })}>
          <option value="">The newest</option>
          {!known && <option value={cut}>{visible(cut)}</option>}
          {cuts.map(({ number, lsn }) => <option key={number} value={number}>{number} at {lsn}</option>)}
        </select>
      </Field>
    </div>
  );
}

const SIMPLE = /^[a-z_][a-z0-9_]*$/;

function quoted(name: string): string {
  return SIMPLE.test(name) ? name : `"${name.replaceAll('"', '""')}"`;
}

function Tables({ of: { items }, onPick }: { of: SqlCatalog; onPick: (name: string) => void }) {
  return (
    <Card title="Tables" note={count(items.length)}>
      {items.length === 0 && <p class="dim">The SQL server’s user has no right to read any table.</p>}
      <ul class="tree">
        {items.map(({ schema, table, columns }) => {
          const name = schema === "public" ? quoted(table) : `${quoted(schema)}.${quoted(table)}`;
          return (
            <li key={name}>
              <details>
                <summary>{visible(name)}</summary>
                <button type="button" class="button" onClick={() => onPick(name)}>Put into the statement</button>
                <ul>{columns.map((column) => <li key={column.name}>{visible(column.name)} <span class="dim">{visible(column.type)}</span></li>)}</ul>
              </details>
            </li>
          );
        })}
      </ul>
    </Card>
  );
}

function ResultCard({ of: { run, rows, next }, more }: { of: Result; more: () => void }) {
  if (run.state === "running") return <Card><p class="dim" role="status">Running for {duration(run.seconds)}…</p></Card>;
  if (run.state !== "done") {
    const code = run.sqlstate ? ` (${run.sqlstate})` : "";
    return <ProblemBox message={visible(`${run.error ?? "The statement failed."}${code}`)} />;
  }
  const note = <>{plural(Number(run.row_count), "row")} in {duration(run.seconds)}{run.lsn && <> at <Position at={run.lsn} plain /></>}</>;
  return (
    <>
      {run.truncated && <p class="notice">The result ends here, at the limit of {run.truncated === "rows" ? "10 000 rows" : "8 MiB"}.</p>}
      <Card title="Result" note={note} flush>
        {run.columns.length === 0
          ? <Empty title="The statement returned no row" />
          : (
            <table class="result">
              <caption class="hidden">Result</caption>
              <thead>
                <tr>{run.columns.map((column, at) => <th key={at} scope="col" class={column.number ? "n" : undefined}>{visible(column.name)}<span class="sub">{visible(column.type)}</span></th>)}</tr>
              </thead>
              <tbody>
                {rows.map((row, number) => (
                  <tr key={number}>{row.map((cell, at) => <ResultCell key={at} of={cell} number={run.columns[at]?.number ?? false} />)}</tr>
                ))}
              </tbody>
            </table>
          )}
      </Card>
      <div class="line"><ExportLinks path={`/sql/runs/${run.id}/export`} /></div>
      {next && <button type="button" class="button" onClick={more}>Show more: {count(rows.length)} of {count(run.row_count)} rows</button>}
    </>
  );
}

function ResultCell({ of: cell, number }: { of: Cell; number: boolean }) {
  if (cell.kind === "null") return <td class={number ? "n" : undefined}><span class="value null">null</span></td>;
  return <td class={number ? "n" : undefined} title={cell.size === undefined ? undefined : `The beginning of ${count(cell.size)} characters`}><span class={number ? "position" : "value"}>{cell.kind === "text" ? visible(cell.text ?? "") : cellText(cell)}</span></td>;
}
