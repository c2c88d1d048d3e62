"""A replay from bases at different LSNs, into SQLite: each row once, and no table ahead of others."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.archive import file_format
from headrace.archive.bases import BasePart, BaseRecord, Bases, checksum
from headrace.archive.layout import base_part, file_name
from headrace.archive.metadata import WalFileInfo
from headrace.cli.archive.replay import into_database
from headrace.cli.archive.replay_range import ReplayRange, ReplayRun
from headrace.consumer import Watermark
from headrace.lsn import Position
from headrace.mirror import opened
from headrace.mirror.mirror_state import SEEN, Book
from tests.support.archive_maker import DAY_US, Maker, rows, table_info


@pytest.fixture
def made(tmp_path: Path) -> Maker:
    """Orders committed at the LSNs 100, 300 and 500, items at 200, 400 and 600, ten rows each: row
    `n` has the id `n`. The first file, up to 200, was removed.
    """
    made = Maker.with_files(tmp_path, 3)
    based(made, "orders", 350, 2, [0, 20])
    based(made, "items", 550, 3, [10, 30])
    made.store.delete(file_name(1))
    return made


def based(made: Maker, table: str, lsn: int, next_id: int, firsts: Sequence[int]) -> None:
    """A base with a part for each ten rows."""
    parts = []
    for number, first in enumerate(firsts, 1):
        info = WalFileInfo(
            id=number,
            archive="base",
            epoch=0,
            writer="maker",
            source="headrace",
            database="",
            system_id="",
            timeline=0,
            from_lsn=lsn,
            end_lsn=lsn,
            rows=10,
            first=Position(first * 10 + 100, 0),
            last=Position(first * 10 + 100, 9),
            tables=(table_info(table),),
        )
        data, _ = file_format.encode(rows(first, 10), info)
        name = base_part(f"{table}-{lsn}", "attempt", number)
        made.store.put_new(name, data)
        parts.append(BasePart(name, 10, len(data), checksum(data)))
    Bases(made.store).complete(
        BaseRecord(
            f"{table}-{lsn}",
            "made",
            "headrace",
            "1",
            table_info(table),
            lsn,
            lsn // 100 * DAY_US,
            next_id,
            10 * len(parts),
            tuple(parts),
        )
    )


def replayed(
    made: Maker, target: Path, *tables: str, begin: str | None = None, end: str | None = None
) -> str:
    run = ReplayRun(ReplayRange(made.url, begin, end, tables))
    asyncio.run(into_database(run, f"sqlite:///{target}"))
    return run.summary()


def ids(target: Path, table: str) -> list[int]:
    with contextlib.closing(sqlite3.connect(target)) as connection:
        return [row[0] for row in connection.execute(f"SELECT id FROM {table} ORDER BY id")]


def decades(*firsts: int) -> list[int]:
    return [first + number for first in firsts for number in range(10)]


def test_rows_of_a_base_and_the_changes_after_it_come_once(made: Maker, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    said = replayed(made, target)
    assert said.startswith("40 rows loaded from 2 bases, 20 changes replayed")
    assert ids(target, "orders") == decades(0, 20, 40)
    assert ids(target, "items") == decades(10, 30, 50)
    assert replayed(made, target).startswith("0 changes replayed")
    made.write()
    assert replayed(made, target).startswith("20 changes replayed")
    assert ids(target, "orders") == decades(0, 20, 40, 60)


def test_only_bases_of_before_the_end_are_used(made: Maker, tmp_path: Path) -> None:
    for number, (end, wanted) in enumerate(
        (("0/1C2", decades(0, 20)), ("0/15E", decades(0, 20)), ("1970-01-05", decades(0, 20)))
    ):
        target = tmp_path / f"copy{number}.db"
        replayed(made, target, "public.orders", end=end)
        assert ids(target, "orders") == wanted, end
    target = tmp_path / "earlier.db"
    said = replayed(made, target, "public.orders", end="0/15D")
    assert "loaded" not in said, "its base is from after the end"


def test_a_start_that_is_named_and_a_mirrors_target_use_no_base(
    made: Maker, tmp_path: Path
) -> None:
    named = tmp_path / "named.db"
    assert "loaded" not in replayed(made, named, "public.orders", begin="2")
    assert ids(named, "orders") == decades(20, 40)
    mirror = tmp_path / "mirror.db"

    async def follow() -> None:
        async with opened(f"sqlite:///{mirror}") as target:
            book = Book(target)
            await book.open()
            book.keep_lanes({SEEN: Watermark(stream_seq=7)})
            await book.commit()

    asyncio.run(follow())
    assert "loaded" not in replayed(made, mirror, "public.orders")


def test_a_load_that_failed_is_continued_and_one_of_a_removed_base_starts_again(
    made: Maker, tmp_path: Path
) -> None:
    place = Path(made.url.removeprefix("file://"), base_part("items-550", "attempt", 2))
    away = place.rename(tmp_path / "away")
    target = tmp_path / "copy.db"
    with pytest.raises(Exception, match="has lost its part"):
        replayed(made, target)
    with contextlib.closing(sqlite3.connect(target)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE name = 'orders'")
        assert names.fetchall() == [], "readers see no table before all are loaded"
    away.rename(place)
    [items] = [one.record for one in Bases(made.store).all() if one.record.id == "items-550"]
    Bases(made.store).remove(items)
    based(made, "items", 450, 3, [10, 30])
    replayed(made, target)
    assert ids(target, "orders") == decades(0, 20, 40)
    assert ids(target, "items") == decades(10, 30, 50)
