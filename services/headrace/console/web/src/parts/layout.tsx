// The frame of every page: title, cards, and what is shown instead of data.
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import type { Answer } from "../state/query";
import { utc } from "../pure/format";
import { Icon } from "./icons";

interface PageProps {
  readonly title: string;
  readonly lead?: ComponentChildren;
  readonly crumbs?: ComponentChildren;
  readonly acts?: ComponentChildren;
  readonly children: ComponentChildren;
}

export function Page({ title, lead, crumbs, acts, children }: PageProps) {
  useEffect(() => {
    document.title = `${title} · Headrace`;
  }, [title]);
  return (
    <>
      <div class="head">
        <div>
          {crumbs && <nav class="crumbs" aria-label="Breadcrumbs">{crumbs}</nav>}
          <h1>{title}</h1>
          {lead && <p>{lead}</p>}
        </div>
        {acts && <div class="acts">{acts}</div>}
      </div>
      <div class="stack">{children}</div>
    </>
  );
}

interface CardProps {
  readonly title?: string;
  readonly note?: ComponentChildren;
  /** Tables reach the card's edges. */
  readonly flush?: boolean;
  readonly children: ComponentChildren;
}

export function Card({ title, note, flush = false, children }: CardProps) {
  return (
    <section class="card">
      {title && (
        <header>
          <h2>{title}</h2>
          {note && <div class="note">{note}</div>}
        </header>
      )}
      {flush
        ? <div class="flush" tabIndex={0} role="region" aria-label={title ?? "Table"}>{children}</div>
        : <div class="body">{children}</div>}
    </section>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <strong>{title}</strong>
      {children && <p>{children}</p>}
    </div>
  );
}

export function ProblemBox({ message, remedy }: { message: string; remedy?: string }) {
  return (
    <div class="problem" role="alert">
      <Icon name="alert" />
      <div>
        <p>{message}</p>
        {remedy && <p>{remedy}</p>}
      </div>
    </div>
  );
}

interface AnsweredProps<T> {
  readonly answer: Answer<T>;
  readonly children: (data: T) => ComponentChildren;
}

/** The data once it is there, above it what is wrong with its newness. */
export function Answered<T>({ answer, children }: AnsweredProps<T>) {
  const { data, problem, at } = answer;
  if (data === null && problem === null) return <div class="loading">Loading…</div>;
  if (data === null && problem?.status === 404) {
    return (
      <Card>
        <Empty title={problem.message}>{problem.remedy}</Empty>
      </Card>
    );
  }
  return (
    <>
      {problem && <ProblemBox message={problem.message} remedy={problem.remedy} />}
      {problem && data !== null && (
        <p class="notice">What follows is as of {utc(new Date(at).toISOString(), 0)}.</p>
      )}
      {data !== null && children(data)}
    </>
  );
}

export interface TabLink {
  readonly label: string;
  readonly href: string;
  readonly current: boolean;
}

export function Tabs({ label, tabs }: { label: string; tabs: readonly TabLink[] }) {
  return (
    <nav class="tabs" aria-label={label}>
      {tabs.map((tab) => (
        <a key={tab.href} href={tab.href} aria-current={tab.current ? "page" : undefined}>
          {tab.label}
        </a>
      ))}
    </nav>
  );
}

export function Facts({ of: facts }: { of: readonly (readonly [string, ComponentChildren])[] }) {
  return (
    <dl class="facts">
      {facts.map(([name, value]) => [<dt key={`${name}.t`}>{name}</dt>, <dd key={name}>{value}</dd>])}
    </dl>
  );
}

export interface FigureOf {
  readonly name: string;
  readonly value: ComponentChildren;
  readonly note?: ComponentChildren;
}

export function Figures({ of: figures }: { of: readonly FigureOf[] }) {
  return (
    <dl class="figures">
      {figures.map(({ name, value, note }) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>
            {value}
            <small>{note ?? "\u00a0"}</small>
          </dd>
        </div>
      ))}
    </dl>
  );
}
