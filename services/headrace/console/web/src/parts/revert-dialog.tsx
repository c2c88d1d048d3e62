// The SQL that undoes changes of the trail: shown, never run.
import { useEffect, useState } from "preact/hooks";
import { plural, visible } from "../pure/format";
import { act, Problem } from "../state/api";
import type { Revert } from "../types";
import { Dialog } from "./dialog";
import { ProblemBox } from "./layout";
import { Copy } from "./marks";

export function RevertDialog({ of: place, onClose }: { of: string; onClose: () => void }) {
  const [revert, setRevert] = useState<Revert | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const body = place.includes("+") ? { position: place } : { lsn: place };
  useEffect(() => {
    act<Revert>("POST", "/audit/reverts", { dry_run: true, ...body })
      .then(setRevert)
      .catch((error: unknown) => setProblem(error instanceof Problem ? error : new Problem(0, { detail: String(error) })));
  }, [place]);
  return (
    <Dialog title={`Revert of ${place}`} drawer onClose={onClose}>
      <p class="dim">The console never runs this SQL. Read it, then run it in PostgreSQL as a user with the necessary privileges.</p>
      {problem && <ProblemBox message={problem.message} remedy={problem.remedy} />}
      {!revert && !problem && <p class="loading" role="status">Reading the trail…</p>}
      {revert && (
        <>
          {[...revert.refused, ...revert.warnings].map((line) => <p class="notice" key={line}>{visible(line)}</p>)}
          <p class="line"><span>{plural(revert.statements, "statement")}</span><Copy text={revert.sql} label="Copy the SQL" /></p>
          {revert.sql && <pre class="code" tabIndex={0} aria-label="SQL">{visible(revert.sql)}</pre>}
          <p class="line"><span class="dim">As a command</span> <code class="break">{visible(revert.command)}</code><Copy text={revert.command} label="Copy the command" /></p>
        </>
      )}
    </Dialog>
  );
}
