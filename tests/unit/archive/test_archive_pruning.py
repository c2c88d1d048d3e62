"""A reader does not read what it does not want: files and row groups by LSN, time and table,
counted in bytes.
"""

from __future__ import annotations

import io
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.archive import (
    AsyncWalReader,
    WalFileCorruptError,
    WalReader,
    WalReaderOptions,
    file_format,
)
from headrace.archive.columns import GROUP_ROWS
from headrace.archive.file_format import RowSelection
from headrace.archive.layout import file_name
from headrace.archive.metadata import WalFileInfo
from headrace.archive.store import Store
from headrace.lsn import Position
from tests.support.archive_maker import Maker, rows, table_info

GROUPS = 4
ROWS = GROUPS * GROUP_ROWS // 10 * 10
OPTIONS = WalReaderOptions(tail_bytes=32 * 1024)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An archive of one large file: four row groups, the first two of orders, the others of items."""
    folder = tmp_path_factory.mktemp("large")
    made = rows(0, ROWS)
    cut = 2 * GROUP_ROWS
    names = pa.array(["orders"] * cut + ["items"] * (ROWS - cut))
    made = made.set_column(made.schema.get_field_index("table"), made.schema.field("table"), names)
    last = Position(ROWS // 10 * 100, 9)
    info = WalFileInfo(
        1, "a", 1, "w", "headrace", "db", "1", 1, 1, last.lsn + 1, ROWS, Position(100, 0), last
    )
    tables = (table_info("items"), table_info("orders"))
    data, _ = file_format.encode(
        made, replace(info, time_us=(ROWS // 10 - 1) * 86_400_000_000, tables=tables)
    )
    Store(f"file://{folder}").put_new(file_name(1), data)
    return f"file://{folder}"


def read(url: str, options: WalReaderOptions, **place: object) -> tuple[list[int], WalReader]:
    reader = WalReader(url, options)
    entries = reader.follow(**place, wait=False)  # type: ignore[arg-type]  # each place has its own type
    return [entry.key["id"] for entry in entries], reader  # type: ignore[index]  # rows have keys


def size(url: str) -> int:
    return Path(url.removeprefix("file://"), file_name(1)).stat().st_size


def test_row_groups_before_an_lsn_are_not_fetched(url: str) -> None:
    begin = ROWS - 500
    found, reader = read(url, OPTIONS, from_lsn=(begin // 10 + 1) * 100)
    assert found == list(range(begin // 10 * 10, ROWS))
    assert reader.metrics.groups_skipped == GROUPS - 1
    assert reader.metrics.bytes < size(url) * 0.5
    every, whole = read(url, OPTIONS)
    assert len(every) == ROWS
    assert whole.metrics.bytes >= size(url)


def test_row_groups_before_a_time_are_not_fetched(url: str) -> None:
    begin = ROWS - 500
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=begin // 10)
    found, reader = read(url, OPTIONS, from_time=moment)
    assert found == list(range(begin // 10 * 10, ROWS))
    assert reader.metrics.groups_skipped == GROUPS - 1
    assert reader.metrics.bytes < size(url) * 0.5


def test_row_groups_of_other_tables_are_not_fetched(url: str) -> None:
    found, reader = read(url, replace(OPTIONS, tables=("public.items",)))
    assert found == list(range(2 * GROUP_ROWS, ROWS))
    assert reader.metrics.groups_skipped == 2


def test_rows_behind_a_place_are_not_fetched(url: str) -> None:
    file = WalReader(url, OPTIONS).get(1)
    assert file is not None
    found = [
        batch.num_rows for batch in file.batches(RowSelection(before_lsn=10_000), ["commit_lsn"])
    ]
    assert found == [990]
    assert file._reader.metrics.groups_skipped == GROUPS - 1
    by_time = [
        batch.num_rows for batch in file.batches(RowSelection(before_time_us=50 * 86_400_000_000))
    ]
    assert by_time == [500]


def test_the_part_of_a_file_is_all_that_its_wanted_rows_need(url: str) -> None:
    """Pyarrow reads it while everything else but the footer is empty."""
    data = Path(url.removeprefix("file://"), file_name(1)).read_bytes()
    footer = file_format.footer_of(data)
    footer_at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    last = file_format.groups(footer, RowSelection(after=((ROWS // 10 - 10) * 100, 0)))
    first = file_format.groups(footer, RowSelection(before_lsn=10_000))
    assert (first.wanted, last.wanted) == ((0,), (GROUPS - 1,))
    for part in (first, last):
        assert part.stop - part.start < len(data) / 2
        partial = data[:4] + bytes(part.start - 4) + data[part.start : part.stop]
        partial += bytes(footer_at - len(partial)) + data[footer_at:]
        found = pq.ParquetFile(io.BytesIO(partial)).read_row_groups(list(part.wanted))
        assert found.equals(pq.ParquetFile(io.BytesIO(data)).read_row_groups(list(part.wanted)))


def test_columns_that_are_not_wanted_are_not_decoded(url: str) -> None:
    file = WalReader(url, OPTIONS).get(1)
    assert file is not None
    batch = next(file.batches(RowSelection(tables=((None, "items"),)), ["after", "commit_lsn"]))
    assert batch.schema.names == ["commit_lsn", "after"]
    assert batch.column("commit_lsn")[0].as_py() == (2 * GROUP_ROWS // 10 + 1) * 100


def test_a_part_of_a_file_is_held_to_its_own_checksum(url: str, tmp_path: Path) -> None:
    data = bytearray(Path(url.removeprefix("file://"), file_name(1)).read_bytes())
    last = file_format.groups(
        file_format.footer_of(bytes(data)), RowSelection(after=((ROWS // 10 - 10) * 100, 0))
    )
    assert last.wanted == (GROUPS - 1,)
    data[(last.start + last.stop) // 2] ^= 1
    (tmp_path / file_name(1)).write_bytes(data)
    spoiled = f"file://{tmp_path}"
    with pytest.raises(WalFileCorruptError):
        read(spoiled, OPTIONS, from_lsn=(ROWS // 10 - 10) * 100)
    file = WalReader(spoiled, OPTIONS).get(1)
    assert file is not None
    assert sum(batch.num_rows for batch in file.batches(RowSelection(before_lsn=10_000))) == 990, (
        "the rest is whole"
    )


def test_a_flipped_bit_is_found_wherever_it_is_in_a_part_that_is_read_alone(tmp_path: Path) -> None:
    writer = file_format.WalFileEncoder()
    for first in range(0, 800, 200):
        writer.add(rows(first, 200))
    last = Position(8000, 9)
    data, info = writer.finish(
        WalFileInfo(1, "a", 1, "w", "headrace", "db", "1", 1, 1, 8001, 800, Position(100, 0), last)
    )
    options, path = replace(OPTIONS, tail_bytes=8000), tmp_path / file_name(1)
    path.write_bytes(data)
    found, reader = read(f"file://{tmp_path}", options, from_lsn=6101)
    assert found == list(range(610, 800))
    assert reader.metrics.groups_skipped == 3
    start, stop, _ = info.groups[3]
    # Pages' headers among them, which no checksum of a page covers.
    for bit in random.Random(22).sample(range(8 * start, 8 * stop), 300):
        spoiled = bytearray(data)
        spoiled[bit // 8] ^= 1 << bit % 8
        path.write_bytes(spoiled)
        with pytest.raises(WalFileCorruptError, match=file_name(1)):
            read(f"file://{tmp_path}", options, from_lsn=6101)


def test_files_before_a_place_are_not_opened(tmp_path: Path) -> None:
    made = Maker(f"file://{tmp_path}/archive")
    for _ in range(64):
        made.write(10)
    whole, reader = read(made.url, WalReaderOptions(), from_lsn=6_300)
    assert whole == list(range(620, 640))
    assert reader.metrics.files == 2
    assert reader.metrics.requests <= 1 + 6 + 1 + 3 + 3, (
        "a listing, seven halvings, two files, the one that is not there, and a look whether a "
        "later one is"
    )


async def test_the_reader_for_asyncio_fetches_as_little(url: str) -> None:
    reader = AsyncWalReader(url, OPTIONS)
    begin = ROWS // 10 - 50
    found = [
        entry.ordinal async for entry in reader.follow(after=Position(begin * 100, 4), wait=False)
    ]
    assert len(found) == 505
    assert found[:6] == [5, 6, 7, 8, 9, 0]
    assert reader.metrics.groups_skipped == GROUPS - 1
    assert reader.metrics.bytes < size(url) * 0.5
