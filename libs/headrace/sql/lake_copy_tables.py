"""Feeds a table of the copy: the difference between the files that it has and those of a cut.

Each row is known by its data file and its position there. Runs inside the feed's transaction;
states are values, so that a transaction that fails leaves the ones from before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.lake import data_files
from headrace.lake.columns import Ints, whole
from headrace.lake.errors import LakeError
from headrace.lake.files import LakeFiles
from headrace.lake.snapshots import TableFiles
from headrace.lake.tables import LakeTable
from headrace.sql.cut_reading import CutTable
from headrace.sql.stored_rows import (
    EXACT,
    FILE,
    POSITION,
    UNKNOWN,
    FileRows,
    StoredColumn,
    insert_expressions,
    stored_columns,
)

# DuckDB keeps the place of deleted rows: a table with this many is written again.
DEAD_ROWS_MIN = 200_000
BATCH_ROWS = 131_072
_NONE: Ints = np.array([], np.int64)
_INPUT = "feed_input"


class CopyDamagedError(LakeError):
    """A table of the copy lacks rows that the lake deletes now: it has to be filled again."""

    retry = True

    def __init__(self, identity: str, name: str) -> None:
        super().__init__(f"the copy of {name} differs from the lake's table")
        self.identity = identity


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """A data file whose rows are in the copy, without those at the deleted positions."""

    number: int
    rows: int
    deleted: Ints = field(default_factory=lambda: _NONE)
    # The delete files that these positions are from.
    delete_files: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class FedTable:
    """A table of the copy."""

    table: LakeTable
    snapshot_id: int
    # Its name in DuckDB.
    name: str
    columns: Mapping[str, str]
    files: Mapping[str, CopiedFile]
    dead_rows: int = 0
    # Columns with values that the copy can't hold.
    unheld: frozenset[str] = frozenset()
    # Whether some row has texts next to it.
    has_texts: bool = False

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(file.rows - len(file.deleted) for file in self.files.values())


class TableFeed:
    """Brings tables to a cut, inside a transaction of its cursor."""

    def __init__(
        self, files: LakeFiles, cursor: duckdb.DuckDBPyConnection, kind: str = "TABLE"
    ) -> None:
        self._files = files
        self._cursor = cursor
        self._names = (f"t{number}" for number in count(1))
        self._numbers = count(1)
        self._kind = kind

    def feed(self, state: FedTable | None, cut: CutTable, name: str | None = None) -> FedTable:
        """The table as the cut has it; a new one has the name, or any."""
        # Most tables have not changed since the last cut, and cost nothing.
        if state is not None and state.snapshot_id == cut.snapshot_id and state.table == cut.table:
            return state
        columns = stored_columns(cut.table)
        begun = self._begin(state, cut, columns, name)
        deletes = _Deletes(self._files, cut.files)
        begun = self._remove(begun, cut, deletes)
        files = dict(begun.files)
        for path, live in cut.files.data.items():
            if path not in files:
                copied = CopiedFile(next(self._numbers), live.file.record_count)
                copied = replace(
                    copied, deleted=deletes.of(path), delete_files=deletes.files_of(path)
                )
                begun = self._insert(begun, path, copied, columns, cut)
                files[path] = copied
        begun = replace(begun, files=files, table=cut.table, snapshot_id=cut.snapshot_id)
        # More dead rows than living ones: DuckDB gives their place back only with the table.
        if begun.dead_rows > max(DEAD_ROWS_MIN, begun.rows):
            begun = self._written_again(begun, columns)
        return replace(begun, unheld=self._unheld(begun, columns))

    def drop(self, state: FedTable) -> None:
        """The table goes."""
        self._cursor.execute(f"DROP TABLE {state.name}")

    def _begin(
        self,
        state: FedTable | None,
        cut: CutTable,
        columns: Sequence[StoredColumn],
        name: str | None,
    ) -> FedTable:
        """A table with all columns, and the rows of files that it keeps."""
        wanted = {column.name: column.storage.duckdb for column in columns}
        if state is not None and _continues(state, cut, wanted):
            for added in wanted.keys() - state.columns.keys():
                self._cursor.execute(f"ALTER TABLE {state.name} ADD COLUMN {added} {wanted[added]}")
            return replace(state, columns={**state.columns, **wanted})
        if state is not None:
            self.drop(state)
        begun = FedTable(cut.table, cut.snapshot_id, name or next(self._names), wanted, {})
        self._create(begun.name, wanted)
        return begun

    def _create(self, name: str, columns: Mapping[str, str]) -> None:
        own = f"{FILE} INTEGER, {POSITION} INTEGER, {EXACT} MAP(VARCHAR, VARCHAR)"
        all_columns = "".join(f", {column} {kind}" for column, kind in columns.items())
        self._cursor.execute(f"CREATE {self._kind} {name} ({own}{all_columns})")

    def _remove(self, state: FedTable, cut: CutTable, deletes: _Deletes) -> FedTable:
        """Without rows of files that the cut lacks, and of positions that it deletes."""
        files = {}
        gone = []
        rows = 0
        new: list[tuple[int, Ints]] = []
        for path, copied in state.files.items():
            deleted = copied.deleted
            kept = path in cut.files.data
            if kept and deletes.files_of(path) != copied.delete_files:
                deleted = deletes.of(path)
                # Rows that were deleted are there again in an earlier snapshot, to which another
                # program may have returned.
                kept = bool(np.isin(copied.deleted, deleted).all())
            if not kept:
                gone.append(copied.number)
                rows += copied.rows - len(copied.deleted)
                continue
            new.append((copied.number, np.setdiff1d(deleted, copied.deleted)))
            files[path] = replace(copied, deleted=deleted, delete_files=deletes.files_of(path))
        removed = self._delete_files(state, gone) + self._delete_positions(state, new)
        # DuckDB's own count: a difference means that the copy lacks rows, and answers would be
        # wrong.
        if removed != rows + sum(len(positions) for _, positions in new):
            raise CopyDamagedError(cut.identity, str(cut.table.name))
        return replace(state, files=files, dead_rows=state.dead_rows + removed)

    def _delete_files(self, state: FedTable, numbers: Sequence[int]) -> int:
        if not numbers:
            return 0
        listed = ", ".join(map(str, numbers))
        return self._changed(f"DELETE FROM {state.name} WHERE {FILE} IN ({listed})")

    def _delete_positions(self, state: FedTable, new: Sequence[tuple[int, Ints]]) -> int:
        places = [(number, positions) for number, positions in new if len(positions)]
        if not places:
            return 0
        # One DELETE for all files: each statement would scan the table.
        numbers = np.repeat([number for number, _ in places], [len(each) for _, each in places])
        positions = np.concatenate([each for _, each in places])
        found = pa.table({FILE: pa.array(numbers, pa.int32()), POSITION: pa.array(positions)})
        return self._with_input(
            found,
            f"DELETE FROM {state.name} USING {_INPUT} WHERE {state.name}.{FILE} = {_INPUT}.{FILE} "
            f"AND {state.name}.{POSITION} = {_INPUT}.{POSITION}",
        )

    def _insert(
        self,
        state: FedTable,
        path: str,
        copied: CopiedFile,
        columns: Sequence[StoredColumn],
        cut: CutTable,
    ) -> FedTable:
        values = {name: name for name in (FILE, POSITION, EXACT)}
        expressions = insert_expressions(columns)
        values |= zip((column.name for column in columns), expressions, strict=True)
        # In the table's order; columns that were dropped are still there.
        found = self._cursor.execute(f"SELECT * FROM {state.name} LIMIT 0").description
        listed = ", ".join(values.get(name, "NULL") for name, *_ in found)
        for rows in read_rows(self._files, path, columns, cut, copied.deleted):
            texts = rows.column(EXACT)
            state = replace(state, has_texts=state.has_texts or texts.null_count < len(texts))
            numbers = pa.array(np.full(rows.num_rows, copied.number, np.int32))
            # Not by a name, as deletes are: DuckDB keeps what a name stood for until the end of the
            # transaction, which would be all rows of the first cut.
            inserted = self._cursor.from_arrow(rows.append_column(FILE, numbers))
            inserted.project(listed).insert_into(state.name)
        return state

    def _written_again(self, state: FedTable, columns: Sequence[StoredColumn]) -> FedTable:
        name = next(self._names)
        names = ", ".join([FILE, POSITION, EXACT, *(column.name for column in columns)])
        self._cursor.execute(f"CREATE {self._kind} {name} AS SELECT {names} FROM {state.name}")
        self.drop(state)
        kept = {column.name: column.storage.duckdb for column in columns}
        return replace(state, name=name, dead_rows=0, columns=kept)

    def _unheld(self, state: FedTable, columns: Sequence[StoredColumn]) -> frozenset[str]:
        if not state.has_texts:
            return frozenset()
        found = self._cursor.execute(
            f"SELECT DISTINCT unnest(map_keys({EXACT})) FROM {state.name} WHERE {EXACT} IS NOT NULL"
        ).fetchall()
        names = {name for (name,) in found}
        if UNKNOWN in names:
            return frozenset(column.name for column in columns)
        return frozenset(names)

    def _with_input(self, rows: pa.Table, statement: str) -> int:
        self._cursor.register(_INPUT, rows)
        try:
            return self._changed(statement)
        finally:
            # A later input has the name, too.
            self._cursor.unregister(_INPUT)

    def _changed(self, statement: str) -> int:
        answer = self._cursor.execute(statement).fetchone()
        assert answer is not None, "DuckDB answers with the number of rows"
        return int(answer[0])


def _continues(state: FedTable, cut: CutTable, wanted: Mapping[str, str]) -> bool:
    """Whether a table keeps some of its files, and the types of its columns."""
    same = all(state.columns.get(name, kind) == kind for name, kind in wanted.items())
    return same and not state.files.keys().isdisjoint(cut.files.data)


def read_rows(
    files: LakeFiles,
    path: str,
    columns: Sequence[StoredColumn],
    cut: CutTable,
    deleted: Ints,
) -> Iterator[pa.Table]:
    """The living rows of a data file, some at a time, with their positions and texts."""
    file = data_files.open_file(files, path)
    by_id = data_files.names_by_id(file)
    names = {name: number for number, name in by_id.items()}
    exact = by_id.get(cut.table.exact_id)
    reader = FileRows(columns, names, cut.former_names)
    wanted = [by_id[each.column.field_id] for each in columns if each.column.field_id in by_id]
    if exact is not None:
        wanted.append(exact)
    start = 0
    for count_, batch in _batches(file, wanted):
        lives = np.ones(count_, np.bool_)
        # Positions are sorted, so those of this part are found without a look at all of them.
        first, last = np.searchsorted(deleted, [start, start + count_])
        lives[deleted[first:last] - start] = False
        positions = pa.array(np.flatnonzero(lives) + start, pa.int32())
        start += count_
        if not len(positions):
            continue
        rows = batch
        if len(positions) < count_:
            rows = batch.filter(pa.array(lives))
        texts = None if exact is None else whole(rows.column(exact))
        found = reader.read(rows, texts, len(positions))
        yield found.append_column(POSITION, positions)


def _batches(file: pq.ParquetFile, wanted: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    """Rows in order, with their number: a file may have none of the columns."""
    if not wanted:
        for start in range(0, file.metadata.num_rows, BATCH_ROWS):
            size = min(BATCH_ROWS, file.metadata.num_rows - start)
            yield size, pa.table({"": pa.nulls(size)})
        return
    for batch in file.iter_batches(BATCH_ROWS, columns=list(wanted), use_threads=False):
        yield batch.num_rows, pa.Table.from_batches([batch])


class _Deletes:
    """The deleted positions of a table's data files, read when needed."""

    def __init__(self, files: LakeFiles, table: TableFiles) -> None:
        self._files = files
        self._table = table
        self._shared: dict[str, Ints] | None = None

    def files_of(self, path: str) -> frozenset[str]:
        """The delete files that may have positions of a data file."""
        own = self._table.deletes.get(path)
        shared = frozenset(self._table.shared_deletes)
        return shared if own is None else shared | {own.file.file_path}

    def of(self, path: str) -> Ints:
        """The positions, in order."""
        positions = self._of_shared().get(path, _NONE)
        own = self._table.deletes.get(path)
        if own is not None:
            read = data_files.read_positions(self._files, own.file.file_path)
            positions = np.union1d(positions, read.get(path, _NONE))
        return positions

    def _of_shared(self) -> dict[str, Ints]:
        if self._shared is None:
            self._shared = {}
            for location in self._table.shared_deletes:
                for target, positions in data_files.read_positions(self._files, location).items():
                    before = self._shared.get(target, _NONE)
                    self._shared[target] = np.union1d(before, positions)
        return self._shared
