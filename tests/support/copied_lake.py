"""A copy of a lake, and its rows as a reader sees them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.contract import type_oids
from headrace.lake.catalog import TableName
from headrace.lake.files import LakeFiles
from headrace.lake.sqlite_catalog import SqliteCatalog
from headrace.lake.tables import LakeTable
from headrace.sql.cut_reading import CutReader
from headrace.sql.lake_copy import LakeCopy
from headrace.sql.lake_copy_database import CopyLimits
from headrace.sql.pins import PinnedCut
from headrace.sql.relations import Defined, LakeRelation, RelationColumn
from headrace.sql.storage_types import TEXT_OID


def limits(
    folder: Path, memory_mb: int = 500, spill_mb: int = 500, pin_s: float = 600.0
) -> CopyLimits:
    return CopyLimits(memory_mb, 2, folder / "spill", spill_mb, pin_s)


class Definitions:
    """Defines tables as PostgreSQL would, with OIDs that stay; the tables are then in `names`."""

    def __init__(self) -> None:
        self.names: dict[TableName, int] = {}
        self.calls = 0
        self.failure: Exception | None = None
        # Whether it answers as the first time.
        self.stale = False
        self._first: Mapping[TableName, Defined] = {}

    def __call__(self, tables: Mapping[TableName, LakeTable]) -> Mapping[TableName, Defined]:
        self.calls += 1
        if self.failure is not None:
            raise self.failure
        if self.stale:
            return self._first
        found = {name: self._defined(table) for name, table in tables.items()}
        self._first = self._first or found
        return found

    def _defined(self, table: LakeTable) -> Defined:
        relid = self.names.setdefault(table.name, 16_400 + len(self.names))
        columns = tuple(
            # A user's type is text there.
            RelationColumn(number, info.name, info.type_oid, info.type_modifier)
            if info.type_oid < type_oids.FIRST_USER
            else RelationColumn(number, info.name, TEXT_OID, -1)
            for number, info in enumerate(table.infos, 1)
        )
        return Defined(relid, columns)


class ReadableCopy:
    """A copy of a lake in a local folder, with its own connection to the catalog."""

    def __init__(
        self, folder: Path, slot: str = "headrace", files: LakeFiles | None = None, **bounds: Any
    ) -> None:
        self.definitions = Definitions()
        files = files or LakeFiles(f"file://{folder}")
        reader = CutReader(files, SqliteCatalog(folder / "catalog.db"), slot)
        self.copy = LakeCopy(reader, limits(folder, **bounds), self.definitions)

    def relation(self, pin: PinnedCut, name: TableName) -> LakeRelation:
        return pin.relations[self.definitions.names[name]]

    def rows(
        self, pin: PinnedCut, name: TableName, *columns: str, where: str = "true"
    ) -> list[Any]:
        """Columns of a table, sorted; all columns by default."""
        table = self.relation(pin, name)
        pin.prepare([table.relid])
        copied = {column.name: column.copy for column in table.columns}
        names = ", ".join(copied[column] for column in columns or copied)
        with pin.using() as cursor:
            found = cursor.execute(f"SELECT {names} FROM {table.copy} WHERE {where}").fetchall()
        return sorted(found, key=str)

    def close(self) -> None:
        self.copy.close()
