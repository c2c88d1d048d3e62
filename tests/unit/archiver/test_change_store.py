"""The archiver's change store: when it closes a file, which LSN it confirms, and what a fault leaves
undone.

The store is in memory; pyarrow reads its content.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from headrace.archive.errors import ArchiveUnreachableError, FileTakenError, StoreUnfitError
from headrace.archive.file_format import footer_of, info_of
from headrace.archive.layout import file_name
from headrace.archiver import builder, change_store, file_writer
from headrace.archiver.change_store import WRITING_TICK_S
from headrace.archiver.resume_point import ArchiveDivergedError
from headrace.confirming.change_store import TICK_S, Demand, Stored
from headrace.errors import DecodeError
from headrace.lsn import Gap, Position
from headrace.process.lifecycle import Scope
from tests.support.archiver_run import (
    Archiver,
    Clock,
    Parked,
    begin,
    commit,
    keepalive,
    opening,
    row,
    table,
    transaction,
    turns,
)


@pytest.fixture
def archiver(tmp_path: Path) -> Archiver:
    return Archiver(tmp_path, HEADRACE_ARCHIVE_FILE_ROWS_MAX="3")


async def test_nothing_is_confirmed_before_its_file_is_stored(archiver: Archiver) -> None:
    sink = await archiver.open()
    assert (await archiver.take(*transaction(100, b"1", b"2"))).lsn == 50
    stored = await sink.store(Demand.MORE)
    assert (stored.lsn, stored.waiting) == (50, True)
    assert stored.again_s > WRITING_TICK_S, "the file is neither full nor old"
    assert (await sink.store(Demand.ALL)) == Stored(110, False, TICK_S)
    assert archiver.rows(1) == [(100, 0, '{"id":1}'), (100, 1, '{"id":2}')]
    assert archiver.figure("archive_confirmed_lsn") == 110


async def test_a_file_that_is_full_is_closed_at_the_end_of_its_transaction(
    archiver: Archiver,
) -> None:
    sink = await archiver.open()
    await archiver.take(*transaction(100, b"1", b"2"), *transaction(200, b"3", b"4"))
    await archiver.take(*transaction(300, b"5"))
    await sink.store(Demand.ALL)
    assert [len(archiver.rows(number)) for number in (1, 2)] == [4, 1]
    assert not archiver.is_there(3)


async def test_a_transaction_of_twice_a_file_is_cut_and_nothing_of_it_is_confirmed(
    archiver: Archiver,
) -> None:
    sink = await archiver.open()
    whole = transaction(100, *(str(number).encode() for number in range(8)))
    await archiver.take(*whole[:-1])
    stored = await sink.store(Demand.ALL)
    assert (stored.lsn, stored.waiting) == (50, True)
    assert archiver.rows(1) == [(100, number, f'{{"id":{number}}}') for number in range(6)]
    info = info_of(footer_of(archiver.bytes(1)))
    assert (info.whole, info.rows, info.end_lsn) == (False, 6, 50)
    await archiver.take(whole[-1])
    assert (await sink.store(Demand.ALL)).lsn == 110
    assert archiver.rows(2) == [(100, number, f'{{"id":{number}}}') for number in (6, 7)]


async def test_a_transaction_of_updates_is_cut_as_well(archiver: Archiver) -> None:
    sink = await archiver.open()
    updates = [(0, b"U" + row(b"%d" % number)[1][1:]) for number in range(7)]
    await archiver.take(begin(100), table(), *updates)
    await sink.store(Demand.ALL)
    assert [seq for _, seq, _ in archiver.rows(1)] == [0, 1, 2, 3, 4, 5]


async def test_a_store_that_answers_at_the_start_is_no_reason_any_more(archiver: Archiver) -> None:
    archiver.scope.health.block("store", "no answer")
    await archiver.open()
    assert "store" not in archiver.scope.health.reasons


async def test_closing_waits_for_the_thread_that_encodes(archiver: Archiver) -> None:
    sink = await archiver.open()
    release = threading.Event()
    sink._open._writer.add = lambda _: release.wait() and None  # type: ignore[method-assign,assignment]  # as long as the test wants
    await archiver.take(*transaction(100, b"1")[:-1])
    await sink._open.add(sink._builder.take_group())
    closing = asyncio.create_task(sink.close())
    await turns()
    assert not closing.done()
    release.set()
    await closing


async def test_nothing_is_archived_in_a_store_that_would_overwrite_a_file(
    archiver: Archiver,
) -> None:
    def unfit() -> None:
        raise StoreUnfitError("it would overwrite a file")

    archiver.store.prepare = unfit  # type: ignore[method-assign]  # a folder is never unfit
    with pytest.raises(StoreUnfitError):
        await archiver.open()


async def test_a_file_that_waits_inside_a_transaction_is_not_closed(archiver: Archiver) -> None:
    sink = await archiver.open()
    await archiver.take(*transaction(100, b"1")[:-1])
    assert (await sink.store(Demand.ALL)).waiting
    assert not archiver.is_there(1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The sink's own."""
    made = Clock()
    monkeypatch.setattr(change_store, "time", made)
    return made


async def test_a_file_is_closed_at_its_age_counted_from_its_first_row(
    archiver: Archiver, clock: Clock
) -> None:
    sink = await archiver.open()
    await sink.store(Demand.MORE)
    clock.now += 100
    assert (await sink.store(Demand.MORE)).again_s == TICK_S
    stored = await archiver.take(*transaction(100, b"1"))
    assert stored.again_s == TICK_S, "the file is 2 s from its age"
    clock.now += 1.9
    stored = await sink.store(Demand.MORE)
    assert stored.again_s == pytest.approx(0.1)
    assert not archiver.is_there(1)
    clock.now += 5
    assert (await archiver.take()).again_s == 0.001, "now, and not before it"
    stored = await sink.store(Demand.LITTLE)
    assert stored == Stored(50, True, WRITING_TICK_S), "it is being written, and asked for soon"
    await archiver.take(*transaction(200, b"2"))
    assert (await sink.store(Demand.ALL)).lsn == 210
    assert [len(archiver.rows(number)) for number in (1, 2)] == [1, 1]


async def test_the_age_of_a_file_counts_from_its_epoch(archiver: Archiver, clock: Clock) -> None:
    """Rows that come with the first frame are not old."""
    sink = await archiver.open()
    for _ in range(2):
        await archiver.take(*transaction(100, b"1"))
        assert (await sink.store(Demand.MORE)).again_s == TICK_S, "nothing is written"
        clock.now += 1.9
        await sink.on_epoch(opening())


async def test_a_file_that_was_closed_at_its_age_starts_the_next_one_s(
    archiver: Archiver, clock: Clock
) -> None:
    sink = await archiver.open()
    await sink.store(Demand.MORE)
    await archiver.take(*transaction(100, b"1"))
    clock.now += 2
    await sink.store(Demand.MORE)
    await archiver.take(*transaction(200, b"2"))
    clock.now += 1.99
    await sink.store(Demand.MORE)
    await sink.close()
    assert archiver.is_there(1)
    assert not archiver.is_there(2)


async def test_a_file_that_was_written_is_confirmed_without_a_demand(archiver: Archiver) -> None:
    sink = await archiver.open()
    await archiver.take(*transaction(100, b"1", b"2", b"3"))
    await sink.close()
    assert (await sink.store(Demand.LITTLE)) == Stored(110, False, TICK_S)


async def test_reading_goes_on_while_a_file_is_written_and_the_next_waits_for_it(
    archiver: Archiver,
) -> None:
    sink = await archiver.open()
    release = archiver.hold_puts()
    await archiver.take(*transaction(100, b"1", b"2", b"3"))
    assert (await sink.store(Demand.LITTLE)) == Stored(50, True, WRITING_TICK_S)
    await archiver.take(*transaction(200, b"4"))
    stored = await sink.store(Demand.LITTLE)
    assert (stored.lsn, stored.waiting) == (50, True)
    second = asyncio.create_task(sink.store(Demand.ALL))
    await archiver.waits()
    assert not second.done()
    assert archiver.scope.waits == ["the archive's store to take a file"]
    release.set()
    assert (await second).lsn == 210
    assert archiver.scope.waits == []


async def test_an_encoded_file_beyond_the_limit_waits_for_the_one_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first file is written while row groups of the second are encoded."""
    archiver = Archiver(tmp_path, HEADRACE_ARCHIVE_FILE_ROWS_MAX="4")
    monkeypatch.setattr(builder, "GROUP_ROWS", 2)
    sink = await archiver.open()
    release = archiver.hold_puts()
    await archiver.take(*transaction(100, *(str(number).encode() for number in range(4))))
    # Two row groups fit as well.
    await archiver.take(*transaction(200, b"1", b"2", b"3")[:-1])
    assert sink._writing is not None
    # Neither file is too large on its own.
    monkeypatch.setattr(change_store, "HELD_BYTES_MAX", sink._writing_bytes + 1)
    waiting = asyncio.create_task(archiver.take(row(b"4")))
    try:
        async with asyncio.timeout(20):
            await archiver.waits()
        assert not waiting.done()
    finally:
        # A thread that waits would keep the process.
        release.set()
    assert (await waiting).lsn == 110
    await archiver.take(commit(200))
    assert (await sink.store(Demand.ALL)).lsn == 210
    assert archiver.rows(2) == [(200, seq, f'{{"id":{seq + 1}}}') for seq in range(4)]


async def test_a_new_epoch_drops_the_open_file_and_its_changes_come_again(
    archiver: Archiver,
) -> None:
    sink = await archiver.open()
    await archiver.take(*transaction(100, b"1"))
    await archiver.take(*transaction(200, b"2")[:-1])
    await sink.on_epoch(opening(50))
    await archiver.take(*transaction(100, b"1"), *transaction(200, b"2"))
    assert (await sink.store(Demand.ALL)).lsn == 210
    assert archiver.rows(1) == [(100, 0, '{"id":1}'), (200, 0, '{"id":2}')]


async def test_a_new_epoch_keeps_what_is_being_written(archiver: Archiver) -> None:
    sink = await archiver.open()
    await archiver.take(*transaction(100, b"1", b"2", b"3"))
    await sink.on_epoch(opening(50))
    assert archiver.is_there(1)
    await archiver.take(*transaction(100, b"1", b"2", b"3"), *transaction(200, b"4"))
    await sink.store(Demand.ALL)
    assert archiver.rows(2) == [(200, 0, '{"id":4}')]


async def test_a_restart_continues_behind_the_last_file(archiver: Archiver) -> None:
    sink = await archiver.open()
    every = transaction(100, b"1"), transaction(200, b"2")
    await archiver.take(*every[0])
    await sink.store(Demand.ALL)
    first = info_of(footer_of(archiver.bytes(1)))
    again = await archiver.open(opening(50))
    await archiver.take(*every[0], *every[1])
    assert (await again.store(Demand.ALL)).lsn == 210
    second = info_of(footer_of(archiver.bytes(2)))
    assert archiver.rows(2) == [(200, 0, '{"id":2}')]
    assert (first.from_lsn, first.end_lsn, second.from_lsn, second.end_lsn) == (50, 110, 110, 210)
    assert (second.previous, second.after) == (first.checksum, Position(100, 0))
    assert (first.epoch, second.epoch, second.archive) == (1, 2, first.archive)
    assert (first.previous, first.after) == ("", Position(0, 0))


async def test_another_server_is_refused(archiver: Archiver) -> None:
    sink = await archiver.open()
    await archiver.take(*transaction(100, b"1"))
    await sink.store(Demand.ALL)
    with pytest.raises(ArchiveDivergedError, match="system identifier is 2"):
        await sink.on_epoch(opening(110, system_id="2"))


async def test_a_slot_that_moved_leaves_a_gap_in_the_archive_before_anything_else(
    archiver: Archiver,
) -> None:
    sink = await archiver.open()
    await archiver.take(*transaction(100, b"1"))
    await sink.store(Demand.ALL)
    assert archiver.figure("archive_gaps") is None
    await sink.on_epoch(opening(300))
    info = info_of(footer_of(archiver.bytes(2)))
    assert (info.gap, info.end_lsn) == (Gap(110, 300, "slot_moved"), 300)
    assert archiver.figure("archive_gaps") == 1
    await archiver.take(*transaction(400, b"2"))
    assert (await sink.store(Demand.ALL)).lsn == 410
    assert archiver.rows(3) == [(400, 0, '{"id":2}')]


async def test_a_put_without_an_answer_is_tried_again(
    archiver: Archiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = 2
    pauses: list[float] = []

    def unreachable() -> None:
        nonlocal fails
        if fails:
            fails -= 1
            raise ArchiveUnreachableError("no answer")

    async def pause(seconds: float) -> None:
        assert "no answer" in archiver.scope.health.reasons["store"]
        pauses.append(seconds)

    sink = await archiver.open()
    archiver.store.before_put = unreachable
    monkeypatch.setattr(Scope, "pause", lambda _, seconds: pause(seconds))
    await archiver.take(*transaction(100, b"1"))
    assert (await sink.store(Demand.ALL)).lsn == 110
    assert pauses == pytest.approx([0.2, 0.4])
    assert "store" not in archiver.scope.health.reasons


async def test_a_store_that_stays_away_ends_the_run_with_nothing_confirmed(
    archiver: Archiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = 0

    def unreachable() -> None:
        nonlocal tried
        tried += 1
        raise ArchiveUnreachableError("no answer")

    sink = await archiver.open()
    archiver.store.before_put = unreachable
    monkeypatch.setattr(Scope, "pause", lambda *_: asyncio.sleep(0))
    await archiver.take(*transaction(100, b"1"))
    with pytest.raises(ArchiveUnreachableError):
        await sink.store(Demand.ALL)
    assert tried == file_writer.PUT_ATTEMPTS
    assert not archiver.writer.progressed
    assert archiver.writer.end.known_lsn == 50
    assert sink._writing is None, "its error is not raised a second time"


async def test_a_file_of_another_archiver_ends_the_run(archiver: Archiver) -> None:
    sink = await archiver.open()
    archiver.store.put_new(file_name(1), b"another's")
    await archiver.take(*transaction(100, b"1"))
    with pytest.raises(FileTakenError):
        await sink.store(Demand.ALL)
    assert archiver.bytes(1) == b"another's"
    assert archiver.writer.end.known_lsn == 50


async def test_a_row_that_cannot_be_read_is_parked_at_its_position(archiver: Archiver) -> None:
    sink = await archiver.open()
    spoiled = row(b"1")[1][:-3]
    await archiver.take(begin(100), table(), row(b"1"), (77, spoiled), row(b"2"), commit(100))
    await sink.store(Demand.ALL)
    assert archiver.parked.put_at == [(77, Position(100, 1), spoiled)]
    assert archiver.rows(1) == [(100, 0, '{"id":1}'), (100, 2, '{"id":2}')]


async def test_a_row_that_cannot_be_read_stops_the_archive_unless_it_may_be_parked(
    archiver: Archiver,
) -> None:
    archiver.parked = Parked(takes=False)
    await archiver.open()
    with pytest.raises(DecodeError):
        await archiver.take(begin(100), table(), (77, row(b"1")[1][:-3]))
    assert archiver.parked.put_at == []


async def test_a_stop_leaves_the_rest_of_a_frame_but_takes_rows_that_need_no_wait(
    archiver: Archiver,
) -> None:
    sink = await archiver.open()
    await archiver.take(*transaction(100, b"1", b"2")[:3])
    archiver.scope.stopping.set()
    await archiver.take(row(b"2"), commit(100), *transaction(200, b"3"))
    assert sink._builder.rows == 2
    assert (await sink.store(Demand.ALL)).lsn == 50, "its transaction has not ended"


async def test_log_without_changes_is_marked_and_confirmed_at_intervals(
    archiver: Archiver, clock: Clock
) -> None:
    interval_s = archiver.settings.state.progress_interval_s
    sink = await archiver.open()
    await archiver.take(keepalive(70))
    assert (await sink.store(Demand.MORE)) == Stored(70, False, TICK_S)
    mark = {"archive": archiver.writer.end.archive, "file": 0, "url": archiver.store.url}
    # A new archive is marked where it starts, so that its readers know that it exists.
    assert archiver.cell.writes == [{**mark, "lsn": 50}, {**mark, "lsn": 70}]
    await archiver.take(keepalive(80))
    clock.now += interval_s - 0.001
    assert (await sink.store(Demand.MORE)).lsn == 70
    clock.now += 0.001
    assert (await sink.store(Demand.MORE)).lsn == 80
    assert (await sink.store(Demand.MORE)).lsn == 80
    assert [write["lsn"] for write in archiver.cell.writes] == [50, 70, 80]
    await archiver.take(keepalive(90))
    archiver.scope.stopping.set()
    assert (await sink.store(Demand.ALL)).lsn == 90, "a stop does not wait for the interval"


async def test_log_is_not_marked_while_rows_wait_for_their_file(archiver: Archiver) -> None:
    sink = await archiver.open()
    await archiver.take(*transaction(100, b"1"), keepalive(200))
    assert (await sink.store(Demand.MORE)).lsn == 50
    assert [write["lsn"] for write in archiver.cell.writes] == [50]
    await sink.store(Demand.ALL)
    assert [write["file"] for write in archiver.cell.writes] == [0, 1]
    assert archiver.figure("archive_waiting_rows") == 0


async def test_the_mark_is_written_with_the_first_file_and_not_with_each(
    archiver: Archiver,
) -> None:
    sink = await archiver.open()
    for at in (100, 200):
        await archiver.take(*transaction(at, b"1"))
        await sink.store(Demand.ALL)
    marks = [(write["file"], write["lsn"]) for write in archiver.cell.writes]
    assert marks == [(0, 50), (1, 110)]


async def test_a_mark_that_was_lost_is_written_again_at_the_next_start(archiver: Archiver) -> None:
    sink = await archiver.open()
    await archiver.take(*transaction(100, b"1"))
    await sink.store(Demand.ALL)
    archiver.cell.value = None
    archiver.cell.writes.clear()
    await archiver.open(opening(110))
    assert [(write["file"], write["lsn"]) for write in archiver.cell.writes] == [(1, 110)]
    await archiver.open(opening(110))
    assert len(archiver.cell.writes) == 1


async def test_an_idle_archive_continues_from_its_mark_and_has_no_gap(archiver: Archiver) -> None:
    sink = await archiver.open()
    await archiver.take(*transaction(100, b"1"))
    await sink.store(Demand.ALL)
    await archiver.take(keepalive(500))
    archiver.scope.stopping.set()
    await sink.store(Demand.ALL)
    archiver.scope.stopping.clear()
    again = await archiver.open(opening(500))
    assert (await archiver.take()).lsn == 500
    await archiver.take(*transaction(600, b"2"))
    await again.store(Demand.ALL)
    info = info_of(footer_of(archiver.bytes(2)))
    assert (info.gap, info.from_lsn) == (None, 500)


async def test_figures_count_files_rows_and_bytes(archiver: Archiver) -> None:
    sink = await archiver.open()
    await archiver.take(*transaction(100, b"1", b"2"))
    await sink.store(Demand.MORE)
    assert archiver.figure("archive_waiting_rows") == 2
    await sink.store(Demand.ALL)
    assert archiver.figure("archive_waiting_rows") == 0
    assert archiver.figure("archive_files") == 1
    assert archiver.figure("archive_rows") == 2
    assert archiver.figure("archive_bytes") == len(archiver.bytes(1))
    assert archiver.figure("archive_file_id") == 1
    assert archiver.writer.progressed


async def test_closing_waits_for_the_thread_that_writes(archiver: Archiver) -> None:
    sink = await archiver.open()
    release = archiver.hold_puts()
    await archiver.take(*transaction(100, b"1", b"2", b"3"))
    closing = asyncio.create_task(sink.close())
    await turns()
    assert not closing.done()
    release.set()
    await closing
    assert archiver.is_there(1)
