"""A lake in a local folder with its catalog in SQLite, changed without a database: rows are
numbers with notes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema

from headrace.archive.columns import SCHEMA
from headrace.archive.metadata import ColumnInfo, TableInfo, WalFileInfo
from headrace.lake import data_files
from headrace.lake.catalog import Catalog, Cut, TableName
from headrace.lake.compaction import CompactionLimits
from headrace.lake.files import LakeFiles
from headrace.lake.sqlite_catalog import SqliteCatalog
from headrace.lake.tables import copied, new_table
from headrace.lake.writer import LakeWriter, Source

NUMBERS = TableName("public", "numbers")
SLOT = "headrace"
LIMITS = CompactionLimits(
    target_bytes=128 << 20, files_min=4, deleted_share=0.2, bytes_max=128 << 20, deleted_bytes_min=0
)
COLUMNS = (
    ColumnInfo("id", 20, -1, "bigint", True, number=1),
    ColumnInfo("note", 25, -1, "text", False, number=2),
)
MORE = (*COLUMNS, ColumnInfo("extra", 20, -1, "bigint", False, filled=False, number=3))


def numbered(rows: int) -> pa.Table:
    """Rows of the numbers from 0 on."""
    notes = [f"note {number}" for number in range(rows)]
    return pa.table({"id": pa.array(range(rows), pa.int64()), "note": pa.array(notes, pa.string())})


def written(files: LakeFiles, folder: str, schema: Schema, rows: pa.Table) -> list[DataFile]:
    """The rows as a data file; no file where there are none."""
    found = data_files.write_parts(files, folder, schema, iter([rows] if len(rows) else []))
    return [] if found is None else [found]


def archived(
    table: TableInfo,
    lsn: int,
    operation: str,
    keys: Sequence[int],
    after: Sequence[str | None],
    unchanged: Sequence[str] = (),
) -> pa.Table:
    """The changes of one transaction, as the archive has them, without the unchanged columns."""
    count = len(keys)
    columns = {
        "commit_lsn": [lsn] * count,
        "ordinal": range(count),
        "lsn": [lsn] * count,
        "xid": [lsn] * count,
        "commit_time": pa.array([lsn] * count).cast(pa.timestamp("us", tz="UTC")),
        "schema": [table.schema] * count,
        "table": [table.table] * count,
        "operation": [operation] * count,
        "key": [json.dumps({"id": key}) for key in keys],
        "before": pa.nulls(count, pa.string()),
        "after": pa.array(after, pa.string()),
        "unchanged": pa.array([list(unchanged) or None] * count, pa.list_(pa.string())),
        "schema_version": pa.array([table.version] * count, pa.int32()),
        "exact": pa.nulls(count, pa.string()),
    }
    return pa.table(columns).select(SCHEMA.names).cast(SCHEMA)


def segment(number: int, lsn: int, table: TableInfo) -> WalFileInfo:
    """An archive file that ends with this transaction, of changes of one table."""
    return WalFileInfo(
        id=number,
        archive="made",
        epoch=1,
        writer="test",
        source=SLOT,
        database="db",
        system_id="1",
        timeline=1,
        from_lsn=0,
        end_lsn=lsn + 1,
        rows=1,
        tables=(table,),
    )


class LocalLake:
    """A lake's writer and its files; each statement is a transaction, and each cut shows all."""

    def __init__(self, folder: Path, keep_cuts: int = 100, catalog: Catalog | None = None) -> None:
        self.folder = folder
        self.files = LakeFiles(f"file://{folder}")
        self.catalog = catalog or SqliteCatalog(folder / "catalog.db")
        self.writer = LakeWriter(
            self.files, self.catalog, Source(SLOT, "1", 1, "archive"), 64 << 20, keep_cuts
        )
        self.writer.open()
        self.columns: tuple[ColumnInfo, ...] = COLUMNS
        self._version = 1
        self._file = 0
        self._lsn = 100

    def create(self, name: TableName = NUMBERS, rows: int = 0) -> None:
        """A table as a copy makes it, and the cut that has it."""
        self.create_with(numbered(rows), name)

    def create_with(self, rows: pa.Table, name: TableName = NUMBERS) -> None:
        """A table of these rows."""
        table = new_table(name, 1000, self.columns, ("id",), self._lsn)
        folder, schema = self.writer.prepare_copy(table)
        self.writer.adopt(table, folder, written(self.files, folder, schema, rows))
        self.cut()

    def add_column(self) -> None:
        """From now on rows have another column, which is null in earlier ones."""
        self.columns = MORE
        self._version += 1

    def rename_column(self) -> None:
        """From now on the second column has another name."""
        self.columns = (self.columns[0], replace(self.columns[1], name="remark"), *self.columns[2:])
        self._version += 1

    def retype_column(self) -> None:
        """From now on the second column has another type, of the same values."""
        second = replace(self.columns[1], type_oid=1043, type_name="character varying")
        self.columns = (self.columns[0], second, *self.columns[2:])
        self._version += 1

    def insert(self, numbers: Sequence[int], note: str = "") -> None:
        """Rows of these numbers come."""
        self._change("insert", numbers, note)

    def update(self, numbers: Sequence[int], note: str) -> None:
        """Rows get another note."""
        self._change("update", numbers, note)

    def delete(self, numbers: Sequence[int]) -> None:
        """Rows go."""
        self._change("delete", numbers, "")

    def truncate(self) -> None:
        """All rows go."""
        self._change("truncate", [0], "")

    def copy_again(self, name: TableName = NUMBERS, rows: int = 0) -> None:
        """The table's rows are those of a new copy, and the cut that has it."""
        before = self.writer.tables[name]
        table = copied(before, 1000, self.columns, ("id",), self._lsn)
        folder, schema = self.writer.prepare_copy(table)
        made = numbered(rows)
        if len(self.columns) > 2:
            made = made.append_column("extra", pa.array(range(0, 2 * rows, 2), pa.int64()))
        self.writer.adopt(table, folder, written(self.files, folder, schema, made))
        self.cut()

    def _change(self, operation: str, numbers: Sequence[int], note: str) -> None:
        rows = [
            {"id": number, self.columns[1].name: note or f"note {number}"}
            | ({"extra": number * 2} if len(self.columns) > 2 else {})
            for number in numbers
        ]
        after = [None if operation == "delete" else json.dumps(row) for row in rows]
        table = TableInfo(
            NUMBERS.namespace, NUMBERS.name, 1000, self._version, ("id",), self.columns
        )
        self.take(table, operation, numbers, after)

    def take(
        self,
        table: TableInfo,
        operation: str,
        keys: Sequence[int],
        after: Sequence[str | None],
        unchanged: Sequence[str] = (),
    ) -> None:
        """A transaction that changes rows of any table; its key is `id`."""
        self._lsn += 100
        self._file += 1
        changes = archived(table, self._lsn, operation, keys, after, unchanged)
        self.writer.take(segment(self._file, self._lsn, table), changes)

    def cut(self) -> Cut:
        """Make a cut of everything so far."""
        return self.writer.cut(self._lsn + 1, 0, self._file, None)

    def insert_in_cuts(self, cuts: int, rows: int = 10) -> None:
        """Make cuts, each with a file of so many rows."""
        for number in range(cuts):
            first = 1_000_000 * (self.cut_number + 1) + number * rows
            self.insert(range(first, first + rows))
            self.cut()

    @property
    def cut_number(self) -> int:
        """The last cut's number."""
        return self.writer.last_cut.number if self.writer.last_cut else 0

    def files_on_disk(self) -> set[str]:
        """The locations of all files, without the catalog's."""
        return {
            f"file://{path}"
            for path in self.folder.rglob("*")
            if path.is_file() and not path.name.startswith("catalog.db")
        }
