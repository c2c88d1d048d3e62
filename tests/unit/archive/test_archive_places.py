"""The start of a reader, and its error if the archive no longer contains it: nothing is skipped
silently.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headrace.archive import (
    AsyncWalReader,
    Gap,
    WalFileCollectedError,
    WalGapError,
    WalReader,
    WalReaderOptions,
    read_protocol,
)
from headrace.archive.file_format import RowSelection
from headrace.archive.layout import file_name
from headrace.archive.read_protocol import Seen
from headrace.archive.store import Fetched, Get, Names, ObjectMetadata, Request
from headrace.lsn import Position
from tests.support.archive_maker import Maker

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def made(tmp_path: Path) -> Maker:
    """Five files of two transactions each, at the LSNs 100 to 1000, of which the first three were
    collected.
    """
    maker = Maker.with_files(tmp_path, 5)
    for file_id in range(1, 4):
        maker.store.delete(file_name(file_id))
    return maker


def answered(
    work: read_protocol.Steps[read_protocol.T], request: Request
) -> read_protocol.Steps[read_protocol.T]:
    """The rest of the steps, from a request on."""
    try:
        while True:
            request = work.send((yield request))
    except StopIteration as end:
        found: read_protocol.T = end.value
        return found


def begun(made: Maker, **place: object) -> list[int]:
    entries = WalReader(made.url).follow(**place, wait=False)  # type: ignore[arg-type]  # each place has its own type
    return sorted({entry.commit_lsn for entry in entries})


@pytest.mark.parametrize(
    "place",
    [
        {"from_id": 3},
        {"from_lsn": 600},
        {"from_time": datetime(1970, 1, 6, tzinfo=UTC)},
        {"after": Position(600, 8)},
        {"after": Position(500, 9)},
    ],
)
def test_a_place_in_what_was_collected_is_refused(made: Maker, place: dict[str, object]) -> None:
    with pytest.raises(WalFileCollectedError):
        begun(made, **place)


@pytest.mark.parametrize(
    "place",
    [
        {},
        {"from_id": 4},
        {"from_lsn": 601},
        {"from_lsn": 700},
        {"from_time": datetime(1970, 1, 7, tzinfo=UTC)},
        {"after": Position(600, 9)},
    ],
)
def test_a_place_at_the_edge_of_what_is_left_is_none_too_early(
    made: Maker, place: dict[str, object]
) -> None:
    assert begun(made, **place) == [700, 800, 900, 1000]


def test_a_reader_goes_on_behind_a_row_in_the_middle_of_a_transaction(made: Maker) -> None:
    found = [
        entry.position for entry in WalReader(made.url).follow(after=Position(900, 3), wait=False)
    ]
    assert found == [Position(lsn, seq) for lsn in (900, 1000) for seq in range(10)][4:]
    assert begun(made, after=Position(1000, 9)) == []


def test_an_lsn_before_the_archive_began_is_refused(tmp_path: Path) -> None:
    made = Maker(f"file://{tmp_path}/young")
    info = made.write()
    assert begun(made, from_lsn=info.from_lsn) == [100, 200]
    with pytest.raises(WalFileCollectedError, match="file 1, the first one, starts at 0/28"):
        begun(made, from_lsn=info.from_lsn - 1)


def test_a_gap_before_a_time_is_told_to_who_begins_at_that_time(made: Maker) -> None:
    made.write(10, gap=Gap(1000, 1050, "slot_moved"))
    with pytest.raises(WalGapError):
        begun(made, from_time=datetime(1970, 1, 11, tzinfo=UTC))


def test_a_filter_that_ends_inside_a_gap_is_told_of_it(made: Maker) -> None:
    info = made.write(10, gap=Gap(1000, 1101, "slot_moved"))
    assert read_protocol.interesting(info, RowSelection(before_lsn=1050))
    assert not read_protocol.interesting(replace(info, gap=None), RowSelection(before_lsn=1050))


def test_a_file_that_is_made_while_it_is_asked_for_is_not_taken_for_a_collected_one(
    made: Maker,
) -> None:
    data = Path(made.url.removeprefix("file://"), file_name(4)).read_bytes()
    there = Fetched(ObjectMetadata(file_name(4), len(data), NOW), data)
    asking = read_protocol.open_file(4, WalReaderOptions(), Seen())
    assert isinstance(next(asking), Get)
    assert isinstance(asking.send(None), Names)
    # Files 4 and 5 came between the two requests.
    assert isinstance(asking.send([ObjectMetadata(file_name(5), 1, NOW)]), Get)
    with pytest.raises(StopIteration) as end:
        asking.send(there)
    assert end.value.value.info.id == 4


def test_a_listing_that_saw_a_later_file_before_an_earlier_one_is_asked_again() -> None:
    listing = read_protocol.list_files(1, None)
    next(listing)
    seen = [ObjectMetadata(file_name(number), 1, NOW) for number in (1, 2, 4)]
    assert isinstance(listing.send(seen), Names)
    with pytest.raises(StopIteration) as end:
        listing.send([ObjectMetadata(file_name(number), 1, NOW) for number in (1, 2, 3, 4, 5)])
    assert [number for number, _ in end.value.value] == [1, 2, 3, 4]


def test_a_listing_from_a_file_on_that_lacks_it_is_asked_again() -> None:
    listing = read_protocol.list_files(3, None)
    next(listing)
    assert isinstance(listing.send([ObjectMetadata(file_name(4), 1, NOW)]), Names)
    with pytest.raises(StopIteration) as end:
        listing.send([ObjectMetadata(file_name(number), 1, NOW) for number in (3, 4)])
    assert [number for number, _ in end.value.value] == [3, 4]


def test_a_place_is_found_though_files_go_while_it_is_looked_for(made: Maker) -> None:
    reader = WalReader(made.url)
    listed = [ObjectMetadata(file_name(number), 1, NOW) for number in range(1, 6)]
    finding = read_protocol.find(lambda info: info.last.lsn >= 900, WalReaderOptions(), Seen())
    assert isinstance(next(finding), Names)
    # Of the listed files the first three are gone when they are asked for.
    request = finding.send(listed)
    assert reader.run(answered(finding, request))[0] == 5


def test_polling_an_idle_archive_goes_on_costing_one_request(made: Maker) -> None:
    reader = WalReader(made.url)
    assert reader.get(6) is None
    before = reader.metrics.requests
    assert reader.get(6) is None
    assert reader.metrics.requests == before + 1


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_reading_without_a_place_begins_with_what_collection_leaves(
    made: Maker, monkeypatch: pytest.MonkeyPatch, blocking: bool
) -> None:
    """Garbage collection removes the first file after each of two listings."""
    for _ in range(2):
        made.write()
    first = read_protocol.first_left
    removed: list[int] = []

    def collected_since() -> read_protocol.Steps[int]:
        found = yield from first()
        if len(removed) < 2:
            removed.append(found)
            Path(made.url.removeprefix("file://"), file_name(found)).unlink()
        return found

    monkeypatch.setattr(read_protocol, "first_left", collected_since)
    if blocking:
        found = [file.id for file in WalReader(made.url).files()]
    else:
        found = [file.id async for file in AsyncWalReader(made.url).files()]
    assert (removed, found) == ([4, 5], [6, 7])
