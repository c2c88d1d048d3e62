"""Acts in two steps: a plan that shows the effect, then the act while the plan still holds.

Promises: a plan acts at most once; one whose state has changed is refused; a repeated request with
the same idempotency key acts once and gets the same answer, also while the first one still runs.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from headrace.console.acts import ActsLog
from headrace.console.json_answers import answer, caller_of
from headrace.console.last_known import stamp
from headrace.console.problem import ProblemError, invalid
from headrace.errors import HeadraceError, describe
from headrace.metrics.counters import Counters

PLAN_S = 600.0
PLANS_MAX = 200
KEYS_MAX = 500
ACTS_PER_MINUTE = 30
# The keys of every act's body.
STEP = ("dry_run", "plan", "reason")
_KEY = re.compile(r"[A-Za-z0-9_-]{8,100}")


@dataclass(frozen=True, slots=True)
class Intent:
    """What an act would do. `state`: the facts that must still hold when it is done."""

    act: str
    target: str | None
    summary: str
    steps: Sequence[str]
    command: str
    state: list[Any]
    do: Callable[[], Awaitable[tuple[str | None, str]]]
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Plan:
    user: str
    act: str
    # The request without what differs between the two steps.
    asked: bytes
    state: list[Any]
    expires: float


class Plans:
    def __init__(self, acts: ActsLog, stats: Counters) -> None:
        self._acts = acts
        self._stats = stats
        self._plans: dict[str, _Plan] = {}
        self._answers: dict[tuple[str, str], tuple[bytes, asyncio.Future[dict[str, Any]]]] = {}
        self._times: list[float] = []

    async def handle(
        self, request: web.Request, body: dict[str, Any], intent: Intent
    ) -> web.Response:
        """Answer with a plan, or act."""
        asked = {key: value for key, value in body.items() if key not in {"dry_run", "plan"}}
        # The reason may be written after the plan was read.
        asked.pop("reason", None)
        fixed = orjson.dumps([request.path, asked], option=orjson.OPT_SORT_KEYS)
        if body.get("dry_run"):
            return answer(self._planned(request, fixed, intent))
        key = request.headers.get("Idempotency-Key")
        if key is None:
            return answer(await self._act(request, body, fixed, intent), 202)
        if not _KEY.fullmatch(key):
            raise invalid("Idempotency-Key is malformed", "Send 8 to 100 letters and digits.")
        return answer(await self._once(key, request, body, fixed, intent), 202)

    def _planned(self, request: web.Request, asked: bytes, intent: Intent) -> dict[str, Any]:
        # Bounded: a page asks for a plan at every change of its form.
        name = secrets.token_urlsafe(12)
        until = time.time() + PLAN_S
        user = caller_of(request).user
        self._plans[name] = _Plan(user, intent.act, asked, intent.state, until)
        # The oldest goes: a dictionary is in the order of insertion.
        while len(self._plans) > PLANS_MAX:
            del self._plans[next(iter(self._plans))]
        # The page shows the command, so that the act can be repeated in a script.
        return {
            "plan": name,
            "summary": intent.summary,
            "steps": list(intent.steps),
            "facts": intent.facts,
            "expires": stamp(until),
            "command": intent.command,
        }

    async def _once(
        self, key: str, request: web.Request, body: dict[str, Any], asked: bytes, intent: Intent
    ) -> dict[str, Any]:
        place = (caller_of(request).user, key)
        known = self._answers.get(place)
        if known is not None:
            if known[0] != asked:
                raise invalid(
                    "this Idempotency-Key belongs to another request", "Use a new key for each act."
                )
            # Shielded: the second client may leave while the first one still waits.
            return await asyncio.shield(known[1])
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        # Before the first await, so that a repeat that comes immediately waits for this one.
        self._answers[place] = (asked, future)
        while len(self._answers) > KEYS_MAX:
            del self._answers[next(iter(self._answers))]
        try:
            done = await self._act(request, body, asked, intent)
        except BaseException as error:
            # Nothing was done, so that the same key may try again.
            self._answers.pop(place, None)
            future.set_exception(error)
            # Retrieved here, or asyncio would log it when nobody else waits.
            future.exception()
            raise
        future.set_result(done)
        return done

    async def _act(
        self, request: web.Request, body: dict[str, Any], asked: bytes, intent: Intent
    ) -> dict[str, Any]:
        caller = caller_of(request)
        plan = self._taken(str(body.get("plan") or ""), caller.user, asked, intent)
        # A script that went wrong must not act a thousand times.
        self._check_pace()
        said = {"plan": plan, "reason": str(body.get("reason") or "")}
        # In the log before it happens: no act can be missing there.
        entry = await self._acts.note(
            request, caller, intent.act, intent.target, result="begun", **said
        )
        try:
            changed, result = await intent.do()
        except (HeadraceError, OSError) as error:
            detail = describe(error)
            await self._acts.note(
                request,
                caller,
                intent.act,
                intent.target,
                result="failed",
                detail=detail,
                entry=entry,
                **said,
            )
            raise
        self._stats.count_in("console_acts", intent.act)
        await self._acts.note(
            request,
            caller,
            intent.act,
            changed or intent.target,
            detail=result,
            entry=entry,
            **said,
        )
        return {"done": True, "act": entry, "object": changed or intent.target, "result": result}

    def _taken(self, name: str, user: str, asked: bytes, intent: Intent) -> str:
        """Use up a plan; raises if it doesn't fit."""
        if not name:
            raise invalid("the plan is missing", "Send dry_run first, then the plan's ID.")
        # Removed first: two requests at the same time can't both have it.
        plan = self._plans.pop(name, None)
        if plan is None or plan.user != user or time.time() > plan.expires:
            raise _stale("The plan is unknown, used, or too old.")
        # The plan is used up even then: guessing its ID gives nobody a second try.
        if plan.asked != asked or plan.act != intent.act:
            raise _stale("The plan is for another request.")
        if plan.state != intent.state:
            raise _stale("The facts behind the plan have changed.")
        return name

    def _check_pace(self) -> None:
        now = time.monotonic()
        # Of all callers together: the limit protects the suite, and not one user.
        self._times = [at for at in self._times if now - at < 60]
        if len(self._times) >= ACTS_PER_MINUTE:
            raise ProblemError(429, "busy", "Too many acts within a minute.", "Wait a moment.")
        self._times.append(now)


def _stale(detail: str) -> ProblemError:
    return ProblemError(409, "stale_plan", detail, "Ask for a new plan, and read it.")
