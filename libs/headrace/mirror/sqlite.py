"""A mirror in SQLite: one file, whose readers never block it and always see a committed moment.

Values are stored without loss: integers, booleans (0 and 1), bytes and floats as SQLite's own types
(NaN as its name), everything else as text, including numbers of any length. A table outside
`public` is named `schema.table`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sqlite3
import string
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.contract.exact import ExactText
from headrace.mirror import target
from headrace.mirror.mirror_state import tables_of
from headrace.mirror.rules import Place
from headrace.mirror.soft_deleted_rows import MarkedSql
from headrace.mirror.table import Column, Phase, Table
from headrace.mirror.threaded_target import WRITER, ThreadedTarget
from headrace.mirror.value_kinds import ValueKind, as_bytes, as_json, as_list, kind_of
from headrace.postgres.quoting import quote_name

MARKS = "headrace_mirror"
BUSY_TIMEOUT_S = 30.0
_NO_MIRROR_REMEDY = "Check the path; `headrace mirror --to …` creates a mirror there."
READ_ROWS = 5000
_TYPES = {
    ValueKind.BOOL: "INTEGER",
    ValueKind.INTEGER: "INTEGER",
    ValueKind.FLOAT: "REAL",
    ValueKind.BYTES: "BLOB",
    ValueKind.UNKNOWN: "",
}
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_PASSING = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
)


class NameTakenError(target.TargetError):
    """Two of the source's tables would have the same name in the file."""

    remedy = (
        "Select tables (--table) so that each file contains only one of them, or mirror into "
        "a PostgreSQL."
    )


def table_name(table: Table) -> str:
    """The table's name in the file."""
    name = _plain_name(table.place)
    return quote_name(f"{MARKS}_new.{name}" if table.staging else name)


def _plain_name(place: Place) -> str:
    schema, name = place
    if schema == "public":
        return name
    return f"{schema}.{name}"


def _folded(name: str) -> str:
    """The form in which SQLite compares names."""
    return name.translate(_LOWER)


def _index_name(table: Table, number: int) -> str:
    kind = "identity" if number else "key"
    return quote_name(
        f"{MARKS}_{kind}.{table.schema}.{table.name}{'.new' if table.staging else ''}"
    )


def check_name(table: Table, marks: Mapping[str, str]) -> None:
    """Each of two tables with one name would replace the other's rows."""
    called = _plain_name(table.place)
    if _folded(called) == MARKS or _folded(called).startswith(f"{MARKS}_new."):
        raise NameTakenError(f"{called} is reserved for the mirror's state in a SQLite file")
    for state in tables_of(marks).values():
        other = _plain_name(state.place)
        if (
            state.token != table.token
            and state.phase is not Phase.GONE
            and _folded(other) == _folded(called)
        ):
            both = f"{table.schema}.{table.name} and {state.schema}.{state.name}"
            raise NameTakenError(
                f"{both} can't both be in a SQLite file: they have the same name there"
            )


def has_table(run: Callable[..., Any], table: Table) -> bool:
    """Whether the file has a table or view of this name."""
    query = "SELECT 1 FROM sqlite_schema WHERE type IN ('table', 'view') AND lower(name) = ?"
    return run(query, [_folded(_plain_name(table.place))]).fetchone() is not None


class SqliteTarget(ThreadedTarget):
    """Creates the file if it doesn't exist."""

    def __init__(self, path: str) -> None:
        super().__init__("sqlite")
        self.path = path
        self._connection: sqlite3.Connection | None = None

    @contextlib.asynccontextmanager
    async def reading(
        self,
        table: Table | None = None,  # noqa: ARG002  # the port's
    ) -> AsyncIterator[SqliteReading]:
        # A separate connection: in WAL mode it sees its moment while the writer continues.
        reading = await asyncio.to_thread(SqliteReading, self.path)
        try:
            yield reading
        finally:
            await asyncio.to_thread(reading.close)

    def _close(self) -> None:
        connection = self._connection
        self._connection = None
        if connection is not None:
            connection.close()

    def _load(self) -> dict[str, str]:
        with explained(self.path):
            # In the thread: an earlier call that was cancelled may have opened it only now, and
            # have failed with the write lock held.
            self._close()
            connection = connect(self.path)
            # Readers and the writer don't block each other only in this mode.
            connection.execute("PRAGMA journal_mode = WAL")
            # A power failure may cost the last commits as a whole: the stream still contains their
            # changes.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {MARKS} (key TEXT PRIMARY KEY, value TEXT NOT NULL)"
            )
            self._connection = connection
            # Takes the write lock now. A transaction that started by reading could find the file
            # changed when it first writes, and SQLite would then refuse it.
            connection.execute("BEGIN IMMEDIATE")
            if self._has_opened:
                self._check(connection)
            connection.execute(
                f"INSERT OR REPLACE INTO {MARKS} VALUES (?, ?)",
                [WRITER, self._writer],
            )
            marks = marks_in(connection)
            connection.execute("COMMIT")
            self._has_opened = True
            return marks

    def _begun(self) -> sqlite3.Connection:
        if self._connection is None:
            # Another task lost it, and could not open it again.
            raise target.TargetAwayError("the mirror's SQLite file is not open")
        # The first write after a commit takes the lock, and finds out whether another mirror has
        # come.
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")
            self._check(self._connection)
        return self._connection

    def _check(self, connection: sqlite3.Connection) -> None:
        query = f"SELECT value FROM {MARKS} WHERE key = ?"
        (found,) = connection.execute(query, [WRITER]).fetchone() or (None,)
        self._check_writer(found, f"SQLite file {self.path}", connection.rollback)

    def _write(self, steps: Sequence[target.Step]) -> None:
        with explained(self.path):
            writer = SqliteWriter(self._begun())
            for step in steps:
                writer.do(step)

    def _commit(self, marks: Mapping[str, str | None]) -> None:
        with explained(self.path):
            connection = self._begun()
            removed = [(key,) for key, value in marks.items() if value is None]
            kept = [(key, value) for key, value in marks.items() if value is not None]
            # In the transaction of the rows: that makes the mirror exactly-once.
            connection.executemany(f"DELETE FROM {MARKS} WHERE key = ?", removed)
            connection.executemany(f"INSERT OR REPLACE INTO {MARKS} VALUES (?, ?)", kept)
            connection.execute("COMMIT")


def connect(path: str) -> sqlite3.Connection:
    # Used by one thread at a time, though not always the same.
    return sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )


def marks_in(connection: sqlite3.Connection) -> dict[str, str]:
    query = f"SELECT key, value FROM {MARKS} WHERE key <> ?"
    return dict(connection.execute(query, [WRITER]))


@contextlib.contextmanager
def explained(path: str) -> Any:
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        kind = target.TargetAwayError if code in _PASSING else target.TargetError
        raise kind(
            f"SQLite file {path}: {error}", remedy="Check the file, its folder and its disk."
        ) from error


class SqliteWriter:
    """The steps in SQL."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._run = connection.execute
        self._run_many = connection.executemany

    def do(self, step: target.Step) -> None:
        match step:
            case target.InsertRows(table, rows):
                self._insert(table, rows)
            case target.UpdateRow(table, where, data):
                if data:
                    sets = ", ".join(f"{quote_name(name)} = ?" for name in data)
                    self._one(
                        table,
                        f"UPDATE {table_name(table)} SET {sets}",
                        _stored(table, data),
                        where,
                    )
            case target.DeleteRow(table, where):
                self._one(table, f"DELETE FROM {table_name(table)}", [], where)
            case target.TruncateTable(table, None):
                self._run(f"DELETE FROM {table_name(table)}")
            case target.CreateTable(table, replaces):
                self._create(table, replaces=replaces)
            case target.DropTable(table):
                self._run(f"DROP TABLE IF EXISTS {table_name(table)}")
            case target.AlterTable():
                self._alter(step)
            case target.SwapTables(table, replaces):
                self._swap(table, replaces=replaces)
            case _:
                for sql, given in _MARKED.statements(step):
                    self._run(sql, given)

    def _create(self, table: Table, *, replaces: bool) -> None:
        self._check_name(table)
        if not replaces:
            self._check_free(table)
        self.do(target.DropTable(table))
        body = ", ".join(_definition(column) for column in table.columns)
        self._run(f"CREATE TABLE {table_name(table)} ({body})")
        self._index(table)

    def _check_name(self, table: Table) -> None:
        # The stored marks, and not those in memory: other tables of this transaction are in them
        # already.
        check_name(table, dict(self._run(f"SELECT key, value FROM {MARKS}")))

    def _check_free(self, table: Table) -> None:
        if has_table(self._run, table):
            raise target.ForeignTableError(table)

    def _index(self, table: Table) -> None:
        for number, key in enumerate(table.finders):
            names = ", ".join(map(quote_name, key))
            self._run(f"CREATE INDEX {_index_name(table, number)} ON {table_name(table)} ({names})")

    def _drop_indexes(self, table: Table) -> None:
        for number in range(len(table.finders)):
            self._run(f"DROP INDEX IF EXISTS {_index_name(table, number)}")

    def _swap(self, staged: Table, *, replaces: bool) -> None:
        live = replace(staged, staging=False)
        if not replaces:
            self._check_free(live)
        self.do(target.DropTable(live))
        self._run(f"ALTER TABLE {table_name(staged)} RENAME TO {table_name(live)}")
        self._drop_indexes(staged)
        self._index(live)

    def _alter(self, step: target.AlterTable) -> None:
        before = step.before
        after = step.after
        renamed = step.renamed
        name = table_name(after)
        self._drop_indexes(before)
        # Before columns are added: a new column may have the name that a renamed one had.
        for new, old in renamed.items():
            self._run(f"ALTER TABLE {name} RENAME COLUMN {quote_name(old)} TO {quote_name(new)}")
        old_names = {old: new for new, old in renamed.items()}
        there = {old_names.get(column.name, column.name) for column in before.columns}
        for column in after.columns:
            if column.name not in there:
                self._run(f"ALTER TABLE {name} ADD COLUMN {_definition(column)}")
            if column.name in step.filled:
                value = stored(column.data_type)(step.filled[column.name].value)
                self._run(f"UPDATE {name} SET {quote_name(column.name)} = ?", [value])
        # Last, since SQLite refuses to drop the only column.
        for lost in sorted(there - {column.name for column in after.columns}):
            self._run(f"ALTER TABLE {name} DROP COLUMN {quote_name(lost)}")
        self._index(after)

    def _insert(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        names = [column.name for column in table.columns]
        makers = [stored(column.data_type) for column in table.columns]
        pairs = list(zip(names, makers, strict=True))
        marks = ", ".join("?" * len(names))
        values = (
            [None if (v := row.get(name)) is None else make(v) for name, make in pairs]
            for row in rows
        )
        columns = ", ".join(map(quote_name, names))
        sql = f"INSERT INTO {table_name(table)} ({columns}) VALUES ({marks})"
        # Someone's trigger may drop rows silently.
        if self._run_many(sql, values).rowcount != len(rows):
            raise target.RowMissingError(table, target.NOT_INSERTED)

    def _one(self, table: Table, head: str, values: list[Any], where: Mapping[str, Any]) -> None:
        """The statement for one row with these values."""
        row_id = row_id_of(table)
        named, rest = target.split(table, where)
        what = row_id
        given = _stored(table, named)
        if rest:
            # By its key if that identifies one row; a deferrable key may belong to several rows
            # within a transaction.
            whole = f"min(CASE WHEN {_tests(rest)} THEN {row_id} END)"
            what = f"CASE WHEN count(*) = 1 THEN min({row_id}) ELSE {whole} END"
            given = [*_stored(table, rest), *given]
        if target.finds_one(table, where, named, rest):
            found = _tests(named)
        else:
            # By the row's number, because UPDATE and DELETE have no LIMIT.
            chosen = f"SELECT {what} FROM {table_name(table)} WHERE {_tests(named)} LIMIT 1"
            found = f"{row_id} = ({chosen})"
        done = self._run(f"{head} WHERE {found}", [*values, *given])
        # None or several: the mirror differs from the source.
        if done.rowcount != 1:
            raise target.RowMissingError(table, target.NOT_ONE)


def _tests(values: Iterable[str]) -> str:
    # IS, because NULL = NULL is not true.
    return " AND ".join(f"{quote_name(name)} IS ?" for name in values)


def row_id_of(table: Table) -> str:
    """The name of a row's number, by which SQL can name the row."""
    taken = {column.name.lower() for column in table.columns}
    # SQLite has three names for a row's number; a column may hide any of them.
    return next(name for name in ("rowid", "_rowid_", "oid") if name not in taken)


def type_in(column: Column) -> str:
    """The column's type in the file; empty where SQLite has none."""
    return _TYPES.get(kind_of(column.data_type), "TEXT")


def _definition(column: Column) -> str:
    return f"{quote_name(column.name)} {type_in(column)}".rstrip()


def _stored(table: Table, values: Mapping[str, Any]) -> list[Any]:
    return [
        None if value is None else stored(table.type_of(name))(value)
        for name, value in values.items()
    ]


def _same(value: Any) -> Any:
    return value


def _float(value: Any) -> Any:
    number = float(value)
    # SQLite makes NULL of NaN.
    if math.isnan(number):
        return "NaN"
    return number


def _any(value: Any) -> Any:
    if isinstance(value, list):
        return as_list(value)
    if isinstance(value, dict | ExactText):
        return as_json(value)
    return value


_STORED: Mapping[ValueKind, Callable[[Any], Any]] = {
    ValueKind.BOOL: int,
    ValueKind.INTEGER: int,
    ValueKind.FLOAT: _float,
    ValueKind.BYTES: as_bytes,
    ValueKind.JSON: as_json,
    ValueKind.UNKNOWN: _any,
}


def stored(data_type: str) -> Callable[[Any], Any]:
    """SQLite's value for one that is not NULL; arrays that come as lists become JSON."""
    if data_type.endswith("[]"):
        return _any
    return _STORED.get(kind_of(data_type), _same)


_MARKED = MarkedSql(
    table_name,
    placeholder=lambda _table, _name: "?",
    stored=lambda table, name, value: stored(table.type_of(name))(value),
    converted=lambda _step, name: f"old.{quote_name(name)}",
    # SQLite has no list of rows otherwise.
    rows_word="VALUES ",
)


class SqliteReading:
    """One moment of the file."""

    def __init__(self, path: str) -> None:
        # SQLite would create the file, and a mistyped path would leave an empty one behind.
        if not Path(path).exists():
            raise target.TargetError(f"SQLite file {path} doesn't exist", remedy=_NO_MIRROR_REMEDY)
        with explained(path):
            self._connection = connect(path)
            self._connection.execute("PRAGMA query_only = 1")
            if not self._connection.execute(
                "SELECT 1 FROM sqlite_schema WHERE name = ?", [MARKS]
            ).fetchone():
                self._connection.close()
                raise target.TargetError(
                    f"SQLite file {path} contains no mirror", remedy=_NO_MIRROR_REMEDY
                )
            self._connection.execute("BEGIN")
            # The first read fixes the moment that this transaction sees.
            self.marks = marks_in(self._connection)

    def close(self) -> None:
        self._connection.close()

    async def rows(
        self, table: Table, columns: Sequence[Column]
    ) -> AsyncIterator[list[tuple[Any, ...]]]:
        """As they are stored."""
        names = ", ".join(quote_name(column.name) for column in columns)
        query = f"SELECT {names} FROM {table_name(table)}"
        cursor = await asyncio.to_thread(self._connection.execute, query)
        while rows := await asyncio.to_thread(cursor.fetchmany, READ_ROWS):
            yield rows
