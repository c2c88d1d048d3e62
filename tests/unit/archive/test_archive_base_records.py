"""The form of base snapshots, and what a garbage collection keeps for them."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headrace.archive import collect as collecting
from headrace.archive import file_format, layout
from headrace.archive.bases import BasePart, BaseRecord, Bases, checksum, decode, encode
from headrace.archive.errors import BaseDamagedError, BaseMissingError, FileTakenError
from headrace.archive.layout import file_id, file_name
from headrace.archive.metadata import WalFileInfo
from headrace.archive.registry import register
from headrace.lsn import Position
from tests.support.archive_maker import Maker, rows, table_info

NOW = datetime(2026, 1, 10, tzinfo=UTC)
# Nothing in a name can leave its folder.
TABLE = replace(table_info("orders"), table='../"a/b"\n')


@pytest.fixture
def made(tmp_path: Path) -> Maker:
    """Three files, which are three, two and one days old."""
    made = Maker.with_files(tmp_path, 3)
    for number in (1, 2, 3):
        aged(made, file_name(number), 4 - number)
    return made


def aged(made: Maker, name: str, days: float) -> None:
    then = (NOW - timedelta(days=days)).timestamp()
    os.utime(Path(made.url.removeprefix("file://"), name), (then, then))


def based(made: Maker, number: int, next_id: int, days: float, table: str = "orders") -> BaseRecord:
    """A base without rows, of this age."""
    record = BaseRecord(
        id=f"{number:016X}-00000000",
        archive="made",
        source="headrace",
        system_id="1",
        table=table_info(table),
        lsn=number,
        time_us=0,
        next_id=next_id,
        rows=0,
        parts=(),
    )
    Bases(made.store).complete(record)
    aged(made, layout.base_record(record.id), days)
    return record


def with_rows(made: Maker) -> BaseRecord:
    """A base with a part of twenty rows."""
    info = WalFileInfo(
        id=1,
        archive="base",
        epoch=0,
        writer="maker",
        source="headrace",
        database="",
        system_id="",
        timeline=0,
        from_lsn=100,
        end_lsn=100,
        rows=20,
        first=Position(100, 0),
        last=Position(200, 9),
        tables=(table_info("orders"), table_info("items")),
    )
    data, _ = file_format.encode(rows(0, 20), info)
    name = layout.base_part("one", "attempt", 1)
    made.store.put_new(name, data)
    part = BasePart(name, 20, len(data), checksum(data))
    return BaseRecord("one", "made", "headrace", "1", TABLE, 100, 7, 1, 20, (part,))


def planned(made: Maker, days: float) -> tuple[list[int | None], list[int], int | None]:
    plan = collecting.plan(made.store, timedelta(days=days).total_seconds(), now=NOW)
    return (
        [file_id(item.location) for item in plan.remove],
        [record.lsn for record in plan.bases],
        None if plan.kept_for is None else plan.kept_for.lsn,
    )


def test_a_base_without_its_record_is_not_listed_and_its_record_is_created_once(
    made: Maker,
) -> None:
    bases = Bases(made.store)
    record = with_rows(made)
    assert bases.all() == []
    assert [one.id for one in bases.unfinished()] == ["one"]
    bases.complete(record)
    assert [one.record for one in bases.all()] == [record]
    assert bases.unfinished() == []
    with pytest.raises(FileTakenError):
        bases.complete(replace(record, lsn=101))


def test_a_bases_rows_are_those_of_its_parts_and_other_bytes_are_refused(made: Maker) -> None:
    record = with_rows(made)
    [part] = record.parts
    found = [entry.after for _, entry in Bases(made.store).entries(record, part)]
    assert found == [{"id": number, "note": f"row {number}"} for number in range(20)]
    place = Path(made.url.removeprefix("file://"), part.name)
    place.write_bytes(place.read_bytes()[:-1])
    with pytest.raises(BaseDamagedError, match="not the file that was written"):
        list(Bases(made.store).entries(record, part))
    place.unlink()
    with pytest.raises(BaseMissingError, match="lost its part"):
        list(Bases(made.store).entries(record, part))


def test_a_changed_record_is_refused(made: Maker) -> None:
    data = encode(with_rows(made))
    assert decode(data, "there").lsn == 100
    with pytest.raises(BaseDamagedError, match="there is not the record"):
        decode(data.replace(b'"lsn":100', b'"lsn":101'), "there")
    with pytest.raises(BaseDamagedError, match="format 2"):
        decode(data.replace(b'"format":1', b'"format":2'), "there")
    with pytest.raises(BaseDamagedError, match="malformed"):
        decode(data[:-1], "there")


def test_a_removed_base_leaves_nothing(made: Maker) -> None:
    record = with_rows(made)
    Bases(made.store).complete(record)
    # Of an attempt that was repeated: no record names it.
    made.store.put_new(layout.base_part("one", "other", 1), b"left")
    Bases(made.store).remove(record)
    assert not Path(made.url.removeprefix("file://"), layout.BASES, "one").exists()


def test_files_that_the_oldest_base_needs_stay_and_it_is_named(made: Maker) -> None:
    assert planned(made, 0) == ([1, 2], [], None)
    based(made, 250, 2, days=1)
    assert planned(made, 0) == ([1], [], 250)
    based(made, 100, 1, days=2, table="items")
    assert planned(made, 0) == ([], [], 100)


def test_of_a_tables_bases_the_newest_that_is_old_enough_stays_with_all_younger_ones(
    made: Maker,
) -> None:
    based(made, 100, 1, days=3)
    based(made, 200, 1, days=2)
    based(made, 300, 2, days=1)
    based(made, 400, 3, days=0.1)
    assert planned(made, 4) == ([], [], None), "all are young"
    assert planned(made, 2.5) == ([], [], 100), "its moments are within reach"
    assert planned(made, 1.5) == ([], [100], 200)
    assert planned(made, 0.5) == ([1], [100, 200], 300)
    assert planned(made, 0) == ([1, 2], [100, 200, 300], None)


def test_a_reader_that_is_behind_a_base_keeps_its_files(made: Maker) -> None:
    based(made, 400, 3, days=1)
    register(made.store, "lake", 2)
    assert planned(made, 0)[0] == [1]


def test_a_base_that_is_being_taken_keeps_the_files_since_it_began(made: Maker) -> None:
    Bases(made.store).begin("running")
    aged(made, layout.base_beginning("running"), 1.5)
    made.store.put_new(layout.base_part("running", "attempt", 1), b"")
    assert planned(made, 0) == ([1, 2], [], None)
    aged(made, layout.base_beginning("running"), 2.5)
    assert planned(made, 0) == ([1], [], None)


def test_a_collection_removes_what_it_planned_and_what_was_interrupted_days_ago(
    made: Maker,
) -> None:
    based(made, 100, 1, days=3)
    last = based(made, 300, 3, days=1)
    for name, days in (("old", 3.0), ("new", 1.0)):
        part = layout.base_part(name, "attempt", 1)
        made.store.put_new(part, b"")
        aged(made, part, days)
    collecting.carry_out(made.store, collecting.plan(made.store, 0, now=NOW))
    bases = Bases(made.store)
    assert [one.record for one in bases.all()] == [last]
    assert [one.id for one in bases.unfinished()] == ["new"]
    assert collecting.plan(made.store, 0, now=NOW).remove == ()
