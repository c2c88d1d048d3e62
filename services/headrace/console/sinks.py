"""The sinks: how far each is, what stops it, what its target refused; and the acts of operators.

Acts use the same code as `headrace sinks`. The file of the sinks is read here, too, so that the
page can say what a sink is for; without it, sinks are those whose processes report.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web
from nats.errors import Error as NatsError

from headrace.console.access import Caller
from headrace.console.cells import Redaction, event_document
from headrace.console.json_answers import answer, body_of, caller_of
from headrace.console.last_known import FAILURES
from headrace.console.liveness import SILENT
from headrace.console.plans import STEP, Intent, Plans
from headrace.console.problem import ProblemError, invalid, not_found
from headrace.console.reading import EventReader
from headrace.console.reasons import may_read_reasons
from headrace.console.suite_view import SuiteView
from headrace.console.tables import Tables
from headrace.console.waterline import STATES
from headrace.contract.subjects_and_ids import split_table_token
from headrace.errors import HeadraceError, describe
from headrace.jetstream.state import bucket
from headrace.settings import Settings
from headrace.sinks.configuration import SinkConfiguration, load_sinks
from headrace.sinks.control import Instructions, ResetTo
from headrace.sinks.dead_letters import DeadLetter, DeadLetterError
from headrace.sinks.operating import SinkOperator, check_reset, promise_text, shown_address

LETTERS_MAX = 100
_PROCESS = "sink-"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
Do = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class SinkFile:
    """The sinks of headrace.toml, or why they can't be read."""

    sinks: Mapping[str, SinkConfiguration]
    problem: str | None = None

    def declared(self, name: str, instead: str) -> SinkConfiguration:
        """The sink's configuration; without it, the remedy names a command to use instead."""
        sink = self.sinks.get(name)
        if sink is None:
            raise ProblemError(
                409,
                "invalid",
                f"The console does not know the target of {name}: {self.problem}",
                f"Set HEADRACE_CONFIG for the console, too, or use {instead}.",
            )
        return sink


class Sinks:
    def __init__(
        self,
        settings: Settings,
        reader: EventReader,
        suite: SuiteView,
        tables: Tables,
        redaction: Redaction,
        plans: Plans,
    ) -> None:
        self._settings = settings
        self._reader = reader
        self._suite = suite
        self._tables = tables
        self._redaction = redaction
        self._plans = plans

    async def page(self, request: web.Request) -> web.Response:
        """All sinks."""
        file = self.file()
        operator = await self.operator()
        parked = await operator.letters.names()
        items = []
        for name in self._names(file):
            # Listed once for all sinks: each listing reads the keys of the whole bucket.
            count = sum(owner == name for owner, _ in parked)
            items.append(await self._line(operator, caller_of(request), file, name, count))
        configuration = {"file": self._settings.sinks.file, "problem": file.problem}
        return answer({**self._suite.head(), "configuration": configuration, "items": items})

    async def one(self, request: web.Request) -> web.Response:
        """One sink with its tables and what its target refused."""
        caller = caller_of(request)
        name, file = self.named(request)
        operator = await self.operator()
        parked = await operator.letters.names(name)
        letters = []
        # Each is a request. The total is counted without reading them.
        for _, record_id in parked[:LETTERS_MAX]:
            try:
                letter = await operator.letters.get(name, record_id)
            except DeadLetterError:
                # Delivered or removed since it was listed.
                continue
            letters.append(_letter(letter, caller, self._redaction))
        sink = file.sinks.get(name)
        return answer(
            {
                **self._suite.head(),
                "sink": await self._line(operator, caller, file, name, len(parked)),
                "facts": {} if sink is None else _facts(sink),
                "tables": await self.taken(sink),
                "letters": letters,
            }
        )

    async def pause(self, request: web.Request) -> web.Response:
        body = await body_of(request, *STEP)
        name, _ = self.named(request)
        operator = await self.operator()
        reason = str(body.get("reason") or "") or f"by {caller_of(request).user} in the console"
        intent = Intent(
            "pause-sink",
            name,
            f"The sink {name} stops at the end of a transaction.",
            [
                "Its process commits the records that it has taken, and writes nothing more.",
                "The stream keeps the events as long as its limits allow; other sinks continue.",
            ],
            f"headrace sinks pause {name}",
            [(await operator.instructions(name)).paused],
            done_by(lambda: operator.pause(name, reason), "The sink is paused."),
        )
        return await self._plans.handle(request, body, intent)

    async def resume(self, request: web.Request) -> web.Response:
        body = await body_of(request, *STEP)
        name, _ = self.named(request)
        operator = await self.operator()
        intent = Intent(
            "resume-sink",
            name,
            f"The sink {name} continues where it was.",
            ["Its process delivers what the stream has kept meanwhile."],
            f"headrace sinks resume {name}",
            [(await operator.instructions(name)).paused],
            done_by(lambda: operator.resume(name), "The sink continues."),
        )
        return await self._plans.handle(request, body, intent)

    async def reset(self, request: web.Request) -> web.Response:
        """Let a sink forget its position."""
        body = await body_of(request, "to", *STEP)
        name, file = self.named(request)
        # Before any request to a server.
        if body.get("to") not in set(ResetTo):
            raise invalid("to is start, now or snapshot")
        to = ResetTo(body["to"])
        sink = file.declared(name, "headrace sinks reset")
        try:
            check_reset(sink, to)
        except HeadraceError as error:
            raise invalid(describe(error), "Choose snapshot, which copies the tables.") from error
        operator = await self.operator()
        wanted = (await operator.instructions(name)).reset
        intent = Intent(
            "reset-sink",
            name,
            f"The sink {name} forgets its position, and {_RESETS[to]}.",
            ["Its process stops at the end of a transaction.", *_CONSEQUENCES[to]],
            f"headrace sinks reset {name} --to {to}",
            [wanted and str(wanted)],
            done_by(lambda: operator.reset(sink, to), "The sink's process takes the reset."),
        )
        return await self._plans.handle(request, body, intent)

    async def replay(self, request: web.Request) -> web.Response:
        """Let a sink deliver parked records again: one, or all."""
        body = await body_of(request, "id", *STEP)
        name, _ = self.named(request)
        operator = await self.operator()
        parked = [one for _, one in await operator.letters.names(name)]
        # The IDs are part of the plan: a record that is parked before the confirmation changes it.
        wanted = parked
        command = f"headrace dead-letters replay {name}"
        if "id" in body:
            wanted = [one for one in parked if one == body["id"]]
            command += f" {shlex.quote(body['id'])}"
        if not wanted:
            raise not_found("There is no such dead letter.", "Load the page again.")
        number = "1 record" if len(wanted) == 1 else f"{len(wanted)} records"
        intent = Intent(
            "replay-dead-letters",
            name,
            f"The sink {name} delivers {number} again.",
            [
                "Its process writes them as the newest records, after what it has written since.",
                "Records that the target accepts are removed from the dead letters.",
            ],
            command,
            wanted,
            done_by(lambda: operator.deliver(name, wanted), f"{number} will be delivered."),
            {"records": str(len(wanted))},
        )
        return await self._plans.handle(request, body, intent)

    def named(self, request: web.Request) -> tuple[str, SinkFile]:
        """The sink that a request names, and the file."""
        name = request.match_info["name"]
        file = self.file()
        # It becomes part of a key, so only names that exist are taken.
        if not _NAME.fullmatch(name) or name not in self._names(file):
            raise not_found("There is no sink with this name.", "See the page Sinks.")
        return name, file

    def file(self) -> SinkFile:
        """The sinks' file as it is now."""
        # Read for each answer: it is short, and someone may have changed it.
        path = self._settings.sinks.file
        try:
            return SinkFile(load_sinks(Path(path), os.environ))
        except (HeadraceError, ImportError) as error:
            return SinkFile({}, describe(error))

    def _names(self, file: SinkFile) -> list[str]:
        # Also those that the console's file lacks: it may be another machine's.
        running = (name.removeprefix(_PROCESS) for name in self._services() if _is_sink(name))
        return sorted({*file.sinks, *running})

    def _services(self) -> Mapping[str, Any]:
        services: Mapping[str, Any] = (self._suite.status or {}).get("services", {})
        return services

    async def operator(self) -> SinkOperator:
        """The acts on sinks, over the console's connection."""
        js = self._reader.client.jetstream()
        return SinkOperator(js, await bucket(js, self._settings.streams.state), self._settings)

    async def _line(
        self, operator: SinkOperator, caller: Caller, file: SinkFile, name: str, parked: int
    ) -> dict[str, Any]:
        service = self._services().get(f"{_PROCESS}{name}")
        figures = {} if service is None else service["figures"]
        instructions = await operator.instructions(name)
        read = await operator.read_up_to(name)
        # The process reports its commits; without it, the durable consumer says what it
        # acknowledged.
        sequence = figures.get("sink_stream_seq") or (read.acknowledged if read else None)
        sink = file.sinks.get(name)
        state, reasons = _state(service, instructions)
        open_to = may_read_reasons(caller, self._redaction)
        return {
            "name": name,
            "to": None if sink is None else shown_address(sink.to),
            "promise": (None if sink is None else promise_text(sink)) or None,
            "state": state,
            "reason": ("; ".join(reasons) or None) if open_to else None,
            "reason_hidden": bool(reasons) and not open_to,
            "paused": instructions.paused,
            "reset": instructions.reset and str(instructions.reset),
            "replaying": len(instructions.replay),
            "sequence": None if not sequence else str(int(sequence)),
            "position": await self._position(int(sequence or 0)),
            "behind_messages": None if read is None else str(read.behind),
            "behind_s": figures.get("sink_behind_seconds", figures.get("mirror_behind_seconds")),
            "records": _whole(figures.get("sink_records")),
            "letters": str(parked),
        }

    async def _position(self, sequence: int) -> str | None:
        """The position of the last event of a message; None if the stream has discarded it."""
        if not sequence:
            return None
        try:
            message = await self._reader.message(sequence)
            if message is None or message.seq != sequence:
                return None
            data, subject = message.data or b"", message.subject or ""
            events = await self._reader.decoded(data, subject, sequence)
        except (*FAILURES, NatsError):
            return None
        return str(events[-1].position) if events else None

    async def taken(self, sink: SinkConfiguration | None) -> list[dict[str, Any]]:
        """The published tables that a sink wants."""
        if sink is None:
            return []
        found = []
        for token in await self._tables.tokens():
            schema, table = split_table_token(token)
            if sink.takes(schema, table):
                found.append({"token": token, "schema": schema, "table": table})
        return found


_RESETS = {
    ResetTo.START: "begins with the first event that the stream still has",
    ResetTo.NOW: "continues after the stream's last event",
    ResetTo.SNAPSHOT: "copies every table again",
}
_CONSEQUENCES = {
    ResetTo.START: ["Records that were delivered stay in the target, and come again."],
    ResetTo.NOW: ["Events that it has not delivered yet are left out of the target."],
    ResetTo.SNAPSHOT: [
        "A snapshot of each table is requested, and continued by the stream.",
        "Records that were delivered stay in the target, and may come again.",
    ],
}


def _is_sink(service: str) -> bool:
    return service.startswith(_PROCESS)


def done_by(do: Do, result: str) -> Callable[[], Awaitable[tuple[str | None, str]]]:
    async def act() -> tuple[str | None, str]:
        await do()
        return None, result

    return act


def _state(service: Mapping[str, Any] | None, instructions: Instructions) -> tuple[str, list[str]]:
    """A word for the state, and why it is no better."""
    if instructions.paused:
        # Its process has not taken the instruction yet, and may still deliver.
        if (
            service is not None
            and service["state"] not in SILENT
            and "paused" not in service["reasons"]
        ):
            return "waiting", ["It stops at the end of a transaction."]
        return "paused", [instructions.reason] if instructions.reason else []
    if service is None:
        return "waiting", ["No process of this sink reports."]
    return STATES[service["state"]], [str(reason) for reason in service["reasons"].values()]


def _facts(sink: SinkConfiguration) -> dict[str, str]:
    return {
        "Tables": ", ".join(sink.tables) or "all",
        "Operations": ", ".join(str(one) for one in sink.operations),
        "Destination": sink.destination,
        "Format": str(sink.format),
        "Rows that exist already": "copied first" if sink.snapshot == "initial" else "left out",
        "A refused record": "is parked" if sink.on_error == "park" else "stops the sink",
    }


def _letter(letter: DeadLetter, caller: Caller, redaction: Redaction) -> dict[str, Any]:
    event = letter.event
    names = (event.schema, event.table)
    # Destinations are made from values, and targets quote values.
    open_to = caller.sees(*names) and not redaction.columns(*names)
    return {
        "id": letter.id,
        "at": letter.parked_at,
        "destination": letter.destination if open_to else None,
        "reason": letter.reason if open_to else None,
        "event": event_document(event, caller, redaction),
        "corrected": list(letter.corrected),
        "corrected_by": letter.corrected_by or None,
    }


def _whole(value: Any) -> str | None:
    return None if value is None else str(int(value))
