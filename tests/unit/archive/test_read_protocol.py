"""The steps of a reading: which requests a reader makes, and what it concludes from the answers.

Nothing is executed: a store is a dictionary, and each request is noted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.archive import file_format, read_protocol
from headrace.archive.errors import (
    ArchiveError,
    WalFileCollectedError,
    WalFileCorruptError,
    WalFileMissingError,
)
from headrace.archive.file_format import ALL, RowSelection
from headrace.archive.layout import file_name
from headrace.archive.metadata import WalFileInfo
from headrace.archive.read_protocol import (
    Content,
    ListedFile,
    ReaderMetrics,
    Seen,
    Steps,
    T,
    WalReaderOptions,
)
from headrace.archive.store import ByteRange, Fetched, Get, Head, Names, ObjectMetadata, Wait
from headrace.lsn import Gap, Position
from tests.support.archive_maker import DAY_US, rows, table_info

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OPTIONS = WalReaderOptions()


def made(file_id: int, groups: int = 1, size: int = 10) -> bytes:
    """A file of transactions of ten rows each."""
    first = (file_id - 1) * groups * size
    writer = file_format.WalFileEncoder()
    for number in range(groups):
        writer.add(rows(first + number * size, size))
    count = groups * size
    last = first + count - 1
    info = WalFileInfo(
        file_id,
        "a",
        1,
        "w",
        "s",
        "d",
        "1",
        1,
        1,
        9,
        count,
        Position((first // 10 + 1) * 100, 0),
        Position((last // 10 + 1) * 100, last % 10),
        time_us=last // 10 * DAY_US,
        tables=(table_info("orders"),),
    )
    return writer.finish(info)[0]


class Objects:
    """A store that answers from memory, and notes what it is asked for."""

    def __init__(self, *ids: int, others: Mapping[str, bytes] | None = None) -> None:
        self.data = {file_name(one): made(one) for one in ids} | dict(others or {})
        self.asked: list[Any] = []

    def item(self, name: str) -> ObjectMetadata:
        return ObjectMetadata(name, len(self.data[name]), NOW)

    def answer(self, request: Any) -> Any:
        self.asked.append(request)
        match request:
            case Names(after, limit):
                return [self.item(name) for name in sorted(self.data) if name > after][:limit]
            case Wait():
                return None
        data = self.data.get(request.name)
        if data is None:
            return None
        match request:
            case Head(name):
                return self.item(name)
            case Get(name, None):
                return Fetched(self.item(name), data)
            case Get(name, tail):
                return Fetched(self.item(name), data[-(tail or 0) :])
            case ByteRange(name, start, stop):
                return Fetched(self.item(name), data[start:stop])

    def run(self, steps: Steps[T]) -> T:
        answer = None
        try:
            while True:
                answer = self.answer(steps.send(answer))
        except StopIteration as end:
            found: T = end.value
            return found


def open_one(store: Objects, file_id: int, seen: Seen | None = None, **more: Any) -> Any:
    options = more.pop("options", OPTIONS)
    known = Seen() if seen is None else seen
    return store.run(read_protocol.open_file(file_id, options, known, **more))


def test_an_existing_file_costs_one_request() -> None:
    store, seen = Objects(1, 2), Seen()
    opened = open_one(store, 2, seen)
    assert (opened.info.id, seen.highest) == (2, 2)
    assert store.asked == [Get(file_name(2), OPTIONS.tail_bytes)]
    assert opened.data == store.data[file_name(2)]


def test_a_footer_that_is_longer_than_the_tail_is_fetched_once_more() -> None:
    store = Objects(1)
    data = store.data[file_name(1)]
    need = file_format.footer_bytes(data) + file_format.SEAL_BYTES
    for tail, requests in ((need, 1), (need - 1, 2), (8, 2)):
        store.asked.clear()
        opened = open_one(store, 1, options=replace(OPTIONS, tail_bytes=tail))
        assert opened.info.id == 1
        assert opened.data is None
        assert store.asked == [Get(file_name(1), tail), Get(file_name(1), need)][:requests]


def test_a_file_that_is_gone_when_its_footer_is_fetched_is_reported() -> None:
    steps = read_protocol.open_file(1, replace(OPTIONS, tail_bytes=8), Seen())
    request: Any = next(steps)
    store = Objects(1, 2)
    request = steps.send(store.answer(request))
    assert request.tail_bytes > 8
    listing: Any = steps.send(None)
    del store.data[file_name(1)]
    with pytest.raises(WalFileCollectedError, match="the first one is now 2"):
        steps.send(store.answer(listing))


def test_a_file_that_is_not_written_yet_is_none_and_a_poll_is_one_request() -> None:
    store, seen = Objects(1), Seen(highest=1)
    assert open_one(store, 2, seen, polling=True) is None
    assert len(store.asked) == 4, "the file, a listing, the file after it, the one before"
    store.asked.clear()
    assert open_one(store, 2, seen, polling=True) is None
    assert [type(request) for request in store.asked] == [Get]
    store.asked.clear()
    assert open_one(store, 2, seen) is None
    assert len(store.asked) == 4, "who does not wait looks each time"


@pytest.mark.parametrize(("elapsed", "requests"), [(4.9, 1), (5.0, 4)])
def test_while_it_polls_a_reader_looks_for_later_files_now_and_then(
    monkeypatch: pytest.MonkeyPatch, elapsed: float, requests: int
) -> None:
    now = 1000.0

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now

    monkeypatch.setattr(read_protocol, "time", Clock)
    store, seen = Objects(1), Seen(highest=1)
    open_one(store, 2, seen, polling=True)
    now += elapsed
    store.asked.clear()
    open_one(store, 2, seen, polling=True)
    assert len(store.asked) == requests


def test_an_earlier_file_than_the_last_look_saw_is_looked_for_again() -> None:
    store, seen = Objects(1), Seen(highest=1)
    open_one(store, 3, seen, polling=True)
    store.asked.clear()
    assert open_one(store, 2, seen, polling=True) is None
    assert len(store.asked) > 1


def test_a_file_that_was_seen_before_or_has_a_later_one_is_gone() -> None:
    store = Objects(1, 3)
    with pytest.raises(WalFileMissingError, match=r"file 2 .*, though a later file exists"):
        open_one(store, 2)
    with pytest.raises(WalFileMissingError, match=r"file 4 .* used to be the end"):
        open_one(store, 4, Seen(highest=4))
    with pytest.raises(WalFileMissingError, match=r"file 3 .* used to be the end"):
        open_one(Objects(1), 4, Seen(highest=3))
    with pytest.raises(WalFileCollectedError, match=r"file 1 was removed .* now 3"):
        open_one(Objects(3), 1)
    with pytest.raises(WalFileMissingError, match=r"file 1 .* used to be the end"):
        open_one(Objects(), 1, Seen(highest=1))


def test_the_last_file_is_never_collected_so_one_that_is_gone_is_the_end_that_was_lost() -> None:
    """No later file exists, and the one that was read before is gone."""
    with pytest.raises(WalFileMissingError, match=r"file 1 .* used to be the end"):
        open_one(Objects(), 2, Seen(highest=1))
    assert open_one(Objects(), 1) is None
    # Nothing is known of the file before.
    assert open_one(Objects(), 3) is None


def test_a_later_file_is_found_though_the_listing_does_not_show_it() -> None:
    steps = read_protocol.open_file(1, OPTIONS, Seen())
    next(steps)
    assert steps.send(None) == Names(file_name(1), 1)
    assert steps.send([]) == Head(file_name(2))
    assert steps.send(ObjectMetadata(file_name(2), 1, NOW)) == Get(file_name(1), OPTIONS.tail_bytes)


def test_other_objects_are_no_later_files() -> None:
    assert open_one(Objects(1, others={"readers/lake.json": b"{}"}), 2) is None


def test_there_is_no_file_before_the_first() -> None:
    for file_id in (0, -1):
        with pytest.raises(WalFileMissingError, match=f"there is no file {file_id}"):
            open_one(Objects(1), file_id)


def test_a_copy_of_another_file_is_refused_by_name() -> None:
    store = Objects(1, 2)
    store.data[file_name(2)] = store.data[file_name(1)]
    with pytest.raises(WalFileCorruptError, match=r"file 2 .* its content is that of file 1"):
        open_one(store, 2)


def test_a_reading_may_begin_at_the_end_and_not_behind_it() -> None:
    def begin(file_id: int, store: Objects) -> Any:
        return store.run(read_protocol.begin_at_end(file_id, OPTIONS, Seen()))

    assert begin(1, Objects()) is None
    assert begin(3, Objects(1, 2)) is None
    with pytest.raises(WalFileMissingError, match="the archive ends before file 3"):
        begin(4, Objects(1, 2))
    assert begin(4, Objects(4)).info.id == 4, "made since, and the one before was collected"


def test_the_first_file_that_is_left_is_found_among_other_objects() -> None:
    def first(store: Objects) -> int:
        return store.run(read_protocol.first_left())

    assert first(Objects()) == 1
    assert first(Objects(3, 4)) == 3
    assert first(Objects(3, others={"00000000000000000001.txt": b""})) == 3
    assert first(Objects(others={"00000000000000000001.txt": b""})) == 1


def listed(store: Objects, first: int, stop: int | None, seen: Seen | None = None) -> list[int]:
    return [one.id for one in store.run(read_protocol.list_files(first, stop, seen))]


def test_a_listing_has_the_files_between_two_ids() -> None:
    store = Objects(1, 2, 3, 4, others={"readers/lake.json": b"{}"})
    assert listed(store, 1, None) == listed(store, -5, None) == [1, 2, 3, 4]
    assert listed(store, 2, 4) == [2, 3]
    assert listed(store, 5, None) == []
    seen = Seen(highest=2)
    listed(store, 1, None, seen)
    assert seen.highest == 4
    listed(store, 1, 3, seen)
    assert seen.highest == 4
    assert len(store.asked) == 6, "one request each"


def test_a_listing_with_a_hole_is_asked_once_more() -> None:
    store = Objects(1, 3)
    assert listed(store, 1, None) == [1, 3]
    assert len(store.asked) == 2
    store.asked.clear()
    assert listed(store, 2, None) == [3]
    assert len(store.asked) == 2, "the first of them is missing"
    store.asked.clear()
    assert listed(Objects(3, 4), 1, None) == [3, 4]
    assert listed(store, 3, None) == [3]
    assert len(store.asked) == 1
    assert ListedFile(3, store.item(file_name(3))).next_id == 4


def found(store: Objects, lsn: int) -> Any:
    steps = read_protocol.find(lambda info: info.last.lsn >= lsn, OPTIONS, Seen())
    return store.run(steps)


@pytest.mark.parametrize(("lsn", "file_id"), [(0, 2), (200, 2), (201, 3), (500, 5), (501, 6)])
def test_the_first_file_behind_a_place_is_found_by_halving(lsn: int, file_id: int) -> None:
    store = Objects(2, 3, 4, 5)
    number, first = found(store, lsn)
    assert number == file_id
    assert (first is not None) is (file_id == 2), "only the first one may lack what was before"
    assert len(store.asked) <= 4


def test_in_an_empty_archive_the_first_file_is_the_one_to_come() -> None:
    assert found(Objects(), 1) == (1, None)


def test_a_search_among_files_that_go_all_the_time_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = 0

    def halved(*_: object) -> Steps[Any]:
        nonlocal attempts
        attempts += 1
        yield Head(file_name(1))
        raise WalFileCollectedError("gone")

    monkeypatch.setattr(read_protocol, "_halved", halved)
    with pytest.raises(WalFileCollectedError, match="removed faster than"):
        found(Objects(1), 1)
    assert attempts == read_protocol.FIND_ATTEMPTS == 10


def test_a_reader_waits_between_polls() -> None:
    store = Objects(1)
    steps = read_protocol.await_file(2, replace(OPTIONS, poll_interval_s=0.25), Seen(highest=1))
    request: Any = next(steps)
    while not isinstance(request, Wait):
        request = steps.send(store.answer(request))
    assert request == Wait(0.25)
    store.data[file_name(2)] = made(2)
    with pytest.raises(StopIteration) as end:
        steps.send(store.answer(steps.send(None)))
    assert end.value.value.info.id == 2


def content_of(
    store: Objects, selection: RowSelection, tail: int = 6000, **more: Any
) -> tuple[Content, list[Any]]:
    options = replace(OPTIONS, tail_bytes=tail)
    opened = open_one(store, 1, options=options)
    if more.pop("older", False):
        opened = replace(opened, info=replace(opened.info, page_checksums=False))
    store.asked.clear()
    chosen = file_format.groups(opened.footer, selection, opened.info)
    steps = read_protocol.content(opened, chosen, replace(options, **more), Seen())
    return store.run(steps), store.asked


def large() -> Objects:
    return Objects(others={file_name(1): made(1, groups=4, size=1000)})


def test_a_small_file_came_with_its_footer() -> None:
    found, asked = content_of(Objects(1), ALL, tail=1 << 20)
    assert (found.whole, asked) == (True, [])


def test_a_part_of_a_file_is_fetched_where_that_is_the_smaller_one() -> None:
    store = large()
    data = store.data[file_name(1)]
    last = RowSelection(after=(30_100, 0))
    found, asked = content_of(store, last)
    info = file_format.info_of(file_format.footer_of(data))
    start, stop, _ = info.groups[3]
    assert asked == [ByteRange(file_name(1), start, stop)]
    assert (found.whole, found.wanted) == (False, (3,))
    assert found.data[start:stop] == data[start:stop]
    assert len(found.data) == len(data)
    most, asked = content_of(store, RowSelection(after=(10_100, 0)))
    assert (most.whole, asked) == (True, [Get(file_name(1))])


def test_without_checksums_of_its_pages_a_file_is_verified_as_a_whole() -> None:
    last = RowSelection(after=(30_100, 0))
    found, _ = content_of(large(), last, older=True)
    assert found.whole
    found, _ = content_of(large(), last, older=True, verify=False)
    assert not found.whole


@pytest.mark.parametrize("selection", [ALL, RowSelection(after=(30_100, 0))])
def test_a_file_that_is_gone_when_its_rows_are_fetched_is_reported(
    selection: RowSelection,
) -> None:
    store = large()
    options = replace(OPTIONS, tail_bytes=6000)
    opened = open_one(store, 1, options=options)
    store.data.clear()
    chosen = file_format.groups(opened.footer, selection, opened.info)
    with pytest.raises(ArchiveError, match="file 1"):
        store.run(read_protocol.content(opened, chosen, options, Seen(highest=1)))


INFO = file_format.info_of(file_format.footer_of(made(3)))


@pytest.mark.parametrize(
    ("selection", "wanted"),
    [
        (ALL, True),
        (RowSelection(before_lsn=300), False),
        (RowSelection(before_lsn=301), True),
        (RowSelection(after=Position(300, 9)), False),
        (RowSelection(after=Position(300, 8)), True),
        (RowSelection(from_time_us=2 * DAY_US), True),
        (RowSelection(from_time_us=2 * DAY_US + 1), False),
        (RowSelection(tables=(("public", "orders"),)), True),
        (RowSelection(tables=(("public", "items"),)), False),
    ],
)
def test_a_file_is_left_out_by_its_own_account(selection: RowSelection, *, wanted: bool) -> None:
    assert (INFO.first.lsn, INFO.last, INFO.time_us) == (300, Position(300, 9), 2 * DAY_US)
    assert read_protocol.interesting(INFO, selection) is wanted


def test_a_file_with_a_gap_concerns_every_table_and_begins_where_that_does() -> None:
    gap = replace(INFO, gap=Gap(250, 301, "slot_moved"))
    assert read_protocol.interesting(gap, RowSelection(tables=(("public", "items"),)))
    assert read_protocol.interesting(gap, RowSelection(before_lsn=251))
    assert not read_protocol.interesting(gap, RowSelection(before_lsn=250))


def test_answers_are_counted() -> None:
    metrics = ReaderMetrics()
    item = ObjectMetadata("a", 5, NOW)
    for answer in (None, item, Fetched(item, b"abc"), [item]):
        metrics.count(answer)
    assert (metrics.requests, metrics.not_found, metrics.bytes) == (4, 1, 3)


def test_tables_are_named_as_commands_name_them() -> None:
    options = WalReaderOptions(tables=("app.users", "orders"))
    assert options.wanted == (("app", "users"), ("public", "orders"))
    assert WalReaderOptions().wanted == ()
