"""Writes a lake: applies archive files to tables, and makes cuts.

Promises: a cut contains exactly the changes that committed before its LSN, of every table; readers
see all of it or nothing; the next writer continues from the last cut and needs nothing else. A
commit whose answer was lost is recognised by its attempt, and never made twice or undone.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddSchemaUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    TableUpdate,
)

from headrace.archive.metadata import WalFileInfo
from headrace.lake import snapshots
from headrace.lake.apply import LakeRowMissingError, apply
from headrace.lake.batches import Batch, TableBatch, runs, since
from headrace.lake.catalog import Catalog, Cut, Move, TableName
from headrace.lake.draft import ColumnCache, DraftChanges, TableDraft
from headrace.lake.errors import CutRefusedError, LakeError, UnownedTableError
from headrace.lake.expiry import CutRetention, expired
from headrace.lake.files import LakeFiles, LakeIO
from headrace.lake.metadata import PREVIOUS_MAX
from headrace.lake.snapshots import TableFiles, TableSnapshot
from headrace.lake.tables import LakeTable, described_table, evolve, table_properties
from headrace.lsn import format_lsn
from headrace.process.failpoint import failpoint

_PROPERTIES = {
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": str(PREVIOUS_MAX),
}


@dataclass(frozen=True, slots=True)
class Source:
    """The database that a lake's tables come from."""

    slot: str
    system_id: str
    timeline: int
    # The archive's ID.
    archive: str


@dataclass(slots=True)
class _Followed:
    """A table that the writer keeps current."""

    table: LakeTable
    snapshot: TableSnapshot
    draft: TableDraft
    # The catalog's pointer under the table's present name.
    pointer: str | None
    # Whether the current metadata describes this table as it is now.
    described: bool = True
    # Snapshots that go even if nothing else changes.
    expired: tuple[int, ...] = ()

    @property
    def new(self) -> bool:
        """Whether there is no snapshot yet."""
        return not self.snapshot.location

    @property
    def changed(self) -> bool:
        """Whether the next cut needs another snapshot of it."""
        return self.draft.changed or self.new or not self.described

    @property
    def written(self) -> bool:
        """Whether the next cut needs other metadata of it."""
        return self.changed or bool(self.expired)


class LakeWriter:
    """The only writer of a source's tables; used by one thread at a time."""

    def __init__(
        self,
        files: LakeFiles,
        catalog: Catalog,
        source: Source,
        cache_bytes: int,
        keep_cuts: int,
        keep_s: float = math.inf,
    ) -> None:
        self._files = files
        self._io = LakeIO(files)
        self._catalog = catalog
        self._source = source
        self._cache = ColumnCache(cache_bytes)
        self._keep = CutRetention(keep_cuts, keep_s)
        self._followed: dict[TableName, _Followed] = {}
        self._dropped: dict[TableName, str] = {}
        # Why a table has to be copied again.
        self.to_copy: dict[TableName, str] = {}
        self.last_cut: Cut | None = None

    def open(self) -> None:
        """Read the last cut and its tables; forget everything else."""
        self._catalog.prepare()
        self._followed.clear()
        self._dropped.clear()
        self.to_copy.clear()
        self.last_cut = self._catalog.last_cut(self._source.slot)
        made = {} if self.last_cut is None else self.last_cut.tables
        for name, location in self._catalog.tables().items():
            if str(name) not in made or not self._files.contains(location):
                # Another source's table, or a foreign one.
                continue
            snapshot = snapshots.load(self._io, location)
            table = described_table(name, snapshot.metadata.properties, self._source.slot)
            if table is not None:
                self._follow(table, snapshot)

    def _follow(self, table: LakeTable, snapshot: TableSnapshot) -> _Followed:
        schema = snapshot.metadata.schema()
        folder = snapshot.metadata.location
        draft = TableDraft(self._files, folder, snapshot.files, self._cache, schema)
        followed = _Followed(table, snapshot, draft, snapshot.location or None)
        self._followed[table.name] = followed
        return followed

    def copy_all(self, reason: str) -> None:
        """Every table has to be copied again."""
        # The tables stay in the cuts as they are until their copies replace them, at one LSN.
        self.to_copy.update(dict.fromkeys(self._followed, reason))

    @property
    def tables(self) -> Mapping[TableName, LakeTable]:
        """The tables that are kept current."""
        return {name: followed.table for name, followed in self._followed.items()}

    @property
    def complete_from(self) -> int:
        """The first LSN at which all tables show the same moment: copies are of different ones."""
        return max((each.table.from_lsn for each in self._followed.values()), default=0)

    @property
    def changed(self) -> bool:
        """Whether the next cut would differ from the last one."""
        return bool(self._dropped) or any(
            each.written or each.pointer != each.snapshot.location
            for each in self._followed.values()
        )

    @property
    def snapshots(self) -> Mapping[TableName, TableSnapshot]:
        """The tables as the last cut has them."""
        return {name: followed.snapshot for name, followed in self._followed.items()}

    # Upkeep

    def replace_files(
        self, name: TableName, removed: Sequence[str], added: Sequence[DataFile]
    ) -> None:
        """Data files go, whose living rows are in others; while no change of them waits."""
        draft = self._followed[name].draft
        draft.remove_files(removed)
        draft.add_files(added)

    def expire(self, keep: CutRetention) -> int:
        """Drop more snapshots than cuts do, with the next cut; how many go."""
        self._keep = keep
        now_us = time.time_ns() // 1000
        for followed in self._followed.values():
            metadata = followed.snapshot.metadata
            followed.expired = tuple(expired(metadata, keep, now_us, added=0))
        return sum(len(followed.expired) for followed in self._followed.values())

    # Copies

    def table_for_copy(self, name: TableName) -> LakeTable | None:
        """The table as the lake has it; None if it is new."""
        followed = self._followed.get(name)
        return None if followed is None else followed.table

    def prepare_copy(self, table: LakeTable) -> tuple[str, Schema]:
        """Where to write the copy's files, and their schema."""
        followed = self._followed.get(table.name)
        if followed is None:
            # A name that the next cut drops is free already: the drop and the new table move in the
            # same transaction of the catalog.
            if table.name in self._catalog.tables().keys() - self._dropped.keys():
                raise UnownedTableError(
                    f"the lake has a table {table.name} that this suite did not make",
                    remedy="Rename or drop it, or use another lake for this suite.",
                )
            return self._folder(table.name), table.schema(0)
        # A second copy goes to the same folder: readers of older cuts still need the files there.
        return followed.snapshot.metadata.location, self._next_schema(followed.snapshot, table)

    def adopt(self, table: LakeTable, folder: str, files: Sequence[DataFile]) -> None:
        """The table is what the copy contains."""
        followed = self._followed.get(table.name)
        if followed is None:
            followed = self._create(table, folder)
        else:
            self._reshape(followed, table)
        # In one step with the new files: no cut can show the table without rows, or with both.
        followed.draft.truncate()
        followed.draft.add_files(files)
        self.to_copy.pop(table.name, None)

    def _folder(self, name: TableName) -> str:
        return self._files.location(f"{_quoted(name.namespace)}/{_quoted(name.name)}-{_new_id()}")

    def _create(self, table: LakeTable, folder: str) -> _Followed:
        schema = table.schema(0)
        metadata = new_table_metadata(
            schema,
            UNPARTITIONED_PARTITION_SPEC,
            UNSORTED_SORT_ORDER,
            folder,
            {"format-version": "2", **_PROPERTIES, **self._described(table)},
        )
        # It numbers fields again, in another order; files have the numbers of the table.
        metadata = metadata.model_copy(
            update={"schemas": [schema], "last_column_id": table.last_id}
        )
        return self._follow(table, TableSnapshot(metadata, "", TableFiles()))

    def drop(self, name: TableName) -> None:
        """The table is not part of the next cut."""
        pointer = self._followed.pop(name).pointer
        if pointer is not None:
            self._dropped[name] = pointer
        self.to_copy.pop(name, None)

    def rename(self, name: TableName, new_name: TableName) -> None:
        """The table has another name from the next cut on."""
        followed = self._followed[name]
        self.drop(name)
        followed.table = replace(followed.table, name=new_name)
        # The pointer belongs to the old name, which `drop` has noted. The new name has none yet.
        followed.pointer = None
        self._followed[new_name] = followed
        self.to_copy.pop(new_name, None)

    # Changes

    def take(self, info: WalFileInfo, rows: pa.Table) -> None:
        """Apply an archive file's rows."""
        for name, version, run in runs(rows):
            self._rename_by(info, name, version)
            followed = self._followed.get(name)
            if followed is None or name in self.to_copy:
                continue
            # The copy contains everything before its LSN; applying that again would insert rows
            # twice.
            batch = since(run, followed.table.from_lsn)
            if not batch.num_rows:
                continue
            shape = info.table(name.namespace, name.name, version)
            if shape is None:
                raise LakeError(f"archive file {info.id} does not describe {name}")
            evolution = evolve(followed.table, shape)
            if evolution.copy is not None:
                # The table's changes are skipped from here on: the copy will contain them.
                self.to_copy[name] = evolution.copy
                continue
            if evolution.table != followed.table:
                self._reshape(followed, evolution.table)
            try:
                apply(followed.draft, followed.table, batch)
            # The lake and the source differ. A new copy repairs that; continuing would hide it.
            except LakeRowMissingError as error:
                self.to_copy[name] = str(error)

    def plan(self, infos: Sequence[WalFileInfo]) -> Batch:
        """As many archive files, from the first on, as another process can apply as a whole: of
        each table, they show one shape, and it needs no copy. None if the first is not so.
        """
        files = 0
        changed: dict[TableName, list[int]] = {}
        for info in infos:
            shapes = None if info.gap is not None else self._shapes(info)
            if shapes is None:
                break
            different = [name for name in shapes if shapes[name] != self._followed[name].table]
            # The batch ends before a file that shows another shape: a job reads all of its files
            # with one.
            if different and files:
                break
            for name in different:
                # Only the batch's first file gets here: nothing is planned with the shape from
                # before.
                self._reshape(self._followed[name], shapes[name])
            for name in shapes:
                changed.setdefault(name, []).append(info.id)
            files += 1
        return Batch(
            files,
            tuple(self._table_batch(name, tuple(ids)) for name, ids in changed.items()),
        )

    def _table_batch(self, name: TableName, files: tuple[int, ...]) -> TableBatch:
        followed = self._followed[name]
        return TableBatch(followed.table, followed.draft.state(), files)

    def _shapes(self, info: WalFileInfo) -> dict[TableName, LakeTable] | None:
        """The tables that a file changes, in its shape; None if that isn't known in advance."""
        shapes: dict[TableName, LakeTable] = {}
        for shape in info.tables:
            name = TableName(shape.schema, shape.table)
            followed = self._followed.get(name)
            if followed is None and self._is_followed(shape.relation_id):
                # The table has another name from here on.
                return None
            if followed is None or name in self.to_copy:
                continue
            # All of it is in the copy.
            if info.last.lsn < followed.table.from_lsn:
                continue
            evolution = evolve(followed.table, shape)
            # Rows from before the copy may have had another shape.
            early = info.first.lsn < followed.table.from_lsn
            same = evolution.table == followed.table
            # A second entry for the table is a change of its shape within the file.
            if name in shapes or evolution.copy is not None or (early and not same):
                return None
            shapes[name] = evolution.table
        return shapes

    def _is_followed(self, relation_id: int) -> bool:
        return any(each.table.relation_id == relation_id for each in self._followed.values())

    def absorb(self, name: TableName, parts: Sequence[DraftChanges]) -> None:
        """Take the results of other processes for a table's part of a batch."""
        self._followed[name].draft.absorb(parts)

    def _rename_by(self, info: WalFileInfo, name: TableName, version: int) -> None:
        """A change may be the first that has a table's new name."""
        shape = info.table(name.namespace, name.name, version)
        if name in self._followed or shape is None:
            return
        for followed in list(self._followed.values()):
            if followed.table.relation_id == shape.relation_id:
                self.rename(followed.table.name, name)

    def _reshape(self, followed: _Followed, table: LakeTable) -> None:
        schema = self._next_schema(followed.snapshot, table)
        if schema.schema_id != followed.draft.schema.schema_id or schema != followed.draft.schema:
            # Waiting rows have the columns from before.
            followed.draft.write_waiting()
            followed.draft.schema = schema
        followed.table = table
        followed.described = False

    def _next_schema(self, snapshot: TableSnapshot, table: LakeTable) -> Schema:
        current = snapshot.metadata.schema()
        schema = table.schema(current.schema_id)
        if schema == current:
            return current
        # Never the number of an earlier schema: old snapshots refer to theirs by number.
        highest = max(known.schema_id for known in snapshot.metadata.schemas)
        return table.schema(highest + 1)

    # Cuts

    def cut(self, lsn: int, ordinal: int, archive_file: int, commit_us: int | None) -> Cut:
        """Make a cut of all tables at an LSN; raises if another writer was first."""
        number = 1 if self.last_cut is None else self.last_cut.number + 1
        # It tells this commit from another writer's with the same number, if the answer is lost.
        attempt = _new_id()
        properties = {
            "headrace.cut": str(number),
            "headrace.lsn": format_lsn(lsn),
            "headrace.archive-file": str(archive_file),
            "headrace.system-id": self._source.system_id,
            "headrace.timeline": str(self._source.timeline),
        }
        failpoint("lake.before_write")
        # Files first, pointers last (ADR 0032): a crash before the commit leaves files that no
        # reader finds.
        written = {
            name: self._write(followed, properties)
            for name, followed in self._followed.items()
            if followed.written
        }
        # A name may be dropped and taken again.
        moves = [Move(name, pointer, None) for name, pointer in self._dropped.items()]
        for name, followed in self._followed.items():
            location = written.get(name, followed.snapshot).location
            if location != followed.pointer:
                moves.append(Move(name, followed.pointer, location))
        current = {
            str(name): written.get(name, followed.snapshot).metadata.current_snapshot_id or 0
            for name, followed in self._followed.items()
        }
        cut = Cut(
            self._source.slot,
            number,
            attempt,
            self._source.system_id,
            self._source.archive,
            archive_file,
            lsn,
            ordinal,
            time.time_ns() // 1000,
            commit_us,
            current,
        )
        failpoint("lake.before_commit")
        self._commit(cut, moves)
        failpoint("lake.after_commit")
        for name, followed in list(self._followed.items()):
            followed.pointer = followed.snapshot.location
            # Only now: if the commit fails, the drafts still contain the changes.
            if name in written:
                self._follow(followed.table, written[name])
                self._followed[name].draft = followed.draft.next(written[name])
        self._dropped.clear()
        self.last_cut = cut
        return cut

    def advance(self, lsn: int, archive_file: int) -> None:
        """The last cut also shows a later LSN, because no table has changed since."""
        assert self.last_cut is not None, "there is a cut to advance"
        cut = replace(self.last_cut, lsn=lsn, archive_file=archive_file)
        self._catalog.advance(cut)
        self.last_cut = cut

    def _commit(self, cut: Cut, moves: Sequence[Move]) -> None:
        try:
            since_us = self._keep.since_us(cut.made_us)
            self._catalog.commit(cut, moves, cut.number + 1 - self._keep.cuts, since_us)
        except CutRefusedError:
            # The answer to an earlier try of this very commit may have been lost.
            if not self._made(cut):
                raise
        except LakeError as error:
            # The answer may have been lost after the commit. The attempt in the row decides, and
            # only a commit that isn't there is an error.
            if not error.retry or not self._made(cut):
                raise

    def _made(self, cut: Cut) -> bool:
        known = self._catalog.last_cut(self._source.slot)
        return known is not None and (known.number, known.attempt) == (cut.number, cut.attempt)

    def _write(self, followed: _Followed, properties: Mapping[str, str]) -> TableSnapshot:
        if not followed.changed:
            return snapshots.expire(self._io, followed.snapshot, followed.expired)
        changes = followed.draft.finish()
        metadata = followed.snapshot.metadata
        return snapshots.next_snapshot(
            self._io,
            followed.snapshot,
            changes,
            properties,
            self._updates(followed, metadata),
            expired(metadata, self._keep, time.time_ns() // 1000),
        )

    def _updates(self, followed: _Followed, metadata: TableMetadata) -> Iterator[TableUpdate]:
        schema = followed.draft.schema
        if schema.schema_id != metadata.current_schema_id:
            yield AddSchemaUpdate(schema=schema)
            # -1 is the schema that was added last.
            yield SetCurrentSchemaUpdate.model_validate({"schema-id": -1})
        if not followed.described:
            yield SetPropertiesUpdate(updates=self._described(followed.table))

    def _described(self, table: LakeTable) -> dict[str, str]:
        return table_properties(table, self._source.slot)


def _quoted(name: str) -> str:
    """A name as a part of a location."""
    # Two names may become one here; the random ID behind it keeps their folders apart.
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in name)


def _new_id() -> str:
    return secrets.token_hex(8)
