"""A file's bytes: written from rows and metadata, and read back. Pure.

The checksum covers all bytes before the footer, and stands in it. Statistics are written for what readers prune by, and
not for the JSON texts, where they would be long and useless.
"""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.archive import metadata
from headrace.archive.columns import SCHEMA, WORDS
from headrace.archive.errors import WalFileCorruptError
from headrace.archive.metadata import SegmentInfo

GROUP_ROWS = 65_536
_STATISTICS = ["commit_lsn", "ordinal", "lsn", "xid", "commit_time", "schema", "table", "operation", "schema_version"]
_DICTIONARIES = ["commit_lsn", "xid", "commit_time", *WORDS, "schema_version"]
_TAIL = struct.Struct("<I4s")
_MAGIC = b"PAR1"


def encode(rows: pa.Table, info: SegmentInfo) -> tuple[bytes, SegmentInfo]:
    """A file's bytes, and its metadata with the checksum."""
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink,
        SCHEMA,
        compression="zstd",
        compression_level=1,
        use_dictionary=_DICTIONARIES,  # type: ignore[arg-type]  # its stub forgot the names
        write_statistics=_STATISTICS,
    ) as writer:
        if rows.num_rows:
            writer.write_table(rows, row_group_size=GROUP_ROWS)
        with sink.getbuffer() as written:
            info = replace(info, checksum=_checksum(written), checksum_bytes=len(written))
        writer.add_key_value_metadata({metadata.KEY.decode(): metadata.encode(info).decode()})
    return sink.getvalue(), info


def _checksum(data: bytes | memoryview) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def footer_bytes(tail: bytes) -> int:
    """How many bytes at the end of the file are its footer, from its last ones."""
    if len(tail) < _TAIL.size:
        raise WalFileCorruptError(f"a file of {len(tail)} bytes")
    length, magic = _TAIL.unpack(tail[-_TAIL.size :])
    if magic != _MAGIC:
        raise WalFileCorruptError("a file does not end as Parquet does")
    return int(length) + _TAIL.size


def info_of(tail: bytes) -> SegmentInfo:
    """A file's metadata, from bytes at its end that hold the whole footer."""
    # A reader of Parquet wants the magic at the beginning too, and looks at nothing between.
    footer = tail[-footer_bytes(tail) :]
    try:
        kept = pq.read_metadata(pa.BufferReader(_MAGIC + footer)).metadata or {}
    except (pa.ArrowInvalid, OSError) as error:
        raise WalFileCorruptError(f"a file's footer can't be read: {error}") from error
    if metadata.KEY not in kept:
        raise WalFileCorruptError("a Parquet file that is not of an archive")
    return metadata.decode(kept[metadata.KEY])


def verify(data: bytes, info: SegmentInfo) -> None:
    """Raise where the bytes are not those that were written."""
    found = _checksum(memoryview(data)[: info.checksum_bytes])
    if found != info.checksum:
        raise WalFileCorruptError(f"file {info.id} has the checksum {found}, it was written with {info.checksum}")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows to read; what is None or empty leaves nothing out. Row groups without any are not decoded."""

    tables: Collection[tuple[str, str]] = ()
    after: tuple[int, int] | None = None
    from_time_us: int | None = None

    def wants(self, group: Any) -> bool:
        """Whether a row group may have rows that are wanted, by its statistics."""
        bounds = _bounds(group)
        if self.after is not None and "commit_lsn" in bounds and bounds["commit_lsn"][1] < self.after[0]:
            return False
        if not self.tables or "table" not in bounds:
            return True
        low, high = bounds["table"]
        return any(low <= table <= high for _, table in self.tables)


ALL = Selection()


def _bounds(group: Any) -> dict[str, tuple[Any, Any]]:
    columns = (group.column(place) for place in range(group.num_columns))
    return {
        column.path_in_schema: (column.statistics.min, column.statistics.max)
        for column in columns
        if column.statistics is not None and column.statistics.has_min_max
    }


def batches(data: bytes, selection: Selection = ALL, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """A file's rows in order, some ten thousand at a time; words come as dictionaries."""
    try:
        file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=list(WORDS))
        groups = [place for place in range(file.num_row_groups) if selection.wants(file.metadata.row_group(place))]
        if not groups:
            return
        for batch in file.iter_batches(batch_size=GROUP_ROWS, row_groups=groups, columns=columns, use_threads=False):
            chosen = _chosen(batch, selection)
            if chosen.num_rows:
                yield chosen
    except (pa.ArrowInvalid, OSError) as error:
        raise WalFileCorruptError(f"a file can't be read: {error}") from error


def _chosen(batch: pa.RecordBatch, selection: Selection) -> pa.RecordBatch:
    import pyarrow.compute  # noqa: PLC0415  # half of pyarrow's import, for those who choose

    # Its stubs know of fewer operands than it takes.
    pc: Any = pyarrow.compute
    if selection.after is not None:
        lsn, ordinal = selection.after
        same = pc.and_(pc.equal(batch.column("commit_lsn"), lsn), pc.greater(batch.column("ordinal"), ordinal))
        batch = batch.filter(pc.or_(pc.greater(batch.column("commit_lsn"), lsn), same))
    if selection.from_time_us is not None and batch.num_rows:
        times = batch.column("commit_time").cast(pa.int64())
        batch = batch.filter(pc.fill_null(pc.greater_equal(times, selection.from_time_us), True))
    if selection.tables and batch.num_rows:
        batch = batch.filter(_of_tables(pc, batch, selection.tables))
    return batch


def _of_tables(pc: Any, batch: pa.RecordBatch, tables: Collection[tuple[str, str]]) -> Any:
    """Rows of these tables, and what concerns every table: gaps."""
    schema, table = batch.column("schema").cast(pa.string()), batch.column("table").cast(pa.string())
    wanted = pc.equal(batch.column("operation").cast(pa.string()), "gap")
    for schema_name, name in tables:
        both = pc.and_(pc.equal(schema, schema_name), pc.equal(table, name))
        wanted = pc.or_(wanted, pc.fill_null(both, False))
    return wanted
