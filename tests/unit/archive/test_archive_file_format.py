"""A file's bytes and rows: what is pruned, what is verified, and what is refused.

The oracle is pyarrow, and the rows' numbers, from which `archive_maker` makes everything.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from headrace.archive import columns, file_format
from headrace.archive.chain import ReadFiles, RowsCheck, faults, name_fault
from headrace.archive.columns import entries
from headrace.archive.errors import WalFileCorruptError
from headrace.archive.file_format import ALL, Groups, RowSelection, WalFileEncoder
from headrace.archive.metadata import WalFileInfo
from headrace.lsn import ORIGIN, Position
from tests.support.archive_maker import DAY_US, rows

INFO = WalFileInfo(1, "a", 1, "w", "s", "d", "1", 1, 1, 9_999, 0)


def written(*parts: pa.Table) -> tuple[bytes, WalFileInfo]:
    """A file with a row group for each part."""
    writer = WalFileEncoder()
    for part in parts:
        writer.add(part)
    count = sum(part.num_rows for part in parts)
    return writer.finish(replace(INFO, rows=count))


def numbers(data: bytes, selection: RowSelection = ALL) -> list[int]:
    """Which rows are read; a transaction has ten, its LSN is a hundred times its number."""
    return [
        (entry.commit_lsn // 100 - 1) * 10 + entry.ordinal
        for batch in file_format.batches(data, selection)
        for entry in entries(batch)
    ]


def replaced(table: pa.Table, name: str, values: list[Any]) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table.set_column(
        place, table.schema.field(name), pa.array(values, table.schema.field(name).type)
    )


EVERY = list(range(30))


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (ALL, EVERY),
        (RowSelection(after=(200, 4)), EVERY[15:]),
        (RowSelection(after=(200, -1)), EVERY[10:]),
        (RowSelection(after=(300, 9)), []),
        (RowSelection(before_lsn=200), EVERY[:10]),
        (RowSelection(before_lsn=201), EVERY[:20]),
        (RowSelection(before_lsn=100), []),
        (RowSelection(from_time_us=DAY_US), EVERY[10:]),
        (RowSelection(from_time_us=DAY_US + 1), EVERY[20:]),
        (RowSelection(before_time_us=DAY_US), EVERY[:10]),
        (RowSelection(before_time_us=DAY_US + 1), EVERY[:20]),
        (RowSelection(tables=(("public", "items"),)), EVERY[10:20]),
        (RowSelection(tables=((None, "items"),)), EVERY[10:20]),
        (RowSelection(tables=(("other", "items"),)), []),
        (RowSelection(tables=(("public", "items"), (None, "orders"))), EVERY),
        (RowSelection(after=(100, 8), before_lsn=300, tables=((None, "orders"),)), [9]),
    ],
)
@pytest.mark.parametrize("cut", [30, 10, 15])
def test_exactly_the_wanted_rows_are_read(
    selection: RowSelection, expected: list[int], cut: int
) -> None:
    data, _ = written(*(rows(first, min(cut, 30 - first)) for first in range(0, 30, cut)))
    assert numbers(data, selection) == expected


def test_a_row_without_a_time_is_of_any_time() -> None:
    times = [None, *[0] * 9]
    data, _ = written(replaced(rows(0, 10), "commit_time", times))
    assert numbers(data, RowSelection(from_time_us=1)) == [0]
    assert numbers(data, RowSelection(before_time_us=0)) == [0]


def test_a_gap_concerns_every_table() -> None:
    made = replaced(rows(0, 10), "operation", ["gap", *["insert"] * 9])
    for name in ("schema", "table"):
        made = replaced(made, name, [None, *["x"] * 9])
    data, _ = written(made)
    assert numbers(data, RowSelection(tables=((None, "nothing"),))) == []
    mixed = replaced(rows(0, 10), "operation", ["gap", *["insert"] * 9])
    data, _ = written(replaced(mixed, "table", [None, *["orders"] * 9]))
    assert numbers(data, RowSelection(tables=((None, "orders"),))) == list(range(10))
    assert numbers(data, RowSelection(tables=((None, "orders-"),))) == []


def test_the_columns_that_a_selection_needs_are_no_part_of_the_answer() -> None:
    data, _ = written(rows(0, 30))
    selections = (
        RowSelection(after=(200, 4)),
        RowSelection(before_lsn=300, from_time_us=DAY_US),
        RowSelection(before_time_us=DAY_US),
        RowSelection(tables=((None, "items"),)),
    )
    for selection in selections:
        batches = list(file_format.batches(data, selection, ["after"]))
        assert {tuple(batch.schema.names) for batch in batches} == {("after",)}
        found = [text for batch in batches for text in batch.column("after").to_pylist()]
        expected = numbers(data, selection)
        assert found == [f'{{"id":{number},"note":"row {number}"}}' for number in expected]


@pytest.mark.parametrize(
    ("selection", "needed"),
    [
        (ALL, []),
        (RowSelection(after=(1, 1)), ["commit_lsn", "ordinal"]),
        (RowSelection(before_lsn=1), ["commit_lsn", "ordinal"]),
        (RowSelection(from_time_us=1), ["commit_time"]),
        (RowSelection(before_time_us=1), ["commit_time"]),
        (RowSelection(tables=((None, "t"),)), ["schema", "table", "operation"]),
    ],
)
def test_a_selection_needs_only_its_own_columns(selection: RowSelection, needed: list[str]) -> None:
    assert selection.columns == needed


@pytest.mark.parametrize(
    ("tables", "wanted"),
    [
        ((), True),
        ((("public", "t"),), True),
        (((None, "t"),), True),
        ((("other", "t"),), False),
        (((None, "u"),), False),
    ],
)
def test_a_table_is_wanted_by_its_schema_or_in_any(tables: Any, *, wanted: bool) -> None:
    assert RowSelection(tables=tables).wants_table("public", "t") is wanted


def test_row_groups_are_pruned_by_their_statistics_and_their_bytes_are_whole() -> None:
    data, info = written(*(rows(first, 10) for first in range(0, 40, 10)))
    footer = file_format.footer_of(data)
    spans = info.groups
    for selection, wanted in (
        (ALL, (0, 1, 2, 3)),
        (RowSelection(after=(200, 9)), (1, 2, 3)),
        (RowSelection(after=(201, 0)), (2, 3)),
        (RowSelection(before_lsn=300), (0, 1)),
        (RowSelection(before_lsn=301), (0, 1, 2)),
        (RowSelection(from_time_us=2 * DAY_US), (2, 3)),
        (RowSelection(from_time_us=2 * DAY_US + 1), (3,)),
        (RowSelection(before_time_us=2 * DAY_US), (0, 1)),
        (RowSelection(tables=((None, "items"),)), (1, 3)),
    ):
        start, stop = spans[wanted[0]][0], spans[wanted[-1]][1]
        assert file_format.groups(footer, selection, info) == Groups(wanted, 4, start, stop)
        # Files of older versions have no bounds of their groups: the pages' own lie within them.
        found = file_format.groups(footer, selection)
        assert (found.wanted, found.count) == (wanted, 4)
        assert start <= found.start < found.stop <= stop
    assert file_format.groups(footer, RowSelection(after=(900, 0)), info) == Groups((), 4, 0, 0)


def test_a_group_without_a_time_in_each_row_has_no_bounds_of_time() -> None:
    data, _ = written(
        replaced(rows(0, 10), "commit_time", [None, *[0] * 9]), rows(10, 10), rows(20, 10)
    )
    footer = file_format.footer_of(data)
    assert file_format.groups(footer, RowSelection(from_time_us=2 * DAY_US)).wanted == (0, 2)
    assert file_format.first_time_us(footer) is None
    data, _ = written(rows(20, 10), rows(10, 10))
    assert file_format.first_time_us(file_format.footer_of(data)) == DAY_US
    empty, _ = written()
    assert file_format.first_time_us(file_format.footer_of(empty)) is None


def test_a_group_without_statistics_is_read() -> None:
    sink = io.BytesIO()
    pq.write_table(rows(0, 10), sink, write_statistics=False)
    data = sink.getvalue()
    for selection in (
        RowSelection(before_lsn=1),
        RowSelection(from_time_us=DAY_US),
        RowSelection(tables=((None, "x"),)),
    ):
        assert file_format.groups(pq.read_metadata(io.BytesIO(data)), selection).wanted == (0,)
        assert numbers(data, selection) == []


def test_every_page_has_a_checksum_that_other_readers_can_verify() -> None:
    data, info = written(rows(0, 1000))
    assert info.page_checksums
    start = file_format.groups(file_format.footer_of(data), ALL).start
    spoiled = 0
    for at in range(start + 60, start + 400, 7):
        changed = bytearray(data)
        changed[at] ^= 0xFF
        try:
            pq.ParquetFile(pa.BufferReader(bytes(changed)), page_checksum_verification=True).read(
                use_threads=False
            )
        except (OSError, pa.ArrowException) as error:
            spoiled += "CRC" in str(error)
    assert spoiled


def test_a_large_table_is_written_as_groups_of_the_usual_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_format, "GROUP_ROWS", 20)
    data, info = written(rows(0, 50))
    footer = file_format.footer_of(data)
    assert [footer.row_group(place).num_rows for place in range(3)] == [20, 20, 10]
    assert numbers(data) == list(range(50))
    assert [start for start, _, _ in info.groups][1:] == [stop for _, stop, _ in info.groups][:-1]


def test_the_size_of_a_writer_is_that_of_its_groups() -> None:
    writer = WalFileEncoder()
    assert writer.size == 0
    writer.add(rows(0, 10))
    one = writer.size
    writer.add(rows(10, 10))
    assert 0 < one < writer.size
    _, info = writer.finish(INFO)
    assert info.groups[-1][1] == writer.size


def test_changed_bytes_of_a_group_are_noticed_where_that_group_is_wanted() -> None:
    data, info = written(rows(0, 10), rows(10, 10))
    changed = bytearray(data)
    changed[info.groups[1][0] + 5] ^= 1
    file_format.verify_groups(changed, info, (0,))
    with pytest.raises(WalFileCorruptError, match="a row group has checksum"):
        file_format.verify_groups(changed, info, (0, 1))
    with pytest.raises(WalFileCorruptError, match="its bytes have checksum"):
        file_format.verify(changed, info)
    file_format.verify(data, info)
    file_format.verify_groups(changed, replace(info, groups=()), (0, 1))


@pytest.mark.parametrize(
    ("tail", "match"),
    [
        (b"", "it is empty"),
        (b"1234567", "it has only 7 bytes"),
        (b"12345678", "does not end like a Parquet file"),
        ((100).to_bytes(4, "little") + b"PAR1", "its footer is longer than the file"),
    ],
)
def test_an_end_that_is_none_is_refused(tail: bytes, match: str) -> None:
    with pytest.raises(WalFileCorruptError, match=match):
        file_format.footer_of(tail)


def test_a_parquet_file_of_someone_else_is_refused() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": [1]}), sink)
    with pytest.raises(WalFileCorruptError, match="not part of an archive"):
        file_format.info_of(file_format.footer_of(sink.getvalue()))


def test_a_footer_is_read_from_just_its_own_bytes_and_its_seal() -> None:
    data, info = written(rows(0, 10))
    need = file_format.footer_bytes(data) + file_format.SEAL_BYTES
    assert file_format.info_of(file_format.footer_of(data[-need:])) == info
    assert file_format.info_of(file_format.footer_of(data[-need - 1 :])) == info
    for short in (1, file_format.SEAL_BYTES):
        with pytest.raises(WalFileCorruptError, match="its footer"):
            file_format.footer_of(data[-need + short :])


def test_a_part_and_an_end_are_put_where_they_were() -> None:
    assert file_format.assembled(10, 2, b"ab", b"xyz") == bytearray(b"\0\0ab\0\0\0xyz")


def test_times_are_utcs_if_they_do_not_say_otherwise() -> None:
    noon = datetime(1970, 1, 1, 12, 0, 0, 1)  # noqa: DTZ001  # as a user may write it
    assert file_format.time_us(noon) == 12 * 3_600_000_000 + 1
    assert file_format.time_us(noon.replace(tzinfo=UTC)) == 12 * 3_600_000_000 + 1
    east = timezone(timedelta(hours=1))
    assert file_format.time_us(noon.replace(tzinfo=east)) == 11 * 3_600_000_000 + 1


def batch_of(*places: tuple[int, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "commit_lsn": pa.array([lsn for lsn, _ in places], pa.int64()),
            "ordinal": pa.array([seq for _, seq in places], pa.int64()),
        }
    )


def checked(*batches: list[tuple[int, int]], claimed: int | None = None) -> Iterator[str | None]:
    places = [place for batch in batches for place in batch]
    info = replace(
        INFO,
        rows=len(places) if claimed is None else claimed,
        first=Position(1, 0),
        last=Position(5, 5),
    )
    check = RowsCheck(info)
    for batch in batches:
        yield check.take(batch_of(*batch))
    yield check.end()


def test_rows_that_rise_within_what_their_footer_says_are_right() -> None:
    assert list(checked([(1, 0), (1, 1), (2, 0)], [], [(5, 0), (5, 5)])) == [None] * 4
    assert list(checked(claimed=0)) == [None]


@pytest.mark.parametrize(
    "batches",
    [
        [[(1, 1), (1, 1)]],
        [[(1, 1), (1, 0)]],
        [[(2, 0), (1, 1)]],
        [[(1, 1)], [(1, 1)]],
        [[(2, 1)], [(1, 5)]],
    ],
)
def test_rows_that_do_not_rise_are_a_fault(batches: list[list[tuple[int, int]]]) -> None:
    assert "its rows are out of order" in list(checked(*batches))


@pytest.mark.parametrize("place", [(0, 9), (5, 6), (6, 0)])
def test_rows_outside_of_what_their_footer_says_are_a_fault(place: tuple[int, int]) -> None:
    (found, _) = checked([place])
    assert found is not None
    assert found.startswith("its rows are not between")


def test_rows_that_are_missing_at_the_end_are_a_fault() -> None:
    assert list(checked([(1, 0), (5, 5)], claimed=3))[-1] == "it has 2 rows, its footer says 3"
    last = list(checked([(1, 0), (5, 4)]))[-1]
    assert last is not None
    assert last.startswith("it ends at 0/5+4, its footer says 0/5+5")


BEFORE = replace(INFO, id=1, rows=1, first=Position(1, 0), last=Position(2, 0), checksum="c")
NEXT = replace(
    INFO, id=2, rows=1, first=Position(3, 0), last=Position(4, 0), previous="c", after=BEFORE.last
)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"epoch": 2}, None),
        ({"after": None}, None),
        ({"rows": 0, "first": ORIGIN}, None),
        ({"archive": "b"}, "it belongs to the archive b"),
        ({"previous": "d"}, "it was written after another file 1"),
        ({"epoch": 0}, "it has epoch 0"),
        ({"after": Position(2, 1)}, "it follows row 0/2+1"),
        ({"first": Position(2, 0)}, "it starts at 0/2+0"),
        ({"first": Position(1, 0)}, "it starts at 0/1+0"),
    ],
)
def test_a_file_follows_the_one_before_it_or_is_a_fault(
    change: dict[str, Any], fault: str | None
) -> None:
    info = replace(NEXT, **change)
    found = list(faults(info, BEFORE))
    assert [one.startswith(fault or "?") for one in found] == ([] if fault is None else [True])
    trail = ReadFiles()
    trail.follow(BEFORE)
    if fault is None:
        trail.follow(info)
        assert trail.before == info
    else:
        with pytest.raises(WalFileCorruptError, match="file 2 "):
            trail.follow(info)
    # After a file that was not read nothing is compared.
    later = replace(info, id=3)
    trail = ReadFiles(BEFORE)
    trail.follow(later)
    assert trail.before == later


def test_a_file_says_which_one_it_is() -> None:
    assert name_fault(INFO, 1) is None
    assert name_fault(INFO, 2) == "its content is that of file 1"


def test_words_are_read_with_their_missing_values() -> None:
    for values in (["a", None, "b", "a"], ["b", "a", "b"], [None, None], ["a", "a"]):
        encoded = pa.array(values, pa.string()).dictionary_encode()
        assert list(columns._values(encoded)) == values


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None], pa.int64()),
        pa.array([1, 2], pa.int64()),
        pa.array(["a", None], pa.string()),
        pa.array([["a"], None], pa.list_(pa.string())),
        pa.array([None, None], pa.string()),
        pa.array([], pa.string()),
    ],
)
def test_a_columns_values_are_those_of_pyarrow(column: Any) -> None:
    assert list(columns._values(column)) == column.to_pylist()
    found = next(iter(columns._values(column)), None)
    assert found is None or type(found) in {int, str, list}


def test_times_are_read_as_microseconds() -> None:
    times = pa.array([5, None], pa.timestamp("us", tz="UTC"))
    assert list(columns._values(times)) == [5, None]


def test_rows_without_a_table_belong_to_no_chosen_table_and_gaps_to_each() -> None:
    chosen_from: list[dict[str, str | None]] = [
        {"operation": "insert", "schema": "public", "table": "t"},
        {"operation": "insert", "schema": "app", "table": "t"},
        {"operation": "insert", "schema": "public", "table": "u"},
        {"operation": "message", "schema": None, "table": None},
        {"operation": "gap", "schema": None, "table": None},
    ]
    columns = pa.schema([(name, pa.string()) for name in ("operation", "schema", "table")])
    batch = pa.RecordBatch.from_pylist(chosen_from, columns)
    for tables, places in (
        ([("public", "t")], [0, 4]),
        ([(None, "t")], [0, 1, 4]),
        ([("public", "t"), (None, "u")], [0, 2, 4]),
        ([], [4]),
    ):
        chosen = file_format._of_tables(pc, batch, tables).to_pylist()
        assert [place for place, is_chosen in enumerate(chosen) if is_chosen] == places
