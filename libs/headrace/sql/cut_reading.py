"""Reads cuts from the lake's catalog, and the files that each table has in one.

Promises that what it returns is one cut of all tables: pointers that moved while they were read are
read again, and a table is read at the snapshot that the cut names, even if another program has
committed since. Blocking.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from headrace.lake import snapshots
from headrace.lake.catalog import Catalog, Cut, TableName
from headrace.lake.errors import LakeError
from headrace.lake.files import LakeFiles, LakeIO
from headrace.lake.snapshots import TableFiles
from headrace.lake.tables import LakeTable, described_table

READS_MAX = 10
"""Reads of the catalog before a cut that never stays is an error."""
CUTS_MAX = 100_000


class CutMovedError(LakeError):
    """Cuts came faster than they could be read."""

    retry = True


@dataclass(frozen=True, slots=True)
class CutTable:
    """A table in a cut."""

    # Of the Iceberg table: it stays when the table is renamed or copied again.
    identity: str
    table: LakeTable
    # The fields of its snapshot, which an older cut may show under other names.
    schema: Schema
    # The name of each field that any of its schemas had, if only one field had it.
    former_names: Mapping[str, int]
    snapshot_id: int
    files: TableFiles


@dataclass(frozen=True, slots=True)
class CutTables:
    """All tables of a cut."""

    cut: Cut
    tables: Mapping[TableName, CutTable]


class CutReader:
    """Reads one suite's cuts; any thread may use it."""

    def __init__(self, files: LakeFiles, catalog: Catalog, slot: str) -> None:
        self.files = files
        self._io = LakeIO(files)
        self._catalog = catalog
        self._slot = slot
        # Metadata and manifests don't change; those of the last cut stay in memory.
        self._metadata: dict[str, TableMetadata] = {}
        self._tables: dict[tuple[str, int], CutTable] = {}
        # A catalog is used by one thread at a time.
        self._lock = threading.Lock()

    def last(self) -> Cut | None:
        """The last cut."""
        with self._lock:
            return self._catalog.last_cut(self._slot)

    def cuts(self) -> list[Cut]:
        """All cuts that are kept, the newest first."""
        with self._lock:
            return list(self._catalog.cuts(self._slot, CUTS_MAX))

    def read(self) -> CutTables | None:
        """The last cut with its tables; None before the first."""
        with self._lock:
            for _ in range(READS_MAX):
                cut = self._catalog.last_cut(self._slot)
                if cut is None:
                    return None
                locations = self._catalog.tables()
                # A cut moves its pointers in one transaction: they are those of the cut that was
                # the last one before and after they were read.
                again = self._catalog.last_cut(self._slot)
                # Between the two looks a cut may have moved some of the pointers that were read.
                if again is None or (again.number, again.attempt) != (cut.number, cut.attempt):
                    continue
                return CutTables(again, self._read(cut, locations))
        raise CutMovedError("the lake's cuts come faster than they can be read")

    def read_older(self, cut: Cut) -> CutTables:
        """The tables of the last cut as they were in an older one, as far as they were in it."""
        with self._lock:
            found = {}
            for name, metadata in self._described(self._catalog.tables()).items():
                shown = {snapshot.snapshot_id for snapshot in metadata.snapshots}
                for snapshot_id in shown.intersection(cut.tables.values()):
                    found[name] = self._table(name, metadata, snapshot_id)
        return CutTables(cut, found)

    def _read(self, cut: Cut, locations: Mapping[TableName, str]) -> dict[TableName, CutTable]:
        ours = {name: place for name, place in locations.items() if str(name) in cut.tables}
        # Only what this cut uses is kept, so memory doesn't grow with the number of cuts.
        before = self._tables
        self._tables = {}
        found = {}
        for name, metadata in self._described(ours).items():
            place = (ours[name], cut.tables[str(name)])
            found[name] = before.get(place) or self._table(name, metadata, place[1])
            self._tables[place] = found[name]
        return found

    def _described(self, locations: Mapping[TableName, str]) -> dict[TableName, TableMetadata]:
        """The metadata of this suite's tables: others may be in the same catalog."""
        known = self._metadata
        self._metadata = {
            place: known.get(place) or snapshots.load_metadata(self._io, place)
            for place in locations.values()
            if self.files.contains(place)
        }
        return {
            name: self._metadata[place]
            for name, place in locations.items()
            if place in self._metadata
            and described_table(name, self._metadata[place].properties, self._slot) is not None
        }

    def _table(self, name: TableName, metadata: TableMetadata, snapshot_id: int) -> CutTable:
        table = described_table(name, metadata.properties, self._slot)
        assert table is not None, "another program's tables are not read"
        snapshot = metadata.snapshot_by_id(snapshot_id)
        # 0 is a table without a snapshot, which has no rows.
        if snapshot is None and snapshot_id:
            raise LakeError(
                f"the snapshot {snapshot_id} of {name} is gone",
                remedy="Let only the lake-writer expire snapshots that its cuts show.",
            )
        schemas = {schema.schema_id: schema for schema in metadata.schemas}
        schema_id = None if snapshot is None else snapshot.schema_id
        return CutTable(
            str(metadata.table_uuid),
            table,
            metadata.schema() if schema_id is None else schemas[schema_id],
            _former_names(metadata),
            snapshot_id,
            snapshots.load_files(self._io, snapshot),
        )


def _former_names(metadata: TableMetadata) -> dict[str, int]:
    ids: dict[str, set[int]] = {}
    for schema in metadata.schemas:
        for field in schema.fields:
            ids.setdefault(field.name, set()).add(field.field_id)
    return {name: next(iter(numbers)) for name, numbers in ids.items() if len(numbers) == 1}
