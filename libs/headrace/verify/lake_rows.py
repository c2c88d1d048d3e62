"""A table's rows in a snapshot of the lake, read with PyIceberg's plan and pyarrow.

Shares no code with the lake-writer but the access to files: neither its search for keys nor its
list of files.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import FileScanTask, Table

from headrace.lake.files import LakeFiles, LakeIO
from headrace.verify.digest import Row
from headrace.verify.lake_forms import PrintedText

# pyarrow's stubs lack calls that are used here.
pc: Any = pyarrow.compute
READ_ROWS = 5000
EXACT = "_headrace_exact"
_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class LakeRows:
    """The rows of a table in a snapshot, with the columns of `names`, in this order."""

    files: LakeFiles
    location: str
    snapshot_id: int
    names: Sequence[str]

    def schema(self) -> Schema:
        """The table's schema in that snapshot."""
        return self._table().scan(snapshot_id=self.snapshot_id).projection()

    def _table(self) -> Table:
        io = LakeIO(self.files)
        metadata = FromInputFile.table_metadata(io.new_input(self.location))
        catalog = NoopCatalog("verify")
        return Table(("verify", "table"), metadata, self.location, io, catalog)

    async def rows(self) -> AsyncIterator[list[Row]]:
        """All rows, some at a time."""
        found = self._rows()
        while True:
            some = await asyncio.to_thread(next, found, None)
            if some is None:
                return
            yield some

    def _rows(self) -> Iterator[list[Row]]:
        table = self._table()
        scan = table.scan(snapshot_id=self.snapshot_id)
        schema = scan.projection()
        for task in scan.plan_files():
            yield from self._rows_of(task, schema)

    def _rows_of(self, task: FileScanTask, schema: Schema) -> Iterator[list[Row]]:
        deleted = self._deleted(task)
        file = pq.ParquetFile(pa.BufferReader(self.files.get(task.file.file_path)))
        stored = {
            int((field.metadata or {}).get(_FIELD_ID, b"-1")): field.name
            for field in file.schema_arrow
        }
        wanted = [stored.get(schema.find_field(name).field_id) for name in (*self.names, EXACT)]
        columns = [name for name in wanted if name is not None]
        start = 0
        for batch in file.iter_batches(READ_ROWS, columns=columns, use_threads=False):
            lists = []
            for name in wanted:
                # The file is older than the column.
                if name is None:
                    lists.append([None] * batch.num_rows)
                else:
                    lists.append(batch.column(name).to_pylist())
            gone = set(deleted[(deleted >= start) & (deleted < start + batch.num_rows)] - start)
            start += batch.num_rows
            yield [
                _row(self.names, values)
                for place, values in enumerate(zip(*lists, strict=True))
                if place not in gone
            ]

    def _deleted(self, task: FileScanTask) -> np.ndarray[Any, np.dtype[np.int64]]:
        found = [np.array([], np.int64)]
        for each in task.delete_files:
            table = pq.read_table(pa.BufferReader(self.files.get(each.file_path)))
            here = pc.equal(table.column("file_path"), task.file.file_path)
            found.append(table.filter(here).column("pos").to_numpy())
        return np.concatenate(found)


def _row(names: Sequence[str], values: tuple[Any, ...]) -> Row:
    """The values, with PostgreSQL's text in place of those that the columns can't hold."""
    *held, exact = values
    if not exact:
        return tuple(held)
    texts = dict(exact)
    return tuple(
        PrintedText(texts[name]) if name in texts else value
        for name, value in zip(names, held, strict=True)
    )
