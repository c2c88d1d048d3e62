"""One table restored from the archive into SQLite: whole, of its moment, under its name, or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest

from headrace.archive.errors import ArchiveError
from headrace.archive.layout import file_name
from headrace.cli.archive.replay import into_database, restore_one
from headrace.cli.archive.replay_bases import BaseLoading
from headrace.cli.archive.replay_range import ReplayRange, ReplayRun
from headrace.cli.restore import logical
from headrace.cli.restore.wanted import RestoreMoment, RowsWanted, Wanted
from headrace.errors import HeadraceError
from headrace.mirror import opened
from headrace.mirror.mirror_state import Book
from headrace.mirror.target import ForeignTableError
from tests.support.archive_maker import Maker
from tests.unit.cli.test_replay_bases import based, decades, ids


@pytest.fixture
def made(tmp_path: Path) -> Maker:
    """Orders committed at the LSNs 100, 300 and 500, items at 200, 400 and 600, ten rows each."""
    made = Maker.with_files(tmp_path, 3)
    based(made, "orders", 350, 2, [0, 20])
    return made


def run_of(made: Maker, table: str, end: str | None, called: str) -> ReplayRun:
    return ReplayRun(ReplayRange(made.url, None, end, (f"public.{table}",), called=called))


def restored(made: Maker, target: Path, table: str, end: str | None, called: str) -> None:
    async def restore() -> None:
        async with opened(f"sqlite:///{target}") as there:
            await restore_one(run_of(made, table, end, called), there)

    asyncio.run(restore())


def tables(target: Path) -> set[str]:
    query = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'headrace%'"
    with contextlib.closing(sqlite3.connect(target)) as connection:
        return {row[0] for row in connection.execute(query)}


def test_tables_of_several_moments_come_into_one_file(made: Maker, tmp_path: Path) -> None:
    target = tmp_path / "restored.db"
    restored(made, target, "orders", None, "now")
    restored(made, target, "orders", "0/15F", "earlier")
    restored(made, target, "orders", "0/65", "first")
    restored(made, target, "items", "0/191", "items")
    assert ids(target, "now") == decades(0, 20, 40)
    assert ids(target, "earlier") == decades(0, 20)
    assert ids(target, "first") == decades(0)
    assert ids(target, "items") == decades(10, 30)


def test_a_name_that_is_taken_is_refused_and_its_table_stays(made: Maker, tmp_path: Path) -> None:
    target = tmp_path / "restored.db"
    restored(made, target, "orders", "0/65", "copy")
    for table in ("orders", "items"):
        with pytest.raises(ForeignTableError, match="exists there already"):
            restored(made, target, table, None, "copy")
    assert ids(target, "copy") == decades(0)


def test_a_replays_target_is_refused(made: Maker, tmp_path: Path) -> None:
    target = tmp_path / "replay.db"
    replay = ReplayRun(ReplayRange(made.url, tables=("public.items",)))
    asyncio.run(into_database(replay, f"sqlite:///{target}"))
    with pytest.raises(ArchiveError, match="contains a mirror or a replay"):
        restored(made, target, "orders", None, "orders_restored")
    assert tables(target) == {"items"}


def test_nothing_is_left_of_a_table_that_was_not_there(made: Maker, tmp_path: Path) -> None:
    target = tmp_path / "restored.db"
    with pytest.raises(ArchiveError, match="knows no row of the table from before that moment"):
        restored(made, target, "items", "0/65", "items_restored")
    with pytest.raises(HeadraceError, match=r"contains no change of public\.itms"):
        restored(made, target, "itms", None, "itms_restored")
    assert tables(target) == set()


def test_a_load_that_was_interrupted_does_not_decide_the_name(made: Maker, tmp_path: Path) -> None:
    target = tmp_path / "restored.db"

    async def interrupted() -> None:
        async with opened(f"sqlite:///{target}") as there:
            book = Book(there)
            await book.open()
            await BaseLoading(book, run_of(made, "orders", None, "one")).load()

    asyncio.run(interrupted())
    restored(made, target, "orders", None, "other")
    assert tables(target) == {"other"}
    assert ids(target, "other") == decades(0, 20, 40)


def test_a_base_from_before_the_first_file_needs_no_earlier_file(tmp_path: Path) -> None:
    """The log between the two contained no change, as the archiver's mark proved."""
    made = Maker(f"file://{tmp_path}/archive")
    based(made, "orders", 30, 1, [1000])
    made.write()
    target = tmp_path / "restored.db"
    restored(made, target, "orders", None, "orders")
    assert ids(target, "orders") == [*decades(0), *decades(1000)]
    made.write()
    made.store.delete(file_name(1))
    with pytest.raises(ArchiveError, match="does not reach back"):
        restored(made, target, "orders", None, "again")


@pytest.mark.parametrize(
    ("moment", "reached"),
    [
        (RestoreMoment(at="1970-01-05T23:59Z"), True),
        (RestoreMoment(at="1970-01-06T00:00Z"), False),
        (RestoreMoment(lsn="0/259"), True),
        (RestoreMoment(lsn="0/25A"), False),
        (RestoreMoment(), True),
    ],
)
def test_a_moment_that_the_archive_does_not_reach_is_refused(
    made: Maker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: RestoreMoment,
    reached: bool,
) -> None:
    monkeypatch.setenv("HEADRACE_ARCHIVE_URL", made.url)
    target = tmp_path / "restored.db"
    wanted = Wanted(
        None,
        "orders",
        moment,
        f"sqlite:///{target}",
        None,
        RowsWanted(False, None, False, False),
        None,
        (),
        None,
        False,
        False,
    )
    if reached:
        logical.run(wanted, [])
        assert ids(target, "orders_restored") == decades(0, 20, 40)
        return
    with pytest.raises(HeadraceError, match="does not show everything from before that moment"):
        logical.run(wanted, [])
    assert not target.exists()
