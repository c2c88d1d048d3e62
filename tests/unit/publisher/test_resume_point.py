"""A publisher's resume point, from progress and from what the stream still has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.bus.frame import Opening
from headrace.contract import events
from headrace.contract.values import Encoding
from headrace.errors import DecodeError
from headrace.jetstream.publishing.stream_tail import StreamTail, Tail
from headrace.jetstream.state import Cell
from headrace.lsn import ORIGIN, Gap, Position
from headrace.postgres.facts import CatalogSnapshot, ServerIdentity
from headrace.publisher.catalog_watch import CatalogWatch
from headrace.publisher.resume_point import (
    Progress,
    ResumePoint,
    find_resume_point,
    gap_before,
    reader_of,
)
from headrace.publisher.schema_book import CatalogReading
from headrace.publisher.storage import as_of, partitions_moved, rewritten, same_files
from headrace.settings import load
from tests.support.simulated_nats import SimulatedNats, simulated_nats
from tests.support.virtual_time import on_virtual_time

SETTINGS = load({})
STREAM = SETTINGS.streams.cdc


def store(nats: SimulatedNats, lsn: int, source: str = "a", operation: str = "INSERT") -> str:
    msg_id = f"{lsn:x}-{source}-{operation}"
    body = {
        "operation": operation,
        "table": source,
        "source": source,
        "msg_id": msg_id,
        "tx": {"lsn": lsn, "seq": 0},
    }
    payload = events.encode(body, Encoding.JSON)
    nats.cdc.store(f"cdc.{source}.insert", {"Nats-Msg-Id": msg_id}, payload, 0.0)
    return msg_id


async def found(nats: SimulatedNats, known: Progress | None) -> ResumePoint:
    """The resume point of a publisher that knows this progress of the stream as it was created."""
    cell = Cell(await nats.state(), "progress.a")
    await cell.read()
    tail = StreamTail(nats.jetstream(), STREAM, reader_of("a"))
    if known is not None:
        created = known.stream_created or (await tail.state()).created
        await cell.write(replace(known, stream_created=created).encode())
    return await find_resume_point(cell, tail)


def written(lsn: int, seq: int, **more: Any) -> Progress:
    msg_id = f"{lsn:x}-a-INSERT"
    return Progress(Position(lsn, 0), seq, msg_id, confirmed_lsn=lsn + 8, **more)


@on_virtual_time
async def test_messages_behind_the_progress_are_found_and_what_does_not_advance_by_its_id() -> None:
    async with simulated_nats(SETTINGS) as nats:
        store(nats, 0x100)
        last = store(nats, 0x200)
        schema = store(nats, 0x300, operation="SCHEMA")
        store(nats, 0x900, "b")
        place = await found(nats, written(0x100, 1))
        assert place.position == Position(0x200, 0)
        assert (place.progress.stream_seq, place.progress.msg_id) == (2, last)
        assert place.ids_after == {schema}
        assert place.lost_up_to == 0
        assert place.tail.last_seq == 4


@on_virtual_time
async def test_without_anything_new_the_progress_holds_even_if_its_message_has_aged_out() -> None:
    async with simulated_nats(SETTINGS) as nats:
        for lsn in (0x100, 0x200):
            store(nats, lsn)
        place = await found(nats, written(0x200, 2))
        assert (place.position, place.lost_up_to) == (Position(0x200, 0), 0)
        store(nats, 0x900, "b")
        for seq in (1, 2):
            nats.cdc.delete(seq)
        place = await found(nats, written(0x200, 2))
        assert (place.position, place.lost_up_to) == (Position(0x200, 0), 0)


@pytest.mark.parametrize("with_others", [False, True])
@on_virtual_time
async def test_a_lost_tail_sets_the_publisher_back_to_what_the_stream_still_has(
    with_others: bool,
) -> None:
    async with simulated_nats(SETTINGS) as nats:
        for lsn in (0x100, 0x200, 0x300):
            store(nats, lsn)
        nats.cdc.lose_tail(1, 0.0)
        if with_others:
            for lsn in (0x900, 0x910, 0x920):
                store(nats, lsn, "b")
        place = await found(nats, written(0x300, 3))
        assert place.position == Position(0x100, 0)
        assert place.progress.stream_seq == 1
        assert place.lost_up_to == 0x308
        assert place.tail.ids_in_doubt


@on_virtual_time
async def test_a_first_message_whose_sequence_another_source_took_is_lost() -> None:
    async with simulated_nats(SETTINGS) as nats:
        store(nats, 0x100)
        nats.cdc.lose_tail(0, 0.0)
        store(nats, 0x900, "b")
        place = await found(nats, written(0x100, 1))
        assert (place.position, place.lost_up_to) == (ORIGIN, 0x108)


@on_virtual_time
async def test_a_stream_that_was_created_again_has_nothing_of_the_source() -> None:
    async with simulated_nats(SETTINGS) as nats:
        place = await found(nats, written(0x300, 3, stream_created="then"))
        assert (place.position, place.progress.stream_seq) == (ORIGIN, 0)
        assert place.progress.msg_id == ""
        assert place.lost_up_to == 0x308
        assert place.progress.stream_created != "then"


@on_virtual_time
async def test_a_single_message_that_was_removed_from_the_middle_is_no_lost_tail() -> None:
    async with simulated_nats(SETTINGS) as nats:
        for lsn in (0x100, 0x200, 0x300):
            store(nats, lsn)
        nats.cdc.delete(2)
        place = await found(nats, written(0x200, 2))
        assert (place.position, place.lost_up_to) == (Position(0x300, 0), 0)
        nats.cdc.delete(3)
        store(nats, 0x900, "b")
        place = await found(nats, written(0x300, 3))
        assert (place.position, place.lost_up_to) == (Position(0x100, 0), 0x308)


@on_virtual_time
async def test_the_event_of_a_gap_that_is_gone_is_reported_again() -> None:
    async with simulated_nats(SETTINGS) as nats:
        store(nats, 0x100)
        known = written(0x100, 1).reported(0x500, "gap-1")
        place = await found(nats, known)
        assert place.lost_up_to == 0x500
        # The event was the next message, and what is there is another's.
        store(nats, 0x900, "b")
        nats.cdc.delete(1)
        place = await found(nats, known)
        assert place.lost_up_to == 0x500
        nats.cdc.messages.clear()
        nats.cdc.by_subject.clear()
        nats.cdc.first_seq = 3
        nats.cdc.last_seq = 2
        place = await found(nats, known)
        assert place.lost_up_to == 0, "it may have aged out"


@pytest.mark.parametrize(
    ("position", "confirmed_lsn", "is_new"),
    [(ORIGIN, 0, True), (ORIGIN, 0x80, False), (Position(0x50, 0), 0, False)],
)
def test_only_a_source_without_any_progress_begins_at_its_slot(
    position: Position, confirmed_lsn: int, *, is_new: bool
) -> None:
    known = Progress(position, confirmed_lsn=confirmed_lsn)
    joined = known.joined(Opening({}, "a", "db", "7000", 2, 0x100, 0x900))
    assert (joined.system_id, joined.timeline) == ("7000", 2)
    assert joined.confirmed_lsn == (confirmed_lsn or 0x100)
    assert joined.complete == (((ORIGIN, 0x100),) if is_new else ())


@on_virtual_time
async def test_a_new_source_begins_at_the_origin_and_no_later_format_is_read() -> None:
    async with simulated_nats(SETTINGS) as nats:
        store(nats, 0x900, "b")
        place = await found(nats, None)
        assert (place.position, place.lost_up_to) == (ORIGIN, 0)
    with pytest.raises(DecodeError):
        Progress.decode({"format": 99})
    known = written(0x100, 1, system_id="7000", timeline=2)
    assert Progress.decode(known.encode()) == known


def test_a_catalog_reading_is_used_once_the_stream_has_passed_it() -> None:
    watch = CatalogWatch(SETTINGS)
    assert watch.due(0x900, 0) is None
    reading = CatalogReading(0x200, (), frozenset(), "", read_lsn=0x200)  # type: ignore[arg-type]  # no table is read
    watch._reading = reading
    for passed, reached in ((0x1FF, 0), (0x200, 0x200), (0x300, 0x400)):
        assert watch.due(passed, reached) is None
    due = watch.due(0x200, 0x1FF)
    assert due is not None
    assert due.lsn == 0x200
    assert watch.due(0x900, 0) is None, "each is used once"
    watch._reading = reading
    due = watch.due(0x300, 0x1FF)
    assert due is not None
    assert (due.lsn, due.read_lsn) == (0x300, 0x200)


@pytest.mark.parametrize(
    ("read", "used"),
    [
        (ServerIdentity("7", 2), True),
        (ServerIdentity("7"), True),
        (ServerIdentity(), True),
        (ServerIdentity("8", 2), False),
        (ServerIdentity("7", 1), False),
        (ServerIdentity("7", 3), False),
    ],
)
def test_a_catalog_reading_of_another_server_is_dropped(read: ServerIdentity, used: bool) -> None:
    """Its changes would be reported before the divergence."""
    watch = CatalogWatch(SETTINGS)
    watch._reading = CatalogReading(0x200, (), frozenset(), CatalogSnapshot(9, 9), server=read)
    assert (watch.due(0x200, 0, ServerIdentity("7", 2)) is not None) == used
    assert watch._reading is None, "the next reading is awaited"


def files(*of: tuple[int, int, int, int], columns: str = "c1", partitions: str = "") -> str:
    """A reading: relation, file, the transaction that defined it, TOAST table."""
    listed = ",".join(":".join(map(str, one)) for one in of)
    return f"{listed}/{columns}/{partitions}"


BEFORE = files((10, 100, 5, 50))


def test_a_rewrite_is_told_from_what_leaves_the_rows_as_they_are() -> None:
    assert same_files(BEFORE, BEFORE)
    vacuumed = files((10, 101, 6, 50))
    assert not same_files(BEFORE, vacuumed)
    assert not rewritten(BEFORE, vacuumed, ())
    altered = files((10, 101, 6, 50), columns="c2")
    assert rewritten(BEFORE, altered, ())
    assert not rewritten(BEFORE, altered, (6,)), "a TRUNCATE with a separate event"
    assert rewritten(BEFORE, files((10, 101, 6, 51)), ()), "the TOAST table is a new one"
    assert not rewritten(BEFORE, files((10, 100, 6, 50), columns="c2"), ())
    for unknown in ("", "checksum", "a/b"):
        assert not rewritten(unknown, altered, ())
        assert not rewritten(BEFORE, unknown, ())
        assert not same_files(unknown, unknown)


def test_without_a_toast_table_only_an_exposed_table_may_have_been_rewritten() -> None:
    before, now = files((10, 100, 5, 0)), files((10, 101, 6, 0))
    assert not rewritten(before, now, ())
    assert rewritten(f"u{before}", f"u{now}", ())


def test_rows_that_came_or_went_with_a_partition_are_noticed() -> None:
    divided = ((10, 0, 5, 0), (11, 100, 5, 0))
    before = files(*divided, partitions="11,12a")
    assert not partitions_moved(before, before, ())
    assert partitions_moved(before, files(*divided, partitions="11"), ()), "one is gone"
    assert partitions_moved(before, files(*divided, partitions="11,12a,13a"), ()), "one came"
    assert not partitions_moved(before, files(*divided, partitions="11,12a,13"), ()), "a new one"
    assert not partitions_moved(before, files(*divided, partitions="11a,12"), ())
    assert not partitions_moved(before, files(*divided, partitions="11,12a9"), ()), (
        "an older reading"
    )
    attached = files(*divided, partitions="11,12a7")
    assert not partitions_moved(attached, attached, ())
    again = files(*divided, partitions="11,12a9")
    assert partitions_moved(attached, again, ()), "attached again"
    again = files(*divided, partitions="11a9,12a7")
    assert partitions_moved(attached, again, ()), "detached and attached"
    truncated = files((10, 0, 5, 0), (11, 101, 6, 0), partitions="11,12a")
    assert partitions_moved(before, truncated, ())
    assert not partitions_moved(before, truncated, (6,))
    assert not partitions_moved("", before, ())
    assert not partitions_moved(before, "", ())
    whole = files((10, 100, 5, 0), partitions="11")
    assert not partitions_moved(whole, files((10, 101, 6, 0), partitions="11"), ())


def test_what_a_later_transaction_did_to_files_is_yet_to_be_reported() -> None:
    now = files((10, 101, 900, 50))
    assert as_of(now, 900, 1000) == now
    assert as_of("", 800, 1000) == ""
    earlier = as_of(now, 800, 1000)
    assert rewritten(earlier, now, ()), "as soon as the stream has passed it"
    assert as_of(f"u{now}", 800, 1000).startswith("u")


def opening(confirmed: int, *, slot_used: bool = False) -> Opening:
    return Opening({}, "a", "db", "7000", 1, confirmed, 0x9000, slot_used=slot_used)


@pytest.mark.parametrize("slot_used", [False, True])
def test_a_publisher_that_knows_nothing_reports_what_a_used_slot_has_confirmed(
    *, slot_used: bool
) -> None:
    found = ResumePoint(Progress(), frozenset(), Tail(0, 0, ""))
    expected = Gap(0, 0x28, "store_lost") if slot_used else None
    assert gap_before(found, opening(0x28, slot_used=slot_used)) == expected


@pytest.mark.parametrize(
    "progress", [Progress(confirmed_lsn=0x28), Progress(position=Position(0x28, 0))]
)
def test_a_used_slot_that_confirms_what_is_known_is_no_gap(progress: Progress) -> None:
    found = ResumePoint(progress, frozenset(), Tail(1, 1, ""))
    assert gap_before(found, opening(0x28, slot_used=True)) is None


@pytest.mark.parametrize("lost_up_to", [0, 0x30])
@pytest.mark.parametrize(
    ("position", "confirmed", "expected"),
    [
        # A message outside transactions, whose record ends at 0x20, is whole.
        (0x1F, 0x20, None),
        (0x1F, 0x28, (0x20, 0x28)),
        # Of a transaction, a part may be missing.
        (0x20, 0x20, None),
        (0x20, 0x28, (0x20, 0x28)),
    ],
)
def test_a_gap_begins_where_something_may_be_missing(
    position: int, confirmed: int, expected: tuple[int, int] | None, lost_up_to: int
) -> None:
    progress = Progress(position=Position(position, 0), confirmed_lsn=0x10)
    found = ResumePoint(progress, frozenset(), Tail(1, 1, ""), lost_up_to)
    gap = gap_before(found, opening(confirmed))
    assert (gap and (gap.after, gap.up_to)) == expected
