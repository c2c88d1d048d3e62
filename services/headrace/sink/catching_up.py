"""Brings a sink to a place from which it can follow the stream: reset, copies, lost events.

Promises: what the stream has discarded is read from the archive by position; without an archive the
tables are copied again, after a gap event, if the sink is configured for snapshots.
Otherwise the sink stops with a remedy. Each step is committed together with its marks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nats.aio.client import Client

from headrace import log as logs
from headrace.consumer import (
    Event,
    MemoryWatermarks,
    RetentionGapError,
    Subscription,
    Transaction,
    Watermark,
    follow,
)
from headrace.consumer.watermark import Watermarks
from headrace.errors import HeadraceError
from headrace.lsn import ORIGIN, format_lsn
from headrace.settings import Settings
from headrace.sinks.bootstrap import TableCopies, copied_lsns
from headrace.sinks.configuration import SinkConfiguration
from headrace.sinks.configuration_keys import Initial
from headrace.sinks.control import ResetTo
from headrace.sinks.port import COPIES_FOLLOW, SEEN, Sink
from headrace.sinks.reading import EVENTS_MAX, source_mark
from headrace.sinks.routing import Router

if TYPE_CHECKING:
    from headrace.sinks.from_archive import ArchiveRange

log = logs.logger("sink")

# How long to look for the source's first event in what is left of the stream.
LOOK_S = 30.0
TRANSACTIONS_A_COMMIT = 500


class LostEventsError(HeadraceError):
    """The stream has discarded events that this sink has not delivered."""

    remedy = (
        "Copy the tables again (`headrace sinks reset NAME --to snapshot`), or accept the gap "
        "(`--to start`). With an archive (HEADRACE_ARCHIVE_URL) a sink continues without a gap."
    )


@dataclass(slots=True)
class CatchingUp:
    client: Client
    settings: Settings
    configuration: SinkConfiguration
    router: Router
    sink: Sink

    @property
    def _source(self) -> str:
        return self.settings.source.slot

    async def reset(self, to: ResetTo) -> Watermarks:
        """Forget the committed marks, and commit those of the new place."""
        if to is ResetTo.SNAPSHOT:
            marks = await self._bootstrap.begin()
        else:
            seen_seq = 0
            if to is ResetTo.NOW:
                js = self.client.jetstream()
                info = await js.stream_info(self.settings.streams.cdc)
                seen_seq = int(info.state.last_seq)
            marks = {SEEN: Watermark(ORIGIN, seen_seq)}
        # Committed before anything follows: a crash must not continue from the former place.
        await self._deliver((), marks)
        log.warning("sink_reset", sink=self.configuration.name, to=str(to))
        return marks

    async def copy(self, marks: Watermarks) -> None:
        """Copy the tables that the marks name, as far as they are not copied yet."""
        await self._bootstrap.run(marks, self._deliver)
        self._leave_to_copies(marks)

    def _leave_to_copies(self, marks: Watermarks) -> None:
        """Changes that committed before a table's copy are in it."""
        self.router.copied.clear()
        self.router.copied.update(copied_lsns(marks))

    async def bridge(self, marks: Watermarks, lost: RetentionGapError) -> Watermarks:
        """Deliver what the stream has discarded."""
        # Without a position it is unknown where to begin in the archive.
        if self.settings.archive.url and source_mark(marks, self._source) > ORIGIN:
            return await self._from_archive(marks)
        if self.configuration.snapshot is Initial.INITIAL:
            log.warning("sink_copies_again", sink=self.configuration.name, reason=str(lost))
            fresh = await self._bootstrap.begin()
            await self._deliver((_gap(self._source, marks, lost),), fresh)
            return fresh
        raise LostEventsError(str(lost.args[0]))

    async def _from_archive(self, marks: Watermarks) -> Watermarks:
        # Only this way needs what an archive needs.
        from headrace.sinks.from_archive import ArchiveRange  # noqa: PLC0415

        first = await self._first_event()
        chosen = ArchiveRange(
            str(self.settings.archive.url),
            self._source,
            source_mark(marks, self._source),
            first.position.lsn,
        )
        log.warning(
            "sink_reads_the_archive",
            sink=self.configuration.name,
            after=str(chosen.after),
            up_to=format_lsn(chosen.up_to),
        )
        self._leave_to_copies(marks)
        # Otherwise the stream has discarded only what this sink has delivered.
        if chosen.after < first.position:
            await self._replay(chosen, marks)
        # The position says which of these are delivered; the rest of the stream follows.
        marks[SEEN] = Watermark(ORIGIN, first.stream_seq - 1)
        marks[self._source] = Watermark(source_mark(marks, self._source), 0)
        await self.sink.commit(dict(marks))
        position = str(source_mark(marks, self._source))
        log.info("sink_is_back_in_the_stream", sink=self.configuration.name, position=position)
        return marks

    async def _replay(self, chosen: ArchiveRange, marks: Watermarks) -> None:
        transactions = chosen.transactions()
        while found := await asyncio.to_thread(_some, transactions):
            for transaction, following in zip(found, [*found[1:], None], strict=True):
                routed = self.router.route(transaction)
                if routed is not None:
                    await self.sink.write([routed])
                # A part of a transaction is committed with the rest of it, and not with others.
                if transaction.ends and (following is None or not following.ends):
                    # In between the stream is not read, so its mark stays.
                    marks[self._source] = Watermark(transaction.events[-1].position, 0)
                    await self.sink.commit(dict(marks))

    async def _first_event(self) -> Event:
        """The source's first event that the stream still has."""
        streams = self.settings.streams
        subscription = Subscription(streams.cdc, state_bucket=streams.state)
        try:
            async with (
                asyncio.timeout(LOOK_S),
                follow(self.client, subscription, MemoryWatermarks()) as consumer,
            ):
                while True:
                    for event in await consumer.take(1.0):
                        # A schema event only describes the row after it, and has that row's
                        # position (ADR 0008).
                        if event.source == self._source and event.advances:
                            return event
        except TimeoutError as error:
            raise LostEventsError(
                "the stream has no event of this source, so it is unknown where it begins",
                remedy="The sink continues with the next event.",
            ) from error

    @property
    def _bootstrap(self) -> TableCopies:
        return TableCopies(
            self.client, self.settings.streams, self._source, self.configuration.takes
        )

    async def _deliver(self, events: Sequence[Event], marks: Watermarks) -> None:
        """Write and commit one transaction."""
        async with asyncio.timeout(self.configuration.pace.timeout_s):
            if events:
                routed = self.router.route(Transaction(tuple(events), ends=True))
                if routed is not None:
                    await self.sink.write([routed])
            await self.sink.commit(dict(marks))


def _some(transactions: Iterator[Transaction]) -> list[Transaction]:
    """The next ones, as many as share a commit."""
    found = []
    events = 0
    for transaction in transactions:
        found.append(transaction)
        events += len(transaction.events)
        if len(found) >= TRANSACTIONS_A_COMMIT or events >= EVENTS_MAX:
            break
    return found


def _gap(source: str, marks: Watermarks, lost: RetentionGapError) -> Event:
    """A gap event of this sink: what it has not delivered is only in the copies that follow."""
    position = source_mark(marks, source)
    payload = {
        "subject": "cdc._gap",
        "operation": "GAP",
        "msg_id": f"{position.lsn:x}-_gap.{lost.first_lost}-{source}-sink",
        "source": source,
        "after": format_lsn(position.lsn),
        "up_to": format_lsn(position.lsn),
        "reason": COPIES_FOLLOW,
        "lsn": position.lsn,
        "tx": {"xid": 0, "lsn": position.lsn, "ts": None, "seq": 0, "last": False},
    }
    return Event(source, "", "", "GAP", position, payload, "cdc._gap", 0, source, closes=True)
