"""The stations of a change, from its commit to everything that has it.

Every part of the suite has a watermark: a position before which it has everything. A change of the
past is compared with these, so that a trace needs no bookkeeping for each event and no start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from aiohttp import web

from headrace.console.cells import TEXT_CHARACTERS_MAX, Redaction, event_document
from headrace.console.json_answers import answer, caller_of
from headrace.console.last_known import FAILURES, stamp
from headrace.console.liveness import SILENT
from headrace.console.positions import missing, position_in
from headrace.console.reading import EventReader, committed_at
from headrace.console.sinks import Sinks
from headrace.console.suite_view import SuiteView
from headrace.consumer.event import Event
from headrace.lsn import Position, format_lsn
from headrace.settings import Settings
from headrace.sinks.configuration import SinkConfiguration
from headrace.sinks.configuration_keys import SinkOperation
from headrace.sinks.control import durable_name
from headrace.sinks.dead_letters import DeadLetterError
from headrace.sinks.routing import event_id

CONSUMERS_MAX = 100
Station = dict[str, Any]
# A service, its watermark, the kind of station, and whether a watermark at the commit includes it.
_MARKS = (
    ("publisher", "confirmed_lsn", "publisher", False),
    ("archiver", "archive_confirmed_lsn", "archive", False),
    ("lake-writer", "lake_lsn", "lake", False),
    ("audit-writer", "audit_lsn", "audit", True),
    ("wal-archiver", "backup_stored_lsn", "backup", False),
)


class Tracing:
    def __init__(
        self,
        settings: Settings,
        reader: EventReader,
        suite: SuiteView,
        redaction: Redaction,
        sinks: Sinks,
    ) -> None:
        self._settings = settings
        self._reader = reader
        self._suite = suite
        self._redaction = redaction
        self._sinks = sinks

    async def answer(self, request: web.Request) -> web.Response:
        return answer(await self.document(request, TEXT_CHARACTERS_MAX))

    async def document(self, request: web.Request, characters_max: int | None) -> dict[str, Any]:
        """The change as this caller may see it, and its stations. Longer values are cut."""
        position = position_in(request.match_info["position"])
        # A trace makes dozens of requests; a few at a time leave JetStream to others.
        async with self._reader.turns:
            event = await self._reader.at(position)
            stations = await self._stations(position, event)
        shown = None
        if event is not None:
            shown = event_document(event, caller_of(request), self._redaction, characters_max)
        return {
            **self._suite.head(),
            "position": str(position),
            "event": shown,
            "stations": stations,
        }

    async def _stations(self, position: Position, event: Event | None) -> list[Station]:
        committed = None
        if event is not None:
            committed = committed_at(event)
        stream = await self._stream(position, event, committed)
        found = [_commit(position, event, committed), *self._slot(position), stream]
        if event is not None:
            found += await self._consumers(event)
            found += [await self._sink(event, name) for name in self._running_sinks()]
        # Compared with LSNs, which works for changes that the stream has discarded, too.
        marks = self._marks(position)
        # The publisher stands before the stream: that is the way of a change.
        publisher = [one for one in marks if one["kind"] == "publisher"]
        others = [one for one in marks if one["kind"] != "publisher"]
        place = found.index(stream)
        return [*found[:place], *publisher, *found[place:], *others]

    def _services(self) -> Mapping[str, Any]:
        services: Mapping[str, Any] = (self._suite.status or {}).get("services", {})
        return services

    def _slot(self, position: Position) -> list[Station]:
        """Whether the change is confirmed to PostgreSQL."""
        slot = (self._suite.status or {}).get("slot")
        if not slot:
            return [_station("wal", "slot", "unknown", "The slot is not known now.")]
        confirmed = int(slot["confirmed_lsn"])
        if confirmed > position.lsn:
            text = "PostgreSQL may discard it, because the suite has confirmed it."
        else:
            text = "PostgreSQL keeps it in its log until the suite confirms it."
        reached = _reached(confirmed > position.lsn, live=not self._suite.stale())
        return [_station("wal", str(self._settings.source.slot), reached, text, lsn=confirmed)]

    async def _stream(
        self, position: Position, event: Event | None, committed: datetime | None
    ) -> Station:
        name = self._settings.streams.cdc
        if event is None:
            # Not found has two reasons: it is not published yet, or the stream has discarded it.
            first, last = await self._reader.ends()
            if first is None or last is None or position > last:
                return _station("stream", name, "no", "It is not in the stream yet.")
            first_seq, _ = await self._reader.bounds()
            problem = missing(position, first, last, discarded=first_seq > 1)
            if problem.code != "aged_out":
                raise problem
            return _station("stream", name, "yes", problem.detail)
        message = await self._reader.message(event.stream_seq)
        stored = None
        if message is not None:
            stored = message.time
        station = _station("stream", name, "yes", f"It is message {event.stream_seq} of {name}.")
        station["facts"] = {
            "sequence": str(event.stream_seq),
            "msg_id": str(event.payload.get("msg_id", "")),
        }
        if stored is not None:
            station["at"] = stamp(stored.timestamp())
        if stored is not None and committed is not None:
            # Clocks of two machines: a small negative difference means none.
            station["after_s"] = round(max(0.0, (stored - committed).total_seconds()), 6)
        return station

    async def _consumers(self, event: Event) -> list[Station]:
        """The durable consumers, by what each has acknowledged."""
        js = self._reader.client.jetstream()
        try:
            infos = await js.consumers_info(self._settings.streams.cdc)
        except FAILURES:
            # Its user may lack the permission; the other stations are true without it.
            return [_station("consumer", "consumers", "unknown", "Consumers can't be listed.")]
        found = []
        source = self._settings.source.slot
        own = {durable_name(source, name) for name in self._running_sinks()}
        for info in infos[:CONSUMERS_MAX]:
            config = info.config
            # A sink that reports is another station.
            if not config.durable_name or config.durable_name in own:
                continue
            filters = config.filter_subjects or []
            if config.filter_subject:
                filters = [config.filter_subject]
            floor = info.ack_floor
            # Without acknowledgements, the server knows only about delivery.
            if str(config.ack_policy) == "none":
                floor = info.delivered
            done = floor is not None and int(floor.stream_seq) >= event.stream_seq
            reached = "yes" if done else "no"
            if filters and not any(_matches(one, _subject(event)) for one in filters):
                reached = "filtered"
            text = f"It has everything up to message {floor.stream_seq if floor else 0}."
            found.append(_station("consumer", str(info.name), reached, text))
        return found

    def _running_sinks(self) -> list[str]:
        # Their reports have the names of the processes, one for each sink.
        names = self._services()
        return [name.removeprefix("sink-") for name in names if name.startswith("sink-")]

    async def _sink(self, event: Event, name: str) -> Station:
        service = self._services()[f"sink-{name}"]
        done = int(service["figures"].get("sink_stream_seq", 0))
        reached = _reached(done >= event.stream_seq, live=service["state"] not in SILENT)
        text = f"It has committed everything up to message {done}."
        link = f"/sinks/{name}"
        sink = self._sinks.file().sinks.get(name)
        if sink is not None and not _takes(sink, event):
            reached, text = "filtered", "It does not ask for such changes."
        elif reached == "yes":
            # The position passes a record that the target has refused.
            parked, known = await self._parked(event, name)
            if parked is not None:
                reached, text = "refused", "Its target refused the change: it is a dead letter."
                link += f"?letter={quote(parked, safe='')}"
            elif not known:
                reached, text = "unknown", f"{text} Its dead letters can't be read."
            elif sink is None or sink.where or sink.function:
                text += " A filter may have left this change out."
        return {**_station("sink", name, reached, text), "link": link}

    async def _parked(self, event: Event, sink: str) -> tuple[str | None, bool]:
        """The ID of the dead letter, if there is one, and whether that is known."""
        try:
            letters = (await self._sinks.operator()).letters
            for one in (str(event.payload.get("msg_id") or ""), event_id(event)):
                with contextlib.suppress(DeadLetterError):
                    return (await letters.get(sink, one)).id, True
        except FAILURES:
            return None, False
        return None, True

    def _marks(self, position: Position) -> list[Station]:
        """The parts whose watermark is an LSN."""
        found = []
        for name, key, kind, inclusive in _MARKS:
            service = self._services().get(name)
            mark = None
            if service is not None:
                mark = service["figures"].get(key)
            # A part that isn't there is no station; the trace shows what exists.
            if service is None or not mark:
                continue
            done = int(mark) > position.lsn
            if inclusive:
                done = int(mark) >= position.lsn
            reached = _reached(done, live=service["state"] not in SILENT)
            text = f"{name} has everything before {format_lsn(int(mark))}."
            found.append(_station(kind, name, reached, text, lsn=int(mark)))
        return found


def _takes(sink: SinkConfiguration, event: Event) -> bool:
    """Whether a sink asks for the event's table and operation."""
    operation = event.operation.lower()
    if event.table and not sink.takes(event.schema, event.table):
        return False
    return operation not in set(SinkOperation) or operation in sink.operations


def _reached(done: bool, *, live: bool) -> str:
    # Watermarks never go back, so a reached one holds even if its service is silent.
    if done:
        return "yes"
    if live:
        return "no"
    return "unknown"


def _commit(position: Position, event: Event | None, committed: datetime | None) -> Station:
    station = _station(
        "commit",
        "PostgreSQL",
        "yes" if event is not None else "unknown",
        f"Its transaction committed at {format_lsn(position.lsn)}.",
        lsn=position.lsn,
    )
    if event is not None:
        station["facts"] = {"xid": str((event.payload.get("tx") or {}).get("xid", ""))}
    if committed is not None:
        station["at"] = stamp(committed.timestamp())
        station["after_s"] = 0.0
    return station


def _station(kind: str, name: str, reached: str, text: str, *, lsn: int | None = None) -> Station:
    shown = None
    if lsn is not None:
        shown = format_lsn(lsn)
    return {
        "kind": kind,
        "name": name,
        "reached": reached,
        "at": None,
        "after_s": None,
        "lsn": shown,
        "facts": {},
        "text": text,
        "link": None,
    }


def _subject(event: Event) -> str:
    return str(event.payload.get("subject") or event.subject)


def _matches(pattern: str, subject: str) -> bool:
    """Whether a subject fits a consumer's filter."""
    wanted, given = pattern.split("."), subject.split(".")
    for place, part in enumerate(wanted):
        if part == ">":
            return len(given) > place
        if place >= len(given) or part not in {"*", given[place]}:
            return False
    return len(wanted) == len(given)
