"""A publisher's resume point: its progress, and the messages that the stream may have lost since."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import msgpack
import pytest

from headrace.bus.frame import Opening
from headrace.confirming.relation_shape import RelationShape
from headrace.contract import events
from headrace.contract.values import Encoding, ValueOptions
from headrace.errors import DecodeError
from headrace.jetstream.object_store import ObjectStore
from headrace.jetstream.publishing.pipe import Pipe
from headrace.jetstream.publishing.stream_tail import Tail
from headrace.lsn import ORIGIN, Gap, Position
from headrace.metrics.counters import Counters
from headrace.pgoutput import messages
from headrace.postgres.facts import CatalogSnapshot, TableFacts
from headrace.publisher.assembler import Assembler
from headrace.publisher.batch_delivery import BatchDelivery
from headrace.publisher.catalog_watch import CatalogWatch
from headrace.publisher.event_delivery import Delivery
from headrace.publisher.published_event import CompleteUpTo, PublishedEvent
from headrace.publisher.resume_point import (
    COMPLETE_MAX,
    Progress,
    ResumePoint,
    SourceDivergedError,
    check_source,
    find_resume_point,
    gap_before,
    reader_of,
)
from headrace.publisher.schema_book import CatalogReading, Entry, SchemaBook
from headrace.publisher.table_events import TableEvents
from headrace.settings import Settings

ORDERS = messages.Relation(
    1, "public", "orders", "d", (messages.RelationColumn(True, "id", 23, -1),)
)
OPENING = Opening({}, "slot", "db", "7000", 3, 500)


class TestProgress:
    def test_it_comes_back_as_it_was_written(self) -> None:
        progress = Progress(
            Position(5, 2),
            17,
            "5-orders-insert",
            "2026-01-01",
            500,
            "7000",
            3,
            ((ORIGIN, 3), (Position(5, 2), 500)),
        )
        assert Progress.decode(msgpack.unpackb(msgpack.packb(progress.encode()))) == progress
        assert Progress.decode(None) == Progress()

    def test_what_an_earlier_version_wrote_claims_nothing_to_be_complete(self) -> None:
        written = Progress(Position(5, 2), 17, complete=((Position(5, 2), 500),)).encode()
        del written["complete"]
        assert Progress.decode(written) == Progress(Position(5, 2), 17)

    def test_a_newer_format_is_refused(self) -> None:
        with pytest.raises(DecodeError, match="format 2"):
            Progress.decode({**Progress().encode(), "format": 2})

    @pytest.mark.parametrize(
        "progress", [Progress(), Progress(system_id="7000", timeline=3), Progress(timeline=2)]
    )
    def test_the_same_server_goes_on(self, progress: Progress) -> None:
        check_source(place(progress), OPENING)

    def test_a_timeline_that_forked_behind_the_stream_goes_on(self) -> None:
        progress = Progress(Position(400, 3), timeline=2, system_id="7000")
        check_source(place(progress), replace(OPENING, current_lsn=600, forks=((1, 50), (2, 401))))
        # A fork before the progress's own timeline began is history.
        check_source(place(progress), replace(OPENING, current_lsn=400, forks=((1, 50), (2, 450))))

    @pytest.mark.parametrize(
        "change",
        [
            {"forks": ((1, 50), (2, 400))},
            {"forks": ((2, 399),), "current_lsn": 900},
            # Two promotions together: the earlier fork counts.
            {"timeline": 4, "forks": ((1, 50), (2, 300), (3, 700)), "current_lsn": 900},
            {"timeline": 2, "current_lsn": 399},
        ],
    )
    def test_a_server_that_never_had_what_the_stream_has_is_refused(
        self, change: dict[str, Any]
    ) -> None:
        progress = Progress(Position(400, 3), timeline=2, system_id="7000")
        with pytest.raises(SourceDivergedError, match="where the stream is"):
            check_source(place(progress), replace(OPENING, **change))

    @pytest.mark.parametrize(
        "progress", [Progress(system_id="8000"), Progress(system_id="7000", timeline=4)]
    )
    def test_another_server_or_an_older_timeline_is_refused(self, progress: Progress) -> None:
        with pytest.raises(SourceDivergedError):
            check_source(place(progress), OPENING)


def place(progress: Progress, lost_up_to: int = 0) -> ResumePoint:
    return ResumePoint(progress, frozenset(), Tail(1, 0, ""), lost_up_to)


def advanced(progress: Progress, position: Position, lsn: int) -> Progress:
    """The progress that is written once all transactions before `lsn` are stored."""
    complete = progress.stored(position, lsn, past_lanes=True)
    return replace(progress, position=position, confirmed_lsn=lsn, complete=complete)


class TestGapBefore:
    """Transactions commit at 400 (up to 448) and 500 (up to 548); the slot was created at 300."""

    def after(self, *steps: tuple[int, int]) -> Progress:
        progress = Progress().joined(replace(OPENING, confirmed_lsn=300))
        for commit, lsn in steps:
            progress = advanced(progress, Position(commit, 0), lsn)
        return progress

    def cut_to(self, commit: int, progress: Progress) -> ResumePoint:
        """The stream lost everything behind the transaction that committed at this LSN."""
        back = Position(commit, 0) if commit else ORIGIN
        return place(replace(progress, position=back), progress.confirmed_lsn)

    def test_what_was_never_confirmed_is_no_gap(self) -> None:
        progress = self.after((400, 448), (400, 460), (500, 548))
        for confirmed in (448, 460):
            opening = replace(OPENING, confirmed_lsn=confirmed)
            assert gap_before(self.cut_to(400, progress), opening) is None
        assert gap_before(self.cut_to(0, progress), replace(OPENING, confirmed_lsn=300)) is None

    def test_what_was_confirmed_is_one(self) -> None:
        progress = self.after((400, 448), (400, 460), (500, 548))
        for commit, confirmed in [(400, 461), (400, 548), (0, 301), (0, 448)]:
            found = gap_before(
                self.cut_to(commit, progress), replace(OPENING, confirmed_lsn=confirmed)
            )
            assert found == Gap(commit, confirmed, "stream_tail_lost")

    def test_a_slot_that_moved_before_anything_was_stored_is_one(self) -> None:
        found = gap_before(place(self.after()), replace(OPENING, confirmed_lsn=600))
        assert found == Gap(300, 600, "slot_moved")

    def test_a_gap_whose_event_is_lost_is_reported_again(self) -> None:
        progress = self.after((400, 448), (500, 548))
        # The gap from 400 to 548 is reported; what comes next moves no position.
        reported = replace(progress, position=Position(400, 0), complete=())
        idle = advanced(reported, Position(400, 0), 600)
        found = gap_before(place(idle, 600), replace(OPENING, confirmed_lsn=600))
        assert found == Gap(400, 600, "stream_tail_lost")
        later = advanced(idle, Position(700, 0), 748)
        assert gap_before(place(later, 748), replace(OPENING, confirmed_lsn=748)) is None

    def test_no_more_is_kept_than_helps(self) -> None:
        progress = self.after(*((400 + 100 * n, 448 + 100 * n) for n in range(2 * COMPLETE_MAX)))
        assert len(progress.complete) == COMPLETE_MAX


class Sent:
    """A pipe that keeps what it is given."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    @property
    def published(self) -> int:
        return len(self.messages)

    @property
    def acked(self) -> int:
        return len(self.messages)

    async def publish(self, message: Any) -> None:
        self.messages.append(message.msg_id)

    async def publish_all(self, messages: Any) -> None:
        self.messages += [message.msg_id for message in messages]

    async def drain(self) -> None:
        """Everything is stored already."""


class TestBehindLanes:
    """A crash cut off a flush: table `a` is stored up to 500, the stream as a whole up to 300."""

    @pytest.mark.parametrize("batches", [True, False])
    async def test_what_is_stored_there_and_confirmed_is_a_gap_if_it_is_lost(
        self, *, batches: bool
    ) -> None:
        progress = advanced(Progress(complete=((ORIGIN, 300),)), Position(300, 0), 348)
        found = replace(place(progress), lanes={"a": Position(500, 0)})
        pipe, large = cast("Pipe", Sent()), cast("ObjectStore", None)
        delivery = (
            BatchDelivery(pipe, large, found, Counters(), Settings(), 1_000_000)
            if batches
            else Delivery(pipe, large, found, Counters(), "slot")
        )
        for commit in (400, 500, 600):
            event = PublishedEvent("cdc.b.insert", f"{commit}", b"{}", position=Position(commit, 0))
            await delivery.event(event)
            await delivery.mark(CompleteUpTo(commit + 48, whole=True))
            await delivery.flush()
            lsn, (position, _) = delivery.confirmable(), delivery.stored()
            complete = progress.stored(position, lsn, past_lanes=delivery.past_lanes)
            progress = replace(progress, position=position, confirmed_lsn=lsn, complete=complete)
            # The stream loses all that was stored since the crash.
            cut = place(replace(progress, position=Position(300, 0)), lsn)
            gap = gap_before(cut, replace(OPENING, confirmed_lsn=lsn))
            assert gap == Gap(300, commit + 48, "stream_tail_lost")
        # It loses nothing.
        assert gap_before(place(progress, lsn), replace(OPENING, confirmed_lsn=lsn)) is None


class TestCatalogReading:
    """A table that is gone, read at 100; the stream reaches into the transaction of 500 to 548."""

    @pytest.mark.parametrize("lanes", [{}, {"public.orders": Position(500, 3)}])
    async def test_it_is_delivered_behind_all_that_the_stream_has_of_a_replay(
        self, lanes: dict[str, Position]
    ) -> None:
        reached = Position(400, 9) if lanes else Position(500, 3)
        found = replace(place(Progress(reached)), lanes=lanes)
        pipe = Sent()
        delivery = Delivery(
            cast("Pipe", pipe), cast("ObjectStore", None), found, Counters(), "slot"
        )
        shape = RelationShape.of(ORDERS, TableFacts(), ValueOptions())
        book = SchemaBook([Entry(TableEvents.of(shape).table, 1, Position(50, 0), told=True)])
        watch = CatalogWatch(Settings())
        watch._reading = CatalogReading(100, (), frozenset(), CatalogSnapshot(9, 9))
        told_at = []
        for passed in (150, 448, 500, 548, 600):
            if (reading := watch.due(passed, delivery.reached_lsn)) is not None:
                told_at.append(passed)
                for event in Assembler("slot", Encoding.MSGPACK, book).read_catalog(reading):
                    await delivery.event(event)
        assert (told_at, len(pipe.messages)) == ([548], 1)


class TestReader:
    @pytest.mark.parametrize("encoding", list(Encoding))
    def test_it_knows_its_own_messages_by_source(self, encoding: Encoding) -> None:
        payload = {"source": "slot", "operation": "INSERT", "tx": {"lsn": 5, "seq": 1}}
        data = events.encode(payload, encoding)
        mark = reader_of("slot")(data, {"Nats-Msg-Id": "x"})
        assert mark is not None
        assert (mark.msg_id, mark.position) == ("x", Position(5, 1))
        assert reader_of("other")(data, {}) is None

    @pytest.mark.parametrize(
        ("floor", "settles"), [(Position(5, 2), True), (Position(4, 9), False)]
    )
    def test_a_batch_takes_the_stream_to_its_floor_and_its_table_to_its_last_event(
        self, floor: Position, *, settles: bool
    ) -> None:
        row = {"source": "slot", "operation": "INSERT", "schema": "public", "table": "users"}
        batch = [{**row, "tx": {"lsn": 5, "seq": n}} for n in range(3)]
        headers = {events.POSITION_HEADER: events.position_header("slot", floor)}
        mark = reader_of("slot")(events.encode(batch, Encoding.MSGPACK), headers)
        assert mark is not None
        assert (mark.position, mark.lane, mark.settles) == (
            floor,
            ("users", Position(5, 2)),
            settles,
        )
        assert reader_of("other")(events.encode(batch, Encoding.MSGPACK), headers) is None

    def test_a_schema_event_is_ours_and_takes_the_stream_nowhere(self) -> None:
        payload = {"source": "slot", "operation": "SCHEMA", "tx": {"lsn": 5, "seq": 1}}
        mark = reader_of("slot")(events.encode(payload, Encoding.MSGPACK), {"Nats-Msg-Id": "s"})
        assert mark is not None
        assert mark.position is None

    @pytest.mark.parametrize(
        "data",
        [b"", b"\xc1", b"[]", b"[1]", b"7", b'"x"', b"null", b'{"source":"slot"}', b"{" * 99_999],
    )
    def test_foreign_and_spoilt_messages_are_nobodys(self, data: bytes) -> None:
        assert reader_of("slot")(data, {}) is None


class TestTheEventOfAGap:
    """It moves no position: that it is still in the stream has to be looked for."""

    def found(self, progress: Progress, tail: Tail) -> ResumePoint:
        class Cell:
            async def read(self) -> Any:
                return progress.encode()

        class Stream:
            async def state(self) -> Tail:
                return tail

            async def after(self, _: int) -> Tail:
                return tail

            async def id_at(self, _: int) -> str:
                return progress.msg_id

        cell: Any = Cell()
        stream: Any = Stream()
        return asyncio.run(find_resume_point(cell, stream))

    def reported(self) -> Progress:
        progress = Progress(Position(400, 0), 5, "id", "made", 448)
        return progress.reported(600, "600-_gap-slot")

    def test_is_found(self) -> None:
        there = Tail(1, 6, "made", ids_after={"600-_gap-slot"})
        assert self.found(self.reported(), there).lost_up_to == 0

    def test_is_missed_when_the_stream_lost_it(self) -> None:
        lost = self.found(self.reported(), Tail(1, 5, "made"))
        assert gap_before(lost, replace(OPENING, confirmed_lsn=600)) == Gap(
            400, 600, "stream_tail_lost"
        )

    def test_is_not_missed_once_a_later_event_is_stored(self) -> None:
        later = Tail(1, 7, "made", position=Position(700, 0), position_seq=7, position_id="x")
        assert self.found(self.reported(), later).lost_up_to == 0
        beyond = advanced(self.reported(), Position(700, 0), 748)
        assert self.found(beyond, Tail(1, 7, "made")).lost_up_to == 0

    def test_is_not_missed_where_it_aged_out(self) -> None:
        assert self.found(self.reported(), Tail(7, 6, "made")).lost_up_to == 0

    def test_is_missed_in_a_stream_that_was_made_again(self) -> None:
        progress = Progress(stream_created="made", confirmed_lsn=448).reported(600, "600-_gap-slot")
        assert self.found(progress, Tail(1, 0, "made again")).lost_up_to == 600
