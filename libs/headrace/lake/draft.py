"""A table's next snapshot as it grows: rows that come and go before anything is committed.

New rows wait in memory until there are enough for a file, or until the next cut. Rows that go are
positions of data files, or of waiting rows, which are then never written. No cut refers to files of
a draft that is given up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema

from headrace.lake import data_files, locate
from headrace.lake.columns import Column, Ints, whole
from headrace.lake.files import LakeFiles
from headrace.lake.locate import Needles
from headrace.lake.snapshots import FileChanges, LiveFile, TableFiles, TableSnapshot

# Waiting rows are written when they take this much memory.
WAITING_BYTES_MAX = 64 << 20
# Rows of a file in which keys are looked up together.
_SEARCHED_ROWS = 131_072
_NONE: Ints = np.array([], np.int64)


class ColumnCache:
    """Key columns of data files, which don't change; the ones used last stay."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._tables: OrderedDict[tuple[str, tuple[int, ...]], pa.Table] = OrderedDict()

    def get(self, path: str, ids: Sequence[int], read: Callable[[], pa.Table]) -> pa.Table:
        """Columns of a file, read if they are not in memory."""
        place = (path, tuple(ids))
        table = self._tables.get(place)
        if table is None:
            table = read()
            self._tables[place] = table
            self._bytes += table.nbytes
        # Before the loop: the table that is asked for is the last to be dropped, however large it
        # is.
        self._tables.move_to_end(place)
        while self._bytes > self._bytes_max and len(self._tables) > 1:
            _, dropped = self._tables.popitem(last=False)
            self._bytes -= dropped.nbytes
        return table


@dataclass(slots=True)
class _Waiting:
    """Rows that are not in a file yet, and which of them still exist."""

    rows: pa.Table
    lives: np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """The columns of a key, by their field IDs; `exact` are those of them whose value in some key
    is a text in `_headrace_exact`.
    """

    ids: tuple[int, ...]
    exact: tuple[str, ...] = ()
    exact_id: int | None = None

    @property
    def read(self) -> tuple[int, ...]:
        """The columns to read."""
        if self.exact and self.exact_id is not None:
            return (*self.ids, self.exact_id)
        return self.ids

    def of(self, column: Callable[[int], Column]) -> list[Column]:
        """The values to compare, from the columns that `column` returns."""
        found = [column(number) for number in self.ids]
        if self.exact and self.exact_id is not None:
            texts = column(self.exact_id)
            found += [locate.entry_of(texts, name) for name in self.exact]
        return found


@dataclass(slots=True)
class Found:
    """Rows of the lake with the keys that were searched for."""

    # Positions by data file, and by the number of the waiting rows.
    in_files: dict[str, Ints] = field(default_factory=dict)
    waiting: dict[int, Ints] = field(default_factory=dict)
    # The keys of these rows, in the same order.
    codes: dict[str | int, Ints] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DraftState:
    """A draft whose rows are all in files, so that another process can continue it."""

    folder: str
    schema: Schema
    # All data files as of the draft, and the delete files of the current snapshot.
    files: TableFiles
    # Positions that are in no delete file yet.
    deleted: dict[str, Ints]


@dataclass(frozen=True, slots=True)
class DraftChanges:
    """The effect of a draft on the files that it began with."""

    added: list[DataFile]
    removed: frozenset[str]
    deleted: dict[str, Ints]


class TableDraft:
    """The next snapshot of a table."""

    def __init__(
        self,
        files: LakeFiles,
        folder: str,
        table: TableFiles,
        cache: ColumnCache,
        schema: Schema,
        deleted: Mapping[str, Ints] | None = None,
    ) -> None:
        """`deleted` are positions in delete files of the current snapshot, as far as known."""
        self._files = files
        self._folder = folder
        self._table = table
        self._cache = cache
        self.schema = schema
        self._added: dict[str, DataFile] = {}
        self._removed: set[str] = set()
        self._deleted: dict[str, list[Ints]] = {}
        # Positions in delete files of the current snapshot, read when needed.
        self._known_deleted: dict[str, Ints] = dict(deleted or {})
        self._shared: dict[str, Ints] | None = None
        self._waiting: list[_Waiting] = []
        # Positions that the process before deleted, if this continues its draft.
        self._deleted_before: dict[str, Ints] = {}

    @classmethod
    def continued(cls, files: LakeFiles, state: DraftState, cache: ColumnCache) -> TableDraft:
        """A draft that begins where another one is."""
        draft = cls(files, state.folder, state.files, cache, state.schema)
        # Not in `_deleted`, which `changes` returns: the draft that it continues has them already.
        draft._deleted_before = state.deleted
        return draft

    def state(self) -> DraftState:
        """The draft as it is now."""
        self.write_waiting()
        known = self._table.data
        # Files of the draft are in no snapshot yet, so they have no sequence number.
        data = {path: known.get(path) or LiveFile(file, 0, 0, 0) for path, file in self.files}
        files = TableFiles(data, self._table.deletes, self._table.shared_deletes)
        return DraftState(self._folder, self.schema, files, self._concatenated())

    def changes(self) -> DraftChanges:
        """The draft's changes so far."""
        self.write_waiting()
        added = list(self._added.values())
        return DraftChanges(added, frozenset(self._removed), self._concatenated())

    def absorb(self, parts: Sequence[DraftChanges]) -> None:
        """Make the changes of drafts that began where this one is; no two of them delete a row."""
        removed: set[str] = set()
        for part in parts:
            removed |= part.removed
        # Before anything is added: a part that truncates removes what the draft had, and never what
        # another part adds.
        self.remove_files(sorted(removed))
        for part in parts:
            self.add_files(part.added)
            for path, positions in part.deleted.items():
                # The file is gone with all of its rows.
                if path not in removed:
                    self._deleted.setdefault(path, []).append(positions)

    def _concatenated(self) -> dict[str, Ints]:
        return {path: np.concatenate(found) for path, found in self._deleted.items()}

    @property
    def changed(self) -> bool:
        """Whether the draft differs from the current snapshot."""
        return bool(self._added or self._removed or self._deleted or self._waiting)

    @property
    def files(self) -> list[tuple[str, DataFile]]:
        """The data files as of the draft."""
        kept = [
            (path, live.file)
            for path, live in self._table.data.items()
            if path not in self._removed
        ]
        return [*kept, *self._added.items()]

    def truncate(self) -> None:
        """All rows go."""
        # Files of the draft itself are forgotten: no snapshot knows them.
        self._removed.update(self._table.data)
        self._added.clear()
        self._deleted.clear()
        self._waiting.clear()

    def add_files(self, files: Sequence[DataFile]) -> None:
        """Rows that are in files already come."""
        self._added.update((file.file_path, file) for file in files)

    def remove_files(self, paths: Sequence[str]) -> None:
        """Files go; what they contained is in others."""
        for path in paths:
            # A file of the draft itself was never in a snapshot, so there is nothing to remove from
            # one.
            if self._added.pop(path, None) is None:
                self._removed.add(path)
            self._deleted.pop(path, None)

    def append(self, rows: pa.Table) -> None:
        """New rows come."""
        if rows.num_rows:
            self._waiting.append(_Waiting(rows, np.ones(rows.num_rows, np.bool_)))
        # The limit of memory; a file is written early, and the next cut shows it with the others.
        if sum(waiting.rows.nbytes for waiting in self._waiting) > WAITING_BYTES_MAX:
            self.write_waiting()

    def find(self, needles: Needles, key: KeyColumns, counts: Ints | None = None) -> Found:
        """The places of the rows with these keys; with counts, as many rows of each key."""
        found = Found()
        # Shared by all places: each row that is found leaves one less to find in the next.
        left = None if counts is None else counts.copy()
        for number, waiting in enumerate(self._waiting):
            codes = needles.codes_of(key.of(partial(self._waiting_column, waiting.rows)))
            # A deleted row must not be found again: its key may have a new row elsewhere.
            codes[~waiting.lives] = -1
            rows = _taken(codes, left)
            if len(rows):
                found.waiting[number] = rows
                found.codes[number] = codes[rows]
        for path, file in self.files:
            rows, codes = self._find_in_file(path, file, needles, key, left)
            if len(rows):
                found.in_files[path] = rows
                found.codes[path] = codes
        return found

    def _find_in_file(
        self,
        path: str,
        file: DataFile,
        needles: Needles,
        key: KeyColumns,
        left: Ints | None,
    ) -> tuple[Ints, Ints]:
        columns = self.columns(path, key.read)
        size = file.record_count
        found = []
        # Some at a time: the numbers of all rows would take more memory than their keys.
        for start in range(0, size, _SEARCHED_ROWS):
            count = min(_SEARCHED_ROWS, size - start)
            part = columns.slice(start, count)
            found.append(needles.codes_of(key.of(partial(_column_by_id, part, count))))
        codes = np.concatenate(found) if found else _NONE
        # Delete files are read only for files with a candidate; most have none.
        if (codes >= 0).any():
            codes[self.deleted(path)] = -1
        rows = _taken(codes, left)
        return rows, codes[rows]

    def _waiting_column(self, rows: pa.Table, number: int) -> Column:
        return _column(rows, self.schema.find_column_name(number), rows.num_rows)

    def columns(self, path: str, ids: Sequence[int]) -> pa.Table:
        """Columns of a data file, with their field IDs as names; absent ones are null."""
        return self._cache.get(
            path, ids, lambda: data_files.read_columns(self._files, path, list(ids))
        )

    def deleted(self, path: str) -> Ints:
        """The positions of a data file's deleted rows."""
        # Read once in a table's life with this writer: later deletions are known from its own
        # drafts.
        if path not in self._known_deleted:
            self._known_deleted[path] = self._read_deleted(path)
        return np.concatenate([self._known_deleted[path], *self._deleted.get(path, [])])

    def _read_deleted(self, path: str) -> Ints:
        # Another writer's delete files name several data files each, so all are read together.
        if self._shared is None:
            self._shared = {}
            for location in self._table.shared_deletes:
                for target, positions in data_files.read_positions(self._files, location).items():
                    before = self._shared.get(target, _NONE)
                    self._shared[target] = np.union1d(before, positions)
        own = self._table.deletes.get(path)
        positions = self._shared.get(path, _NONE)
        if own is not None:
            read = data_files.read_positions(self._files, own.file.file_path)
            positions = np.union1d(positions, read.get(path, _NONE))
        return np.union1d(positions, self._deleted_before.get(path, _NONE))

    def delete(self, found: Found) -> None:
        """The rows go."""
        for path, positions in found.in_files.items():
            self._deleted.setdefault(path, []).append(positions)
        for number, rows in found.waiting.items():
            self._waiting[number].lives[rows] = False

    def values(self, found: Found, number: int, name: str) -> dict[int, Any]:
        """The values of a column in the rows that were found, as Arrow scalars, by key."""
        values: dict[int, Any] = {}
        places: list[tuple[str | int, Ints]] = [*found.in_files.items(), *found.waiting.items()]
        for place, rows in places:
            if isinstance(place, str):
                column = _column(
                    data_files.read_columns(self._files, place, [number]), str(number), 0
                )
            else:
                column = _column(self._waiting[place].rows, name, 0)
            for code, row in zip(found.codes[place].tolist(), rows.tolist(), strict=True):
                values[code] = column[row] if len(column) else None
        return values

    def next(self, table: TableSnapshot) -> TableDraft:
        """The draft that follows when this one, which is finished, has become a snapshot."""
        kept = {
            path: positions
            for path, positions in self._known_deleted.items()
            # Files that the snapshot has removed are not asked for again.
            if path in table.files.data
        }
        metadata = table.metadata
        return TableDraft(
            self._files, metadata.location, table.files, self._cache, metadata.schema(), kept
        )

    def write_waiting(self) -> None:
        """Write the waiting rows that still exist as a data file."""
        file = data_files.write_parts(self._files, self._folder, self.schema, self._living())
        if file is not None:
            self._added[file.file_path] = file

    def _living(self) -> Iterator[pa.Table]:
        """The waiting rows that still exist, each of which stops waiting."""
        while self._waiting:
            # One at a time: its memory is free before the next one is filtered.
            waiting = self._waiting.pop(0)
            if waiting.lives.all():
                yield waiting.rows
            elif waiting.lives.any():
                yield waiting.rows.filter(pa.array(waiting.lives))

    def finish(self) -> FileChanges:
        """Write everything that waits; what the next snapshot changes."""
        self.write_waiting()
        changes = FileChanges(list(self._added.values()), set(self._removed))
        for path in self._deleted:
            # No position is in it twice: deleted rows are not found again.
            # Iceberg requires positions in ascending order. The new file replaces the former one,
            # so it has the old positions, too.
            positions = np.sort(self.deleted(path))
            self._known_deleted[path] = positions
            if path in self._added and len(positions) == self._added[path].record_count:
                # Every row of a new file is gone again: nothing refers to it.
                changes.added.remove(self._added[path])
                continue
            live = self._table.data.get(path)
            if live is not None and len(positions) == live.file.record_count:
                changes.removed.add(path)
                continue
            changes.deletes[path] = data_files.write_positions(
                self._files, self._folder, path, positions
            )
        return changes


def _taken(codes: Ints, left: Ints | None) -> Ints:
    """Rows with wanted keys; where rows are counted, not more than are left."""
    if left is None:
        return np.flatnonzero(codes >= 0)
    # Equal rows of a table without a key can't be distinguished: any of them may go, but not more
    # than the source has deleted.
    rows = locate.rows_of(codes, len(left), counts=left)
    np.subtract.at(left, codes[rows], 1)
    return rows


def _column_by_id(table: pa.Table, rows: int, number: int) -> Column:
    return _column(table, str(number), rows)


def _column(table: pa.Table, name: str | None, rows: int) -> Column:
    if name not in table.column_names:
        return pa.nulls(rows)
    return whole(table.column(name))
