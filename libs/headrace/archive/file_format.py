"""A file's bytes: written from rows and metadata, and read back. Pure.

The file's checksum covers all row groups and is in the footer. Each row group has its own for
reading parts (a page's checksum would not cover its header). The footer's own checksum directly
precedes it, where other Parquet readers ignore it: it is compared before the footer is parsed,
because Arrow may crash at a damaged one. Statistics are written for columns that readers prune by,
and not for the JSON texts, where they would be long and useless.
"""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.archive import metadata
from headrace.archive.columns import GROUP_ROWS, SCHEMA, WORDS, completed
from headrace.archive.errors import WalFileCorruptError
from headrace.archive.metadata import WalFileInfo

_STATISTICS = [
    "commit_lsn",
    "ordinal",
    "lsn",
    "xid",
    "commit_time",
    "schema",
    "table",
    "operation",
    "schema_version",
]
_DICTIONARIES = ["commit_lsn", "xid", "commit_time", *WORDS, "schema_version"]
# The end of every Parquet file: the length of the footer, and the magic bytes.
_TAIL = struct.Struct("<I4s")
_MAGIC = b"PAR1"
# Random bytes, followed by the footer's SHA-256.
_SEAL_MARK = bytes.fromhex("b1e9a5c07d4f42d69c3e8f1762a0d35b")
SEAL_BYTES = len(_SEAL_MARK) + hashlib.sha256().digest_size
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Bounds = Mapping[str, tuple[Any, Any]]


class WalFileEncoder:
    """A file's bytes as they are built: row groups in sequence, each encoded when it is added."""

    def __init__(self) -> None:
        self._sink = io.BytesIO()
        self._writer = pq.ParquetWriter(
            self._sink,
            SCHEMA,
            compression="zstd",
            # Higher levels cost several times the processor time, for a few percent of size.
            compression_level=1,
            use_dictionary=_DICTIONARIES,  # type: ignore[arg-type]  # its stub forgot the names
            write_statistics=_STATISTICS,
            write_page_checksum=True,
        )
        # Begin, end and checksum of each row group.
        self._groups: list[tuple[int, int, str]] = []
        self.size = 0

    def add(self, rows: pa.Table) -> None:
        """Encode rows as a row group, or as several if they exceed a group's size."""
        for first in range(0, rows.num_rows, GROUP_ROWS):
            begins = self._sink.tell()
            self._writer.write_table(rows.slice(first, GROUP_ROWS), row_group_size=GROUP_ROWS)
            self.size = self._sink.tell()
            with self._sink.getbuffer() as written:
                self._groups.append((begins, self.size, _checksum(written[begins:])))

    def finish(self, info: WalFileInfo) -> tuple[bytes, WalFileInfo]:
        """The file's bytes, and its metadata with the checksum. Nothing can be added afterwards."""
        # The checksum of the file is part of its footer, so it covers everything before the footer.
        with self._sink.getbuffer() as written:
            info = replace(
                info,
                checksum=_checksum(written),
                checksum_bytes=len(written),
                page_checksums=True,
                groups=tuple(self._groups),
                footer_checksum=True,
            )
        self._writer.add_key_value_metadata({metadata.KEY.decode(): metadata.encode(info).decode()})
        self._writer.close()
        self._put_seal()
        return self._sink.getvalue(), info

    def _put_seal(self) -> None:
        """Nothing refers to the footer by its offset, so it can be moved."""
        with self._sink.getbuffer() as written:
            footer = bytes(written[-footer_bytes(written[-_TAIL.size :]) :])
        self._sink.seek(-len(footer), io.SEEK_END)
        self._sink.write(_SEAL_MARK + hashlib.sha256(footer).digest() + footer)


def encode(rows: pa.Table, info: WalFileInfo) -> tuple[bytes, WalFileInfo]:
    """Build a file from a complete list of rows."""
    writer = WalFileEncoder()
    writer.add(rows)
    return writer.finish(info)


def _checksum(data: bytes | memoryview) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def footer_bytes(tail: bytes | memoryview) -> int:
    """The size of the file's footer, from its last bytes."""
    if len(tail) < _TAIL.size:
        raise WalFileCorruptError("it is empty" if not tail else f"it has only {len(tail)} bytes")
    length, magic = _TAIL.unpack(tail[-_TAIL.size :])
    if magic != _MAGIC:
        raise WalFileCorruptError(
            "it does not end like a Parquet file: its end is missing or overwritten"
        )
    return int(length) + _TAIL.size


def info_of(footer: pq.FileMetaData) -> WalFileInfo:
    """A file's metadata."""
    kept = footer.metadata or {}
    if metadata.KEY not in kept:
        raise WalFileCorruptError("it is a Parquet file, but not part of an archive")
    return metadata.decode(kept[metadata.KEY])


def footer_of(tail: bytes) -> pq.FileMetaData:
    """A file's footer, from bytes at its end that contain all of it."""
    need = footer_bytes(tail)
    if need > len(tail):
        raise WalFileCorruptError("its footer is longer than the file")
    footer = tail[-need:]
    seal = tail[-need - SEAL_BYTES : -need]
    sealed = seal.startswith(_SEAL_MARK)
    # A mark at another place means that the footer's length is damaged, which would otherwise lead
    # to parsing arbitrary bytes.
    if sealed != (_SEAL_MARK in tail) or (
        sealed and seal[len(_SEAL_MARK) :] != hashlib.sha256(footer).digest()
    ):
        raise WalFileCorruptError("its footer is not the one that was written")
    try:
        # A Parquet reader also expects the magic bytes at the start, and ignores everything in
        # between.
        found = pq.read_metadata(pa.BufferReader(_MAGIC + footer))
    except (pa.ArrowException, OSError) as error:
        raise WalFileCorruptError(f"its footer can't be read: {error}") from error
    # Files of older versions have no seal. A file that claims to have one has lost it.
    if not sealed and b'"footer_checksum":true' in (found.metadata or {}).get(metadata.KEY, b""):
        raise WalFileCorruptError("its footer lost its checksum")
    return found


def verify(data: bytes | bytearray, info: WalFileInfo) -> None:
    """Raise if the bytes differ from those that were written."""
    found = _checksum(memoryview(data)[: info.checksum_bytes])
    if found != info.checksum:
        raise WalFileCorruptError(
            f"its bytes have checksum {found}, it was written with {info.checksum}"
        )


def verify_groups(data: bytes | bytearray, info: WalFileInfo, wanted: Collection[int]) -> None:
    """Raise if the bytes of these row groups differ from those that were written."""
    # Files of older versions have no checksums of their row groups.
    if info.groups:
        for start, stop, written in (info.groups[place] for place in wanted):
            found = _checksum(memoryview(data)[start:stop])
            if found != written:
                raise WalFileCorruptError(
                    f"a row group has checksum {found}, it was written with {written}"
                )


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Which rows to read; all of them by default. Row groups without selected rows are not decoded.

    Rows without a commit time (messages outside transactions, gaps) are never excluded by time.
    """

    # A table without a schema matches tables of that name in any schema.
    tables: Collection[tuple[str | None, str]] = ()
    # Rows after this position.
    after: tuple[int, int] | None = None
    # Rows of transactions that committed before this LSN.
    before_lsn: int | None = None
    # Rows of transactions that committed at this time or later, in microseconds since 1970.
    from_time_us: int | None = None
    # Rows of transactions that committed before this time, in microseconds since 1970.
    before_time_us: int | None = None

    def wants(self, group: Any) -> bool:
        """Internal: whether a row group may contain wanted rows, judging by its statistics."""
        bounds = _bounds(group)
        return self._wants_lsn(bounds) and self._wants_time(bounds) and self._wants_table(bounds)

    def _wants_lsn(self, bounds: Bounds) -> bool:
        # No statistics: the row group must be read.
        if "commit_lsn" not in bounds:
            return True
        low, high = bounds["commit_lsn"]
        return not (
            (self.after is not None and high < self.after[0])
            or (self.before_lsn is not None and low >= self.before_lsn)
        )

    def _wants_time(self, bounds: Bounds) -> bool:
        # If any time is missing, there are no bounds: see `_bounds`.
        if "commit_time" not in bounds:
            return True
        low, high = (time_us(moment) for moment in bounds["commit_time"])
        return not (
            (self.from_time_us is not None and high < self.from_time_us)
            or (self.before_time_us is not None and low >= self.before_time_us)
        )

    def _wants_table(self, bounds: Bounds) -> bool:
        if not self.tables or "table" not in bounds:
            return True
        low, high = bounds["table"]
        # By the name only: bounds of two columns say nothing about pairs of their values.
        return any(low <= table <= high for _, table in self.tables)

    def wants_table(self, schema: str, name: str) -> bool:
        """Whether a table's rows are wanted."""
        return not self.tables or (schema, name) in self.tables or (None, name) in self.tables

    @property
    def columns(self) -> list[str]:
        """The columns needed to select rows."""
        needed: list[str] = []
        if self.after is not None or self.before_lsn is not None:
            needed += ("commit_lsn", "ordinal")
        if self.from_time_us is not None or self.before_time_us is not None:
            needed.append("commit_time")
        if self.tables:
            needed += WORDS
        return needed


ALL = RowSelection()


def time_us(moment: datetime) -> int:
    """Microseconds since 1970, as files have times; a time without a zone is UTC's."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def _bounds(group: Any) -> Bounds:
    """The bounds of a row group's values; none for a column of times with missing values."""
    found: dict[str, tuple[Any, Any]] = {}
    for place in range(group.num_columns):
        column = group.column(place)
        known = column.statistics
        if known is None or not known.has_min_max:
            continue
        if column.path_in_schema == "commit_time" and (
            not known.has_null_count or known.null_count
        ):
            continue
        found[column.path_in_schema] = (known.min, known.max)
    return found


def first_time_us(footer: pq.FileMetaData) -> int | None:
    """The earliest commit time of a file's rows; None if some have none."""
    groups = [_bounds(footer.row_group(place)) for place in range(footer.num_row_groups)]
    if not groups or any("commit_time" not in bounds for bounds in groups):
        return None
    return min(time_us(bounds["commit_time"][0]) for bounds in groups)


@dataclass(frozen=True, slots=True)
class Groups:
    """A file's row groups that may contain wanted rows, and the bytes from the first to the last of
    them.
    """

    wanted: tuple[int, ...]
    count: int
    start: int
    stop: int


def groups(
    footer: pq.FileMetaData, selection: RowSelection, info: WalFileInfo | None = None
) -> Groups:
    """The parts of a file to read; with its metadata, whole row groups as they were written."""
    every = [footer.row_group(place) for place in range(footer.num_row_groups)]
    wanted = tuple(
        place for place, group in enumerate(every) if selection == ALL or selection.wants(group)
    )
    # The written offsets, which the checksums cover; a page's own offset leaves out its header.
    known = () if info is None else info.groups
    spans = [known[place][:2] if known else _span(every[place]) for place in wanted]
    start = min((start for start, _ in spans), default=0)
    stop = max((stop for _, stop in spans), default=0)
    return Groups(wanted, len(every), start, stop)


def _span(group: Any) -> tuple[int, int]:
    """The offsets of a row group's pages in the file: first and last."""
    starts = []
    stops = []
    for place in range(group.num_columns):
        column = group.column(place)
        if column.has_dictionary_page:
            start = column.dictionary_page_offset
        else:
            start = column.data_page_offset
        starts.append(start)
        stops.append(start + column.total_compressed_size)
    return min(starts), max(stops)


def assembled(size: int, start: int, part: bytes, tail: bytes) -> bytearray:
    """A file of which only a part and the end were fetched: the rest is empty and is not read."""
    # As long as the file, so that all offsets in the footer stay right.
    data = bytearray(size)
    data[start : start + len(part)] = part
    data[size - len(tail) :] = tail
    return data


def batches(
    data: bytes | bytearray,
    selection: RowSelection = ALL,
    columns: Collection[str] | None = None,
    *,
    footer: pq.FileMetaData | None = None,
    page_checksums: bool = False,
) -> Iterator[pa.RecordBatch]:
    """A file's rows in order, about ten thousand at a time; words are dictionary-encoded."""
    try:
        file = pq.ParquetFile(
            pa.BufferReader(data),
            metadata=footer,
            read_dictionary=list(WORDS),
            page_checksum_verification=page_checksums,
        )
        wanted = groups(file.metadata, selection).wanted
        if not wanted:
            return
        if columns is None:
            shown = None
        else:
            shown = [name for name in SCHEMA.names if name in columns]
        if shown is None:
            read = None
        else:
            # Columns that only the selection needs are read, and left out below.
            read = sorted({*shown, *selection.columns})
        for batch in file.iter_batches(
            batch_size=GROUP_ROWS, row_groups=list(wanted), columns=read, use_threads=False
        ):
            chosen = completed(_chosen(batch, selection))
            if chosen.num_rows:
                yield chosen if shown is None else chosen.select(shown)
    except (pa.ArrowException, OSError) as error:
        raise WalFileCorruptError(f"it can't be read: {error}") from error


def _chosen(batch: pa.RecordBatch, selection: RowSelection) -> pa.RecordBatch:
    if selection == ALL:
        return batch
    import pyarrow.compute  # noqa: PLC0415  # half of pyarrow's import, for those who choose

    # Its stubs know fewer operands than it accepts.
    pc: Any = pyarrow.compute
    batch = _by_lsn(pc, batch, selection)
    batch = _by_time(pc, batch, selection)
    if selection.tables and batch.num_rows:
        batch = batch.filter(_of_tables(pc, batch, selection.tables))
    return batch


def _by_lsn(pc: Any, batch: pa.RecordBatch, selection: RowSelection) -> pa.RecordBatch:
    if selection.after is not None:
        lsn, ordinal = selection.after
        same = pc.and_(
            pc.equal(batch.column("commit_lsn"), lsn), pc.greater(batch.column("ordinal"), ordinal)
        )
        batch = batch.filter(pc.or_(pc.greater(batch.column("commit_lsn"), lsn), same))
    if selection.before_lsn is not None and batch.num_rows:
        batch = batch.filter(pc.less(batch.column("commit_lsn"), selection.before_lsn))
    return batch


def _by_time(pc: Any, batch: pa.RecordBatch, selection: RowSelection) -> pa.RecordBatch:
    for bound, holds in (
        (selection.from_time_us, pc.greater_equal),
        (selection.before_time_us, pc.less),
    ):
        if bound is not None and batch.num_rows:
            times = batch.column("commit_time").cast(pa.int64())
            # A row without a commit time is never excluded by time.
            batch = batch.filter(pc.fill_null(holds(times, bound), True))
    return batch


def _of_tables(pc: Any, batch: pa.RecordBatch, tables: Collection[tuple[str | None, str]]) -> Any:
    """Rows of these tables, and what concerns every table: gaps."""
    schema = batch.column("schema").cast(pa.string())
    table = batch.column("table").cast(pa.string())
    wanted = pc.equal(batch.column("operation").cast(pa.string()), "gap")
    for schema_name, name in tables:
        named = pc.equal(table, name)
        if schema_name is None:
            both = named
        else:
            both = pc.and_(pc.equal(schema, schema_name), named)
        wanted = pc.or_(wanted, pc.fill_null(both, False))
    return wanted
