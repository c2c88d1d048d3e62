// Requests to the console's API. Every refusal becomes a `Problem` with what to do about it.

import type { ApiPath } from "../types";

export interface ProblemBody {
  readonly title?: string;
  readonly detail?: string;
  readonly remedy?: string;
  readonly runbook?: string;
}

export class Problem extends Error {
  readonly remedy: string;
  readonly runbook: string;

  constructor(
    readonly status: number,
    body: ProblemBody,
  ) {
    super(body.detail || body.title || `The server answered with ${status}.`);
    this.remedy = body.remedy ?? "";
    this.runbook = body.runbook ?? "";
  }
}

export type Query = Readonly<Record<string, string | number | boolean | null | undefined>>;

const BASE = "/api/v1";

export function address(path: ApiPath, query: Query = {}): string {
  const parts = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") parts.set(name, String(value));
  }
  const text = parts.toString();
  return `${BASE}${path}${text ? `?${text}` : ""}`;
}

export async function problemOf(answer: Response): Promise<Problem> {
  const isProblem = answer.headers.get("content-type")?.includes("json");
  const body = isProblem ? await answer.json().catch(() => ({})) : {};
  return new Problem(answer.status, body as ProblemBody);
}

async function ask(url: string, init: RequestInit): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(url, { credentials: "same-origin", redirect: "error", ...init });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new Problem(0, {
      detail: "The console’s server does not answer.",
      remedy: "The page asks again by itself. Check that the console’s process runs.",
    });
  }
  if (!answer.ok) throw await problemOf(answer);
  return answer;
}

export async function get<T>(path: ApiPath, query: Query = {}, signal?: AbortSignal): Promise<T> {
  const answer = await ask(address(path, query), { signal: signal ?? null });
  return (await answer.json()) as T;
}

/** An act. The key makes a repeated request act once. */
export async function act<T>(
  method: "POST" | "PUT" | "DELETE",
  path: ApiPath,
  body: unknown = {},
  query: Query = {},
): Promise<T> {
  const headers = {
    "Content-Type": "application/json",
    "X-Headrace": "1",
    "Idempotency-Key": crypto.randomUUID(),
  };
  const answer = await ask(address(path, query), { method, headers, body: JSON.stringify(body) });
  return (answer.status === 204 ? {} : await answer.json()) as T;
}
