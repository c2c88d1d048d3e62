"""Arrow tables as Iceberg's files: rows as data files, positions as delete files.

A delete file contains positions of one data file, and its bounds are that file's location: Java's
compaction relies on it.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from headrace.lake.columns import Ints, whole
from headrace.lake.files import LakeFiles

# pyarrow's stubs lack calls that are used here.
pc: Any = pyarrow.compute

# Iceberg's reserved IDs of the columns of a delete file.
FILE_PATH_ID = 2147483546
POSITION_ID = 2147483545
GROUP_ROWS = 131_072
# Rows that wait for a row group to be full.
GROUP_BYTES = 32 << 20
# Iceberg's default: 16 characters are enough for readers to skip files, and keep manifests small.
_STATISTICS = {"write.metadata.metrics.default": "truncate(16)"}
_FIELD_ID = "PARQUET:field_id"
_FIELDS: list[pa.Field[Any]] = [
    pa.field("file_path", pa.string(), nullable=False, metadata={_FIELD_ID: str(FILE_PATH_ID)}),
    pa.field("pos", pa.int64(), nullable=False, metadata={_FIELD_ID: str(POSITION_ID)}),
]
_POSITIONS = pa.schema(_FIELDS)


def arrow_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of a table's data files, with the columns' field IDs."""
    return schema_to_pyarrow(schema)


class RowsWriter:
    """Writes rows as one data file, in parts, so that memory doesn't depend on their number."""

    def __init__(self, files: LakeFiles, folder: str, schema: Schema) -> None:
        self._files = files
        self._folder = folder
        self._schema = schema
        self._wanted = arrow_schema(schema)
        # In memory, because a store takes an object as a whole.
        self._sink = io.BytesIO()
        self._writer = pq.ParquetWriter(
            self._sink, self._wanted, compression="zstd", compression_level=1, store_schema=False
        )

    @property
    def size(self) -> int:
        """The bytes so far."""
        return self._sink.tell()

    def write(self, rows: pa.Table) -> None:
        """Add rows, whose columns have the schema's names; absent ones are null."""
        columns = []
        for field in self._wanted:
            if field.name in rows.column_names:
                # A file may be older than a wider type of its column.
                columns.append(rows.column(field.name).cast(field.type))
            else:
                columns.append(pa.nulls(rows.num_rows, field.type))
        table = pa.Table.from_arrays(columns, schema=self._wanted)
        self._writer.write_table(table, row_group_size=GROUP_ROWS)

    def close(self) -> DataFile:
        """Write the file."""
        self._writer.close()
        data = self._sink.getbuffer()
        location = f"{self._folder}/data/{uuid.uuid4()}.parquet"
        # Before the catalog knows it: a cut refers only to files that exist.
        self._files.put(location, data)
        statistics = data_file_statistics_from_parquet_metadata(
            self._writer.writer.metadata,
            compute_statistics_plan(self._schema, _STATISTICS),
            parquet_path_to_id_mapping(self._schema),
        )
        return _file(
            DataFileContent.DATA,
            location,
            len(data),
            statistics.to_serialized_dict(),
            # Iceberg's number for rows in no order. Delete files must not have one.
            sort_order_id=0,
        )


def write_parts(
    files: LakeFiles, folder: str, schema: Schema, parts: Iterator[pa.Table]
) -> DataFile | None:
    """Write rows that come in parts as one data file; None if there are none. Needs the memory of a
    row group, besides the parts.
    """
    writer: RowsWriter | None = None
    for rows in gathered(parts):
        writer = writer or RowsWriter(files, folder, schema)
        writer.write(rows)
    if writer is None:
        return None
    return writer.close()


def gathered(parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Rows in groups that are worth a row group of Parquet."""
    waiting: list[pa.Table] = []
    for rows in parts:
        waiting.append(rows)
        count = sum(each.num_rows for each in waiting)
        if count >= GROUP_ROWS or sum(each.nbytes for each in waiting) >= GROUP_BYTES:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(parts: list[pa.Table]) -> pa.Table:
    """Files of different schemas lack different columns, which are null in them."""
    return pa.concat_tables(parts, promote_options="default")


def write_positions(files: LakeFiles, folder: str, path: str, positions: Ints) -> DataFile:
    """Write the positions of a data file's deleted rows as a delete file."""
    paths: Any = pa.repeat(path, len(positions))
    rows = pa.Table.from_arrays([paths, pa.array(positions, pa.int64())], schema=_POSITIONS)
    sink = io.BytesIO()
    pq.write_table(
        rows,
        sink,
        row_group_size=GROUP_ROWS,
        compression="zstd",
        compression_level=1,
        store_schema=False,
    )
    data = sink.getvalue()
    location = f"{folder}/data/{uuid.uuid4()}-deletes.parquet"
    files.put(location, data)
    # Whole and not truncated, as usual bounds are: readers match delete files by equality.
    bound = {FILE_PATH_ID: path.encode()}
    statistics = {
        "record_count": len(positions),
        "value_counts": {FILE_PATH_ID: len(positions), POSITION_ID: len(positions)},
        "lower_bounds": bound,
        "upper_bounds": bound,
    }
    return _file(DataFileContent.POSITION_DELETES, location, len(data), statistics)


def read_positions(files: LakeFiles, location: str) -> dict[str, Ints]:
    """The deleted positions in a delete file, by data file."""
    table = pq.read_table(pa.BufferReader(files.get(location)), columns=["file_path", "pos"])
    paths: Any = pc.dictionary_encode(whole(table.column("file_path")))
    positions = table.column("pos").to_numpy()
    codes = paths.indices.to_numpy()
    return {
        name: np.sort(positions[codes == code])
        for code, name in enumerate(paths.dictionary.to_pylist())
    }


def open_file(files: LakeFiles, location: str) -> pq.ParquetFile:
    """A data file, fetched as a whole."""
    return pq.ParquetFile(pa.BufferReader(files.get(location)))


def read_columns(files: LakeFiles, location: str, ids: list[int]) -> pa.Table:
    """Columns of a data file by their field IDs; absent ones, which are null, are left out."""
    file = open_file(files, location)
    by_id = names_by_id(file)
    names = {number: by_id[number] for number in ids if number in by_id}
    table = file.read(columns=list(names.values()), use_threads=False)
    return table.select(list(names.values())).rename_columns([str(number) for number in names])


def read_rows(files: LakeFiles, location: str, schema: Schema, rows: int) -> Iterator[pa.Table]:
    """A data file's rows in order, some at a time, with the columns that it has of a schema."""
    file = open_file(files, location)
    by_id = names_by_id(file)
    names = {
        by_id[field.field_id]: field.name for field in schema.fields if field.field_id in by_id
    }
    if not names:
        yield from _without_columns(file.metadata.num_rows, rows)
        return
    for batch in file.iter_batches(rows, columns=list(names), use_threads=False):
        table = pa.Table.from_batches([batch]).select(list(names))
        yield table.rename_columns(list(names.values()))


def _without_columns(total: int, rows: int) -> Iterator[pa.Table]:
    """Rows of a file that has no column of the schema: they exist all the same."""
    for start in range(0, total, rows):
        count = min(rows, total - start)
        yield pa.Table.from_arrays([pa.nulls(count)], names=[""])


def names_by_id(file: pq.ParquetFile) -> dict[int, str]:
    """The names of a file's columns, as they were when it was written, by field ID."""
    return {
        int((field.metadata or {}).get(_FIELD_ID.encode(), b"-1")): field.name
        for field in file.schema_arrow
    }


def _file(
    content: DataFileContent,
    location: str,
    size: int,
    statistics: dict[str, Any],
    sort_order_id: int | None = None,
) -> DataFile:
    return DataFile.from_args(
        content=content,
        file_path=location,
        file_format=FileFormat.PARQUET,
        # No table of the lake is partitioned, so each has the one empty specification.
        partition=Record(),
        file_size_in_bytes=size,
        sort_order_id=sort_order_id,
        spec_id=0,
        equality_ids=None,
        key_metadata=None,
        **statistics,
    )
