"""A sink reads what the stream has discarded from an archive's files: whole transactions, in parts
if they are large, and nothing if the archive ends before the stream begins.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.consumer import Transaction, Watermark
from headrace.lsn import Position
from headrace.settings import load
from headrace.sink import catching_up
from headrace.sink.catching_up import CatchingUp
from headrace.sinks.from_archive import ArchiveBehindError, ArchiveRange, ForeignArchiveError
from headrace.sinks.routing import Router
from tests.support.archive_maker import Maker
from tests.support.memory_sink import MemorySink, Target

# Each of the archive's transactions has ten rows; the second file ends inside the third one.
FILES = (20, 4, 16, 20)
THIRD = 300


def archive(folder: Path, files: tuple[int, ...] = FILES) -> str:
    maker = Maker(f"file://{folder}/archive")
    for count in files:
        maker.write(count)
    return maker.url


def shown(transaction: Transaction) -> tuple[list[tuple[int, int]], bool]:
    """The positions of its events, and whether it ends."""
    return [(e.position.lsn, e.position.seq) for e in transaction.events], transaction.ends


def positions(lsn: int, first: int, last: int) -> list[tuple[int, int]]:
    return [(lsn, ordinal) for ordinal in range(first, last + 1)]


def test_a_large_transaction_comes_in_parts_of_which_the_last_one_ends(tmp_path: Path) -> None:
    chosen = ArchiveRange(archive(tmp_path), "headrace", Position(200, 4), THIRD, events_max=4)
    found = list(chosen.transactions())
    assert list(map(shown, found)) == [
        (positions(200, 5, 8), False),
        (positions(200, 9, 9), True),
        (positions(300, 0, 3), False),
        (positions(300, 4, 7), False),
        (positions(300, 8, 9), True),
    ]
    lasts = [event.position for one in found for event in one.events if event.payload["tx"]["last"]]
    assert lasts == [Position(200, 9), Position(300, 9)]


def test_a_transaction_of_just_the_limit_is_whole(tmp_path: Path) -> None:
    chosen = ArchiveRange(archive(tmp_path), "headrace", Position(100, 9), THIRD, events_max=10)
    assert [(len(one.events), one.ends) for one in chosen.transactions()] == [(10, True)] * 2


@pytest.mark.parametrize("files", [(20,), (20, 4)])
def test_an_archive_that_lacks_the_end_of_the_range_gives_not_even_a_part(
    tmp_path: Path, files: tuple[int, ...]
) -> None:
    url = archive(tmp_path, files)
    chosen = ArchiveRange(url, "headrace", Position(100, 4), THIRD, events_max=2)
    with pytest.raises(ArchiveBehindError):
        next(chosen.transactions())


def test_an_archive_that_ends_with_the_range_is_enough(tmp_path: Path) -> None:
    chosen = ArchiveRange(archive(tmp_path, (20, 4, 6)), "headrace", Position(200, 9), THIRD)
    assert list(map(shown, chosen.transactions())) == [(positions(300, 0, 9), True)]


def test_the_archive_of_another_source_is_refused(tmp_path: Path) -> None:
    chosen = ArchiveRange(archive(tmp_path), "other", Position(100, 4), THIRD)
    with pytest.raises(ForeignArchiveError):
        next(chosen.transactions())


async def test_parts_are_committed_with_the_end_of_their_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catching_up, "EVENTS_MAX", 5)
    target = Target()
    sink = MemorySink(target)
    await sink.open()
    # Neither is needed for what comes from files.
    unused: Any = None
    settings = load({"HEADRACE_SLOT": "headrace"})
    catching = CatchingUp(unused, settings, unused, Router(), sink)
    marks = {"headrace": Watermark(Position(100, 4), 0)}
    chosen = ArchiveRange(archive(tmp_path), "headrace", Position(100, 4), THIRD, events_max=4)
    await catching._replay(chosen, marks)
    # Five rows are left of the first transaction.
    assert target.commits == [5, 15, 25]
    assert target.marks == {"headrace": Watermark(Position(300, 9), 0)}
