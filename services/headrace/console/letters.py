"""The acts of operators on dead letters other than a replay: correct a record's values, drop it.

Promises: nobody changes values that they may not see; the log of acts names the columns, never a
value.
"""

from __future__ import annotations

import shlex
from typing import Any

from aiohttp import web

from headrace.console.access import Caller
from headrace.console.cells import Redaction
from headrace.console.json_answers import body_of, caller_of
from headrace.console.plans import STEP, Intent, Plans
from headrace.console.problem import ProblemError, invalid, not_found
from headrace.console.sinks import Sinks, done_by
from headrace.errors import describe
from headrace.sinks.corrections import CorrectionError, corrected
from headrace.sinks.dead_letters import DeadLetter, DeadLetterError
from headrace.sinks.operating import SinkOperator


class LetterActs:
    def __init__(self, sinks: Sinks, redaction: Redaction, plans: Plans) -> None:
        self._sinks = sinks
        self._redaction = redaction
        self._plans = plans

    async def correct(self, request: web.Request) -> web.Response:
        """Other values for columns of a parked record, which the next replay delivers."""
        body = await body_of(request, "id", "columns", *STEP)
        wanted = _columns(body)
        operator, letter = await self._letter(request, body)
        # Before the values are looked at: the errors below tell which columns the record has.
        self._check_right(caller_of(request), letter, wanted)
        try:
            corrected(letter.event.payload, wanted)
        except CorrectionError as error:
            raise invalid(describe(error), str(error.remedy)) from error
        await _check_idle(operator, letter)
        name, by = letter.sink, caller_of(request).user
        number = "1 column" if len(wanted) == 1 else f"{len(wanted)} columns"
        intent = Intent(
            "correct-dead-letter",
            f"{name}/{letter.id}",
            f"The parked record gets other values for {number}: {', '.join(wanted)}.",
            [
                "Only the record for the target changes; the row in PostgreSQL stays as it is.",
                "Nothing is delivered until you deliver the record again.",
                "A later change of the row writes PostgreSQL's values over these.",
            ],
            _command(name, letter.id, wanted),
            # A plan holds for these values: after another correction it is out of date.
            [letter.id, letter.parked_at, list(letter.corrected), _text(letter)],
            done_by(
                lambda: operator.letters.correct(name, letter.id, wanted, by),
                f"Corrected: {', '.join(wanted)}.",
            ),
        )
        return await self._plans.handle(request, body, intent)

    async def drop(self, request: web.Request) -> web.Response:
        """Remove a parked record permanently."""
        body = await body_of(request, "id", *STEP)
        operator, letter = await self._letter(request, body)
        await _check_idle(operator, letter)
        name = letter.sink
        intent = Intent(
            "drop-dead-letter",
            f"{name}/{letter.id}",
            "The parked record is removed permanently: the target never gets it.",
            [
                "The row in PostgreSQL and the event in the stream stay.",
                "A later change of the row is delivered as usual.",
            ],
            f"headrace dead-letters drop {name} {shlex.quote(letter.id)}",
            [letter.id, letter.parked_at],
            done_by(lambda: operator.letters.drop(name, letter.id), "The record is removed."),
        )
        return await self._plans.handle(request, body, intent)

    async def _letter(
        self, request: web.Request, body: dict[str, Any]
    ) -> tuple[SinkOperator, DeadLetter]:
        name, _ = self._sinks.named(request)
        operator = await self._sinks.operator()
        try:
            return operator, await operator.letters.get(name, str(body.get("id") or ""))
        except DeadLetterError as error:
            raise not_found("There is no such dead letter.", "Load the page again.") from error

    def _check_right(self, caller: Caller, letter: DeadLetter, wanted: dict[str, Any]) -> None:
        names = (letter.event.schema, letter.event.table)
        hidden = set(wanted) & self._redaction.columns(*names)
        if caller.sees(*names) and not hidden:
            return
        raise ProblemError(
            403,
            "values",
            "Only those who see the values of a table may correct a record of it.",
            f"Ask for the right `values` on {'.'.join(names)}; redacted columns stay as they are.",
        )


async def _check_idle(operator: SinkOperator, letter: DeadLetter) -> None:
    """Raise while the sink is to deliver it: it would decide which of the two comes first."""
    if letter.id in (await operator.instructions(letter.sink)).replay:
        raise ProblemError(
            409,
            "stale_plan",
            "The sink is about to deliver this record.",
            "Wait until it is delivered or parked again.",
        )


def _columns(body: dict[str, Any]) -> dict[str, str | None]:
    given = body.get("columns")
    if not isinstance(given, dict) or not given:
        raise invalid("columns is an object: a text, or null for NULL, by the column's name")
    if not all(isinstance(value, str | None) for value in given.values()):
        raise invalid("the values of columns are texts, or null for NULL")
    return given


def _text(letter: DeadLetter) -> str:
    """The values at the time of the plan; never shown."""
    payload = letter.event.payload
    return repr((payload.get("data"), payload.get("exact")))


def _command(name: str, record_id: str, wanted: dict[str, str | None]) -> str:
    words = ["headrace", "dead-letters", "correct", name, record_id]
    for column, value in wanted.items():
        # An empty text and NULL are different values.
        if value is None:
            words += ["--null", column]
        else:
            words += ["--set", f"{column}={value}"]
    return shlex.join(words)
