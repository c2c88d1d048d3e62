// Every act is previewed first: the plan that is confirmed is the one that is carried out, or none.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { act, Problem } from "../state/api";
import type { ApiPath, Done, Plan } from "../types";
import { utc, visible } from "../pure/format";
import { Dialog } from "./dialog";
import { Field } from "./form";
import { Facts, ProblemBox } from "./layout";
import { Copy } from "./marks";

interface ActDialogProps {
  readonly title: string;
  readonly button: string;
  readonly path: ApiPath;
  readonly body?: Readonly<Record<string, unknown>>;
  readonly children?: ComponentChildren;
  /** Why there can be no plan yet. */
  readonly waiting?: string;
  /** The act can't be undone. */
  readonly danger?: boolean;
  readonly onClose: () => void;
  readonly onDone: (done: Done) => void;
}

const PAUSE_MS = 300;

function problemFrom(error: unknown): Problem {
  return error instanceof Problem ? error : new Problem(0, { detail: String(error) });
}

export function ActDialog({ title, button, path, body = {}, children, waiting = "", danger = false, onClose, onDone }: ActDialogProps) {
  const [plan, setPlan] = useState<Plan | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [reason, setReason] = useState("");
  const [acting, setActing] = useState(false);
  const asked = JSON.stringify(body);
  const preview = async (left: () => boolean = () => false) => {
    try {
      const found = await act<Plan>("POST", path, { ...body, dry_run: true });
      if (left()) return;
      setPlan(found);
      setProblem(null);
    } catch (error) {
      if (!left()) setProblem(problemFrom(error));
    }
  };
  const first = useRef(true);
  useEffect(() => {
    setPlan(null);
    setProblem(null);
    if (waiting) return undefined;
    let left = false;
    // A moment after the last key; the plan of an earlier text never replaces that of a later one.
    const timer = window.setTimeout(() => void preview(() => left), first.current ? 0 : PAUSE_MS);
    first.current = false;
    return () => {
      left = true;
      window.clearTimeout(timer);
    };
  }, [path, asked, waiting]);
  const confirm = async () => {
    if (!plan) return;
    setActing(true);
    try {
      const given = reason.trim() ? { reason: reason.trim() } : {};
      onDone(await act<Done>("POST", path, { ...body, ...given, plan: plan.plan }));
    } catch (error) {
      setProblem(problemFrom(error));
    } finally {
      setActing(false);
    }
  };
  const stale = problem?.status === 409;
  const footer = (
    <>
      <button type="button" class="button" onClick={onClose}>Cancel</button>
      {stale
        ? <button type="button" class="button primary" onClick={() => void preview()}>Preview again</button>
        : <button type="button" class={danger ? "button danger" : "button primary"} disabled={!plan || acting} onClick={confirm}>{button}</button>}
    </>
  );
  return (
    <Dialog title={title} onClose={onClose} footer={footer}>
      {children}
      {problem && <ProblemBox message={problem.message} remedy={problem.remedy} />}
      {waiting && <p class="dim" role="status">{waiting}</p>}
      {!plan && !problem && !waiting && <p class="dim" role="status">Making the plan…</p>}
      {plan && <PlanText of={plan} />}
      <Field label="Reason, for the log of acts" note="Optional">
        <input type="text" maxLength={200} value={reason} onInput={(event) => setReason(event.currentTarget.value)} />
      </Field>
    </Dialog>
  );
}

function PlanText({ of: plan }: { of: Plan }) {
  return (
    <>
      <p class="strong">{visible(plan.summary)}</p>
      {plan.steps.length > 0 && <ol>{plan.steps.map((step, at) => <li key={step}>{at + 1}. {visible(step)}</li>)}</ol>}
      <Facts
        of={[
          ...Object.entries(plan.facts ?? {}).map(([name, value]) => [name, visible(value)] as const),
          ["As a command", <span class="line tight"><code class="break">{visible(plan.command)}</code><Copy text={plan.command} label="Copy the command" /></span>],
          ["Valid until", utc(plan.expires, 0)],
        ]}
      />
    </>
  );
}
