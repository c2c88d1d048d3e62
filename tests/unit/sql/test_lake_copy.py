"""The copy shows each cut as another reader of the lake does, and all tables at one cut."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from headrace.lake.compaction import compact
from headrace.lsn import format_lsn
from headrace.sql import lake_copy_tables
from headrace.sql.lake_copy import CopyEmptyError, CopyTooLargeError, OtherDefinitionError
from headrace.sql.older_cuts import NoSuchCutError
from headrace.sql.pins import PinExpiredError
from tests.oracle.lake import ForeignLake
from tests.support.copied_lake import ReadableCopy
from tests.support.local_lake import LIMITS, NUMBERS, LocalLake


@pytest.fixture
def lake(tmp_path: Path) -> LocalLake:
    made = LocalLake(tmp_path)
    made.create(rows=10)
    return made


@pytest.fixture
def copy(lake: LocalLake) -> Any:
    opened = ReadableCopy(lake.folder)
    opened.copy.advance()
    yield opened
    opened.close()


def seen(copy: ReadableCopy) -> list[Any]:
    with copy.copy.pin() as pin:
        return copy.rows(pin, NUMBERS)


def foreign(lake: LocalLake, columns: str = "id, note") -> list[Any]:
    """The rows as DuckDB's Iceberg extension reads the last cut."""
    return sorted(ForeignLake(lake.folder).rows(str(NUMBERS), columns), key=str)


def test_a_copy_is_empty_before_the_first_cut(tmp_path: Path) -> None:
    LocalLake(tmp_path)
    copy = ReadableCopy(tmp_path)
    assert copy.copy.advance() is None
    with pytest.raises(CopyEmptyError):
        copy.copy.pin()


def test_the_first_fill_has_all_living_rows(lake: LocalLake) -> None:
    lake.update([1, 2], "new")
    lake.delete([3])
    lake.cut()
    copy = ReadableCopy(lake.folder)
    cut = copy.copy.advance()
    assert cut is not None
    assert cut.number == lake.cut_number
    assert seen(copy) == foreign(lake)
    assert len(seen(copy)) == 9


def test_changes_of_a_cut_arrive_with_the_next_one(lake: LocalLake, copy: ReadableCopy) -> None:
    for number in range(5):
        lake.insert([100 + number, 200 + number])
        lake.update([number, 100 + number], f"round {number}")
        lake.delete([200 + number, number + 5])
        lake.cut()
        assert copy.copy.advance() is not None
        assert seen(copy) == foreign(lake)
    assert len(seen(copy)) == 10


def test_a_reader_sees_its_cut_until_it_lets_go(lake: LocalLake, copy: ReadableCopy) -> None:
    before = foreign(lake)
    with copy.copy.pin() as pin:
        assert copy.rows(pin, NUMBERS) == before
        lake.delete(range(10))
        lake.add_column()
        lake.insert([50])
        lake.cut()
        copy.copy.advance()
        assert copy.rows(pin, NUMBERS) == before
        assert pin.cut == lake.cut_number - 1
    assert seen(copy) == foreign(lake, "id, note, extra") == [(50, "note 50", 100)]


def test_a_reader_at_the_same_cut_takes_over_a_released_one(
    lake: LocalLake, copy: ReadableCopy
) -> None:
    assert copy.copy.pin_idle() is None
    first = copy.copy.pin()
    with first.using() as cursor:
        # A statement still runs.
        assert not first.release()
    assert first.release()
    assert first.closed
    second = copy.copy.pin_idle()
    assert second is not None
    with second, second.using() as taken:
        assert taken is cursor
        assert copy.copy.pin_idle() is None
    assert copy.rows(copy.copy.pin(), NUMBERS) == foreign(lake)


def test_no_reader_of_a_later_cut_takes_over_a_released_one(
    lake: LocalLake, copy: ReadableCopy
) -> None:
    released, late = copy.copy.pin(), copy.copy.pin()
    assert released.release()
    lake.delete(range(10))
    lake.insert([50])
    lake.cut()
    copy.copy.advance()
    assert copy.copy.pin_idle() is None
    assert not late.release()
    late.close()
    assert seen(copy) == foreign(lake) == [(50, "note 50")]


def test_a_cut_that_was_taken_away_is_not_released(lake: LocalLake) -> None:
    copy = ReadableCopy(lake.folder, pin_s=0.0)
    copy.copy.advance()
    pin = copy.copy.pin()
    assert copy.copy.expire_pins() == 1
    assert not pin.release()
    assert copy.copy.pin_idle() is None


def test_a_pin_shows_the_cut_of_its_beginning_even_before_it_reads(
    lake: LocalLake, copy: ReadableCopy
) -> None:
    before = foreign(lake)
    with copy.copy.pin() as pin:
        lake.delete(range(10))
        lake.cut()
        copy.copy.advance()
        assert copy.rows(pin, NUMBERS) == before


def test_compaction_changes_nothing(lake: LocalLake, copy: ReadableCopy) -> None:
    lake.insert_in_cuts(8)
    copy.copy.advance()
    lake.delete([1, 1_000_000 * 2 + 3])
    lake.cut()
    copy.copy.advance()
    before = seen(copy)
    assert compact(lake.files, lake.writer, LIMITS).files_before > 1
    lake.delete([4])
    lake.cut()
    copy.copy.advance()
    assert seen(copy) == foreign(lake) == [row for row in before if row[0] != 4]


def test_a_truncated_table_is_empty_and_fills_again(lake: LocalLake, copy: ReadableCopy) -> None:
    lake.truncate()
    lake.cut()
    copy.copy.advance()
    assert seen(copy) == foreign(lake) == []
    lake.insert([7])
    lake.cut()
    copy.copy.advance()
    assert seen(copy) == foreign(lake) == [(7, "note 7")]


def test_a_table_that_was_copied_again_has_the_rows_of_the_copy(
    lake: LocalLake, copy: ReadableCopy
) -> None:
    lake.copy_again(rows=4)
    copy.copy.advance()
    assert seen(copy) == foreign(lake)
    assert len(seen(copy)) == 4


def test_a_new_column_is_null_in_earlier_rows(lake: LocalLake, copy: ReadableCopy) -> None:
    lake.add_column()
    lake.insert([20])
    lake.update([1], "more")
    lake.cut()
    copy.copy.advance()
    assert seen(copy) == foreign(lake, "id, note, extra")
    assert (20, "note 20", 40) in seen(copy)
    assert (2, "note 2", None) in seen(copy)


def test_a_copy_that_was_away_reads_the_last_cut(lake: LocalLake, copy: ReadableCopy) -> None:
    lake.insert_in_cuts(5)
    compact(lake.files, lake.writer, LIMITS)
    lake.add_column()
    lake.insert([20])
    lake.cut()
    assert copy.copy.advance() is not None
    assert copy.copy.cut == lake.writer.last_cut
    assert seen(copy) == foreign(lake, "id, note, extra")


def test_a_later_lsn_of_the_same_cut_is_shown(lake: LocalLake, copy: ReadableCopy) -> None:
    lsn = lake.writer.last_cut.lsn + 500 if lake.writer.last_cut else 0
    lake.writer.advance(lsn, 0)
    with copy.copy.pin() as before:
        assert copy.copy.advance() is not None
        assert copy.copy.advance() is None
        with copy.copy.pin() as pin:
            assert pin.lsn == lsn
            assert before.lsn == lsn - 500


def test_copies_side_by_side_show_the_same(lake: LocalLake, copy: ReadableCopy) -> None:
    other = ReadableCopy(lake.folder)
    lake.update([3], "both")
    lake.cut()
    other.copy.advance()
    copy.copy.advance()
    assert seen(other) == seen(copy) == foreign(lake)


def test_a_feed_that_fails_leaves_the_cut_from_before(
    lake: LocalLake, copy: ReadableCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = seen(copy)
    cut = copy.copy.cut
    lake.update([3], "first")
    lake.insert([40])
    lake.cut()
    for location in sorted(lake.files_on_disk()):
        path = Path(location.removeprefix("file://"))
        if "deletes" in path.name:
            hidden = path.rename(path.with_suffix(".hidden"))
    with pytest.raises(Exception, match="missing"):
        copy.copy.advance()
    assert seen(copy) == before
    assert copy.copy.cut == cut
    hidden.rename(path_of(hidden))
    assert copy.copy.advance() is not None
    assert seen(copy) == foreign(lake)


def path_of(hidden: Path) -> Path:
    return hidden.with_suffix(".parquet")


def test_a_damaged_copy_is_filled_again(lake: LocalLake, copy: ReadableCopy) -> None:
    with copy.copy.pin() as pin:
        name = copy.relation(pin, NUMBERS).copy
    copy.copy._copy.cursor.execute(f"DELETE FROM {name} WHERE p = 3")
    lake.delete([3])
    lake.cut()
    with pytest.raises(Exception, match="differs"):
        copy.copy.advance()
    copy.copy.advance()
    assert seen(copy) == foreign(lake)


def test_a_pin_that_is_held_for_too_long_is_taken_away(lake: LocalLake) -> None:
    copy = ReadableCopy(lake.folder, pin_s=0.0)
    copy.copy.advance()
    pin = copy.copy.pin()
    assert copy.copy.expire_pins() == 1
    with pytest.raises(PinExpiredError):
        copy.rows(pin, NUMBERS)
    assert copy.copy.expire_pins() == 0


def test_a_reader_can_write_nothing(copy: ReadableCopy) -> None:
    with copy.copy.pin() as pin, pin.using() as cursor:
        name = copy.relation(pin, NUMBERS).copy
        for statement in (f"DELETE FROM {name}", "CREATE TABLE mine (a INT)", f"DROP TABLE {name}"):
            with pytest.raises(duckdb.Error, match="read-only"):
                cursor.execute(statement)
            cursor.execute("ROLLBACK")
            cursor.execute("BEGIN TRANSACTION READ ONLY")


def test_a_reader_continues_at_its_cut_after_an_error(lake: LocalLake, copy: ReadableCopy) -> None:
    before = foreign(lake)
    with copy.copy.pin() as pin:
        assert pin.spare()
        lake.delete([1])
        lake.cut()
        copy.copy.advance()
        with pin.using() as cursor, pytest.raises(duckdb.Error):
            cursor.execute("SELECT error('no')")
        assert pin.recover()
        assert copy.rows(pin, NUMBERS) == before
        assert not pin.spare()
        assert not pin.recover()
        assert seen(copy) == foreign(lake)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "COPY (SELECT 1) TO '/tmp/copied.csv'",
        "ATTACH '/tmp/other.db'",
        "INSTALL httpfs",
        "LOAD iceberg",
        "SET memory_limit = '100GB'",
        "SET TimeZone = 'Europe/Berlin'",
        "SELECT * FROM lake",
    ],
)
def test_a_reader_reaches_nothing_but_the_copy(
    lake: LocalLake, copy: ReadableCopy, statement: str
) -> None:
    with copy.copy.pin() as pin, pin.using() as cursor, pytest.raises(duckdb.Error):
        cursor.execute(statement)


def test_a_relation_has_the_columns_of_the_definition(lake: LocalLake, copy: ReadableCopy) -> None:
    with copy.copy.pin() as pin:
        relation = copy.relation(pin, NUMBERS)
        assert (relation.schema, relation.name) == ("public", "numbers")
        assert [column.name for column in relation.columns] == ["id", "note"]
        assert all(column.held for column in relation.columns)
    assert copy.definitions.calls == 1
    lake.insert([30])
    lake.cut()
    copy.copy.advance()
    assert copy.definitions.calls == 1
    lake.add_column()
    lake.insert([31])
    lake.cut()
    copy.copy.advance()
    assert copy.definitions.calls == 2


def test_a_cut_whose_tables_can_not_be_defined_is_not_seen(
    lake: LocalLake, copy: ReadableCopy
) -> None:
    before = seen(copy)
    lake.add_column()
    lake.insert([31])
    lake.cut()
    copy.definitions.failure = RuntimeError("no PostgreSQL")
    with pytest.raises(RuntimeError, match="no PostgreSQL"):
        copy.copy.advance()
    assert seen(copy) == before
    copy.definitions.failure = None
    copy.copy.advance()
    assert len(seen(copy)) == len(before) + 1


def test_a_cut_whose_tables_are_defined_otherwise_is_not_seen(
    lake: LocalLake, copy: ReadableCopy
) -> None:
    before = seen(copy)
    lake.rename_column()
    lake.insert([31])
    lake.cut()
    copy.definitions.stale = True
    with pytest.raises(OtherDefinitionError):
        copy.copy.advance()
    assert seen(copy) == before
    copy.definitions.stale = False
    copy.copy.advance()
    assert seen(copy) == foreign(lake, "id, remark")


def test_an_older_cut_shows_its_rows(lake: LocalLake, copy: ReadableCopy) -> None:
    kept = {}
    for number in range(4):
        lake.update([number], f"round {number}")
        lake.insert([100 + number])
        lake.delete([9 - number])
        cut = lake.cut()
        kept[cut.number] = (cut, foreign(lake))
    compact(lake.files, lake.writer, LIMITS)
    lake.truncate()
    lake.cut()
    copy.copy.advance()
    assert seen(copy) == []
    for number, (cut, expected) in kept.items():
        for as_of in (str(number), format_lsn(cut.lsn)):
            with copy.copy.pin(as_of) as pin:
                assert pin.cut == number
                assert copy.rows(pin, NUMBERS) == expected


def test_an_older_cut_is_the_last_before_a_time(lake: LocalLake, copy: ReadableCopy) -> None:
    lake.cut()
    made = lake.writer.last_cut.made_us if lake.writer.last_cut else 0
    first = (datetime.fromtimestamp(made / 1e6, UTC) - timedelta(microseconds=1)).isoformat()
    with copy.copy.pin(first) as pin:
        assert pin.cut == 1
    with pytest.raises(NoSuchCutError):
        copy.copy.pin("2000-01-01T00:00:00Z")
    with pytest.raises(NoSuchCutError):
        copy.copy.pin("77")
    with pytest.raises(NoSuchCutError):
        copy.copy.pin("soon")


def test_an_older_cut_lacks_tables_that_have_other_columns_now(
    lake: LocalLake, copy: ReadableCopy
) -> None:
    lake.add_column()
    lake.insert([20])
    lake.cut()
    copy.copy.advance()
    with copy.copy.pin("1") as pin:
        assert not pin.relations
    with copy.copy.pin("2") as pin:
        assert len(copy.rows(pin, NUMBERS)) == 11


def test_many_deleted_rows_take_no_memory(lake: LocalLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.sql.lake_copy_tables.DEAD_ROWS_MIN", 100)
    copy = ReadableCopy(lake.folder)
    copy.copy.advance()
    for number in range(40):
        lake.update(range(10), f"round {number}")
        lake.cut()
        # A reader's transaction is open while the rows that it sees are deleted.
        assert copy.copy.pin().release()
        copy.copy.advance()
    with copy.copy.pin() as pin, pin.using() as cursor:
        table = copy.relation(pin, NUMBERS).copy.strip('"')
        stored = cursor.execute(
            "SELECT count FROM pragma_storage_info(?) WHERE column_name = 'p' AND segment_type <> 'VALIDITY'",
            [table],
        ).fetchall()
    assert sum(count for (count,) in stored) < 10 + 100 + 10
    assert seen(copy) == foreign(lake)


def test_a_feed_holds_few_rows_besides_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = LocalLake(tmp_path)
    lake.create()
    lake.insert(range(60_000), "x" * 400)
    lake.cut()
    monkeypatch.setattr(lake_copy_tables, "BATCH_ROWS", 2000)
    read, held = lake_copy_tables.read_rows, []

    def read_rows(*given: Any) -> Iterator[pa.Table]:
        for rows in read(*given):
            yield rows
            held.append(pa.total_allocated_bytes())

    monkeypatch.setattr(lake_copy_tables, "read_rows", read_rows)
    copy = ReadableCopy(tmp_path)
    copy.copy.advance()
    assert len(held) > 25
    assert held[-1] - held[0] < 60_000 * 400 / 4
    copy.close()


def test_a_cut_that_does_not_fit_leaves_the_one_from_before(tmp_path: Path) -> None:
    lake = LocalLake(tmp_path)
    lake.create(rows=10)
    copy = ReadableCopy(tmp_path, memory_mb=40, spill_mb=1)
    copy.copy.advance()
    before = seen(copy)
    lake.insert(range(100, 60_000), "x" * 1000)
    lake.cut()
    with pytest.raises(CopyTooLargeError):
        copy.copy.advance()
    assert seen(copy) == before
    lake.delete(range(100, 60_000))
    lake.insert([20])
    lake.cut()
    copy.copy.advance()
    assert seen(copy) == foreign(lake)
    assert len(seen(copy)) == 11


def test_a_copy_larger_than_its_memory_is_kept_on_disk(tmp_path: Path) -> None:
    lake = LocalLake(tmp_path)
    lake.create(rows=10)
    lake.insert(range(100, 60_000), "x" * 1000)
    lake.cut()
    copy = ReadableCopy(tmp_path, memory_mb=60, spill_mb=500)
    copy.copy.advance()
    with copy.copy.pin() as pin:
        assert copy.rows(pin, NUMBERS, "id") == sorted(
            [(number,) for number in [*range(10), *range(100, 60_000)]], key=str
        )
