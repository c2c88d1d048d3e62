"""A mirror in DuckDB: one file, whose tables have DuckDB's types where these lose nothing.

While a process has a DuckDB file open for writing, no other process can open it. So the mirror
closes the file whenever it has nothing to write, and waits while a reader has it open.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from headrace.mirror import target
from headrace.mirror.duckdb_types import DIALECT
from headrace.mirror.native_types import (
    TEXT_MARK,
    Native,
    NativeColumn,
    NativeTypes,
    as_contract_moment,
    as_sqlite_float,
    kept_as_chosen,
)
from headrace.mirror.soft_deleted_rows import MarkedSql
from headrace.mirror.table import Column, Table
from headrace.mirror.threaded_target import WRITER, ThreadedTarget
from headrace.postgres.quoting import quote_name

T = TypeVar("T")
# Executes a statement with values; returns its first row.
Run = Callable[[str, Sequence[Any]], Any]

SCHEMA = "headrace_mirror"
MARKS = f"{SCHEMA}.marks"
# How long to wait for a process that has the file open.
BUSY_S = 10.0
BUSY_LOOK_S = 0.05
# Open no longer than this without a write, so that others can read the file.
IDLE_S = 0.2
# While there is always something to write, it is closed now and then for a moment.
OPEN_S_MAX = 1.0
CLOSED_S = 0.15
CLOSED_S_MAX = 3.0
READ_ROWS = 5000
_STAGING = f"{SCHEMA}_new."
_DRAFT = f"{SCHEMA}_draft."
_NO_MIRROR_REMEDY = "Check the path; `headrace mirror --to …` creates a mirror there."


def table_name(table: Table) -> str:
    """The table's name in SQL."""
    return f"{quote_name(_schema(table))}.{quote_name(_plain_name(table))}"


def _schema(table: Table) -> str:
    # DuckDB's default schema is `main`; PostgreSQL's is created like any other.
    return table.place[0]


def _plain_name(table: Table) -> str:
    # In the same schema: DuckDB can't move a table to another one.
    if table.staging:
        return f"{_STAGING}{table.place[1]}"
    return table.place[1]


class DuckdbTarget(ThreadedTarget):
    """Creates the file if it doesn't exist. `text` are patterns of columns to store as text."""

    def __init__(self, path: str, text: Sequence[str] = ()) -> None:
        super().__init__("duckdb")
        self.path = path
        self.types = NativeTypes(DIALECT, text)
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._has_begun = False
        self._idle: asyncio.TimerHandle | None = None
        self._opened_at = 0.0
        self._open_again_at = 0.0

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        # The file must not be closed between two calls of one transaction.
        if self._idle is not None:
            self._idle.cancel()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, work, *arguments)
        finally:
            self._idle = loop.call_later(IDLE_S, self._thread.submit, self._close_idle)

    @contextlib.asynccontextmanager
    async def reading(
        self,
        table: Table | None = None,  # noqa: ARG002  # the port's
    ) -> AsyncIterator[DuckdbReading]:
        reading = await asyncio.to_thread(DuckdbReading, self.path, self.types)
        try:
            yield reading
        finally:
            await asyncio.to_thread(reading.close)

    def _close(self) -> None:
        connection = self._connection
        self._connection = None
        self._has_begun = False
        if connection is not None:
            connection.close()

    def _close_idle(self) -> None:
        # Uncommitted rows would be lost: the mirror commits them, or loads again.
        if not self._has_begun:
            self._close()

    def _load(self) -> dict[str, str]:
        with explained(self.path):
            self._close()
            self._connection = opened(self.path, read_only=False)
            self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
            self._connection.execute(
                f"CREATE TABLE IF NOT EXISTS {MARKS} (key VARCHAR, value VARCHAR)"
            )
            self._connection.execute("BEGIN")
            # The first time it takes over from any writer; later only a mirror that is still the
            # writer may continue.
            if self._has_opened:
                self._check(self._connection)
            _keep(self._connection, {WRITER: self._writer})
            _keep(self._connection, kept_as_chosen(marks_in(self._connection), self.types))
            marks = marks_in(self._connection)
            marks.pop(TEXT_MARK)
            self._connection.execute("COMMIT")
            self._has_opened = True
            return marks

    def _begun(self) -> duckdb.DuckDBPyConnection:
        if not self._has_opened:
            raise target.TargetAwayError("the mirror's DuckDB file is not open")
        if self._connection is None:
            # A reader that waits for the file looks more often than this.
            time.sleep(max(0.0, self._open_again_at - time.monotonic()))
            self._connection = opened(self.path, read_only=False)
            self._opened_at = time.monotonic()
        if not self._has_begun:
            self._connection.execute("BEGIN")
            self._has_begun = True
            # While the file was closed, another mirror may have taken it over.
            self._check(self._connection)
        return self._connection

    def _check(self, connection: duckdb.DuckDBPyConnection) -> None:
        query = f"SELECT value FROM {MARKS} WHERE key = ?"
        (found,) = connection.execute(query, [WRITER]).fetchone() or (None,)
        self._check_writer(found, f"DuckDB file {self.path}", self._close)

    def _write(self, steps: Sequence[target.Step]) -> None:
        with explained(self.path):
            writer = DuckdbWriter(self._begun(), self.types)
            for step in steps:
                writer.do(step)

    def _commit(self, marks: Mapping[str, str | None]) -> None:
        with explained(self.path):
            connection = self._begun()
            _keep(connection, marks)
            connection.execute("COMMIT")
            self._has_begun = False
            open_s = time.monotonic() - self._opened_at
            if open_s > OPEN_S_MAX:
                self._close()
                self._open_again_at = time.monotonic() + closed_s(open_s)


def closed_s(open_s: float) -> float:
    """How long the file stays closed then: readers get the same share if commits are slow."""
    return min(CLOSED_S_MAX, max(CLOSED_S, open_s * CLOSED_S / OPEN_S_MAX))


def opened(path: str, *, read_only: bool) -> duckdb.DuckDBPyConnection:
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            connection = duckdb.connect(path, read_only=read_only)
        except (duckdb.IOException, duckdb.ConnectionException) as error:
            # Another process has it, or a reader in this one.
            if time.monotonic() > deadline:
                raise target.TargetAwayError(
                    f"DuckDB file {path} can't be opened: {error}",
                    remedy="The mirror tries again. DuckDB allows one process at a time: close it.",
                ) from error
            time.sleep(BUSY_LOOK_S)
            continue
        # DuckDB would take a time without a zone for one of the machine's.
        connection.execute("SET TimeZone = 'UTC'")
        return connection


def _keep(connection: duckdb.DuckDBPyConnection, marks: Mapping[str, str | None]) -> None:
    # Without an index: DuckDB refuses to delete and insert one key in a transaction of some forms.
    for key, value in marks.items():
        connection.execute(f"DELETE FROM {MARKS} WHERE key = ?", [key])
        if value is not None:
            connection.execute(f"INSERT INTO {MARKS} VALUES (?, ?)", [key, value])


def has_marks(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether the file contains a mirror."""
    query = "SELECT 1 FROM duckdb_tables() WHERE schema_name = ? AND table_name = 'marks'"
    return connection.execute(query, [SCHEMA]).fetchone() is not None


def marks_in(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    query = f"SELECT key, value FROM {MARKS} WHERE key <> ?"
    return dict(connection.execute(query, [WRITER]).fetchall())


@contextlib.contextmanager
def explained(path: str) -> Any:
    try:
        yield
    except duckdb.Error as error:
        passing = (duckdb.IOException, duckdb.OutOfMemoryException, duckdb.InterruptException)
        kind = target.TargetError
        if isinstance(error, passing):
            kind = target.TargetAwayError
        said = str(error).partition("\n")[0]
        raise kind(
            f"DuckDB file {path}: {said}", remedy="Check the file, its folder and its disk."
        ) from error


def exists(run: Run, table: Table) -> bool:
    """Whether the file has a table of this name."""
    # A view of the name is another's, too, and would make CREATE TABLE fail.
    query = (
        "SELECT 1 FROM duckdb_tables() WHERE schema_name = ? AND table_name = ? UNION ALL "
        "SELECT 1 FROM duckdb_views() WHERE schema_name = ? AND view_name = ?"
    )
    place = [_schema(table), _plain_name(table)]
    return run(query, [*place, *place]) is not None


def check_names(run: Run, table: Table) -> None:
    """DuckDB compares names without case, so one of two tables would replace the other."""
    names = [column.name.lower() for column in table.columns]
    if len(set(names)) != len(names):
        raise target.TargetError(
            f"{table.schema}.{table.name} has columns that differ only by case",
            remedy="Leave one of them out at the source (HEADRACE_EXCLUDE_COLUMNS).",
        )
    query = (
        "SELECT table_name FROM duckdb_tables() WHERE lower(schema_name) = lower(?) AND "
        "lower(table_name) = lower(?) AND (table_name <> ? OR schema_name <> ?)"
    )
    place = [_schema(table), _plain_name(table)]
    if place[0].lower() == SCHEMA and place[1].lower() == "marks":
        raise target.TargetError(f"{MARKS} is reserved for the mirror's state")
    if run(query, [*place, place[1], place[0]]) is not None:
        raise target.TargetError(
            f"{table.schema}.{table.name} and another table have the same name in DuckDB",
            remedy="Select tables so that each file contains only one of them.",
        )


class DuckdbWriter:
    """The steps in SQL."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, types: NativeTypes) -> None:
        self._connection = connection
        self.types = types

    def _run(self, sql: str, values: Sequence[Any] = ()) -> Any:
        return self._connection.execute(sql, list(values)).fetchone()

    def do(self, step: target.Step) -> None:
        match step:
            case target.InsertRows(table, rows):
                self._insert(table, rows)
            case target.UpdateRow(table, where, data):
                if data:
                    columns = self._by_name(table)
                    sets = ", ".join(
                        f"{quote_name(name)} = {mark_of(columns[name])}" for name in data
                    )
                    head = f"UPDATE {table_name(table)} SET {sets}"
                    self._one(table, head, _values(columns, data), where)
            case target.DeleteRow(table, where):
                self._one(table, f"DELETE FROM {table_name(table)}", [], where)
            case target.TruncateTable(table, None):
                self._run(f"DELETE FROM {table_name(table)}")
            case target.CreateTable(table, replaces):
                self._create(table, replaces=replaces)
            case target.DropTable(table):
                if exists(self._run, table):
                    self._run(f"DROP TABLE {table_name(table)}")
            case target.AlterTable():
                self._alter(step)
            case target.SwapTables(table, replaces):
                self._swap(table, replaces=replaces)
            case _:
                for sql, given in self._marked().statements(step):
                    self._run(sql, given)

    def _marked(self) -> MarkedSql:
        def column(table: Table, name: str) -> NativeColumn:
            return self._by_name(table)[name]

        return MarkedSql(
            table_name,
            placeholder=lambda table, name: mark_of(column(table, name)),
            stored=lambda table, name, value: column(table, name).text(value),
            converted=lambda step, name: (
                f"CAST(old.{quote_name(name)} AS {column(step.table, name).sql_type})"
            ),
        )

    def _by_name(self, table: Table) -> dict[str, NativeColumn]:
        return {column.name: column for column in self.types.columns(table)}

    def _create(self, table: Table, *, replaces: bool) -> None:
        check_names(self._run, table)
        # A copy that began before may have left its own table.
        if not replaces and exists(self._run, replace(table, staging=False)):
            raise target.ForeignTableError(table)
        self._run(f"CREATE SCHEMA IF NOT EXISTS {quote_name(_schema(table))}")
        self.do(target.DropTable(table))
        body = ", ".join(
            f"{quote_name(column.name)} {column.sql_type}" for column in self.types.columns(table)
        )
        self._run(f"CREATE TABLE {table_name(table)} ({body})")

    def _swap(self, staged: Table, *, replaces: bool) -> None:
        live = replace(staged, staging=False)
        check_names(self._run, live)
        if not replaces and exists(self._run, live):
            raise target.ForeignTableError(live)
        # In one transaction, so readers see the old table or the new one.
        self.do(target.DropTable(live))
        self._run(f"ALTER TABLE {table_name(staged)} RENAME TO {quote_name(_plain_name(live))}")

    def _alter(self, step: target.AlterTable) -> None:
        """By a copy: DuckDB can't commit an ALTER of a table whose rows the transaction changed."""
        before = self._by_name(step.before)
        check_names(self._run, step.after)
        parts = []
        values: list[Any] = []
        for column in self.types.columns(step.after):
            old = step.renamed.get(column.name, column.name)
            filled = step.filled.get(column.name)
            if filled is not None:
                part = mark_of(column)
                values.append(column.text(filled.value))
            elif old not in before:
                part = f"CAST(NULL AS {column.sql_type})"
            elif before[old].sql_type == column.sql_type:
                part = quote_name(old)
            else:
                part = f"CAST({quote_name(old)} AS {column.sql_type})"
            parts.append(f"{part} AS {quote_name(column.name)}")
        name = _plain_name(step.after)
        draft = f"{quote_name(_schema(step.after))}.{quote_name(_DRAFT + name)}"
        source = table_name(replace(step.before, name=step.after.name))
        self._run(f"CREATE TABLE {draft} AS SELECT {', '.join(parts)} FROM {source}", values)
        self._run(f"DROP TABLE {source}")
        self._run(f"ALTER TABLE {draft} RENAME TO {quote_name(name)}")

    def _insert(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        columns = self.types.columns(table)
        arrays = {f"c{number}": _array(column, rows) for number, column in enumerate(columns)}
        # As text, which DuckDB parses: Arrow's own types would round numbers and times.
        given = pa.table(arrays)
        names = ", ".join(quote_name(column.name) for column in columns)
        casts = ", ".join(
            f"CAST(c{number} AS {column.sql_type})" for number, column in enumerate(columns)
        )
        # Only by name can DuckDB read it; the name must not outlive the statement.
        self._connection.register("headrace_rows", given)
        try:
            done = self._run(
                f"INSERT INTO {table_name(table)} ({names}) SELECT {casts} FROM headrace_rows"
            )
        finally:
            self._connection.unregister("headrace_rows")
        # Nothing in DuckDB keeps rows out, but a wrong count would be a loss.
        if done != (len(rows),):
            raise target.RowMissingError(table, target.NOT_INSERTED)

    def _one(self, table: Table, head: str, values: list[Any], where: Mapping[str, Any]) -> None:
        """The statement for one row with these values."""
        columns = self._by_name(table)
        named, rest = target.split(table, where)
        given = _values(columns, named)
        if target.finds_one(table, where, named, rest):
            found = _tests(columns, named)
        else:
            what = "min(rowid)"
            if rest:
                # By its key if that identifies one row; a deferrable key may belong to several
                # rows within a transaction.
                whole = f"min(CASE WHEN {_tests(columns, rest)} THEN rowid END)"
                what = f"CASE WHEN count(*) = 1 THEN min(rowid) ELSE {whole} END"
                given = [*_values(columns, rest), *given]
            chosen = f"SELECT {what} FROM {table_name(table)} WHERE {_tests(columns, named)}"
            found = f"rowid = ({chosen})"
        if self._run(f"{head} WHERE {found}", [*values, *given]) != (1,):
            raise target.RowMissingError(table, target.NOT_ONE)


def _array(column: NativeColumn, rows: Sequence[Mapping[str, Any]]) -> Any:
    values = (row.get(column.name) for row in rows)
    texts = [None if value is None else column.text(value) for value in values]
    if column.native is Native.BYTES:
        return pa.array(texts, pa.binary())
    return pa.array(texts, pa.string())


def mark_of(column: NativeColumn) -> str:
    """The placeholder of a column's value."""
    return f"CAST(? AS {column.sql_type})"


def _values(columns: Mapping[str, NativeColumn], values: Mapping[str, Any]) -> list[Any]:
    return [None if value is None else columns[name].text(value) for name, value in values.items()]


def _tests(columns: Mapping[str, NativeColumn], names: Iterable[str]) -> str:
    return " AND ".join(
        f"{quote_name(name)} IS NOT DISTINCT FROM {mark_of(columns[name])}" for name in names
    )


class DuckdbReading:
    """One moment of the file, which no other process can write meanwhile."""

    def __init__(self, path: str, types: NativeTypes) -> None:
        if not Path(path).exists():
            raise target.TargetError(f"DuckDB file {path} doesn't exist", remedy=_NO_MIRROR_REMEDY)
        self.types = types
        with explained(path):
            self._connection = opened(path, read_only=True)
            # Watermarks and rows must be of one moment.
            self._connection.execute("BEGIN")
            if not has_marks(self._connection):
                self._connection.close()
                raise target.TargetError(
                    f"DuckDB file {path} contains no mirror", remedy=_NO_MIRROR_REMEDY
                )
            marks = marks_in(self._connection)
            marks.pop(TEXT_MARK, None)
            self.marks: Mapping[str, str] = marks

    def close(self) -> None:
        self._connection.close()

    async def rows(
        self, table: Table, columns: Sequence[Column]
    ) -> AsyncIterator[list[tuple[Any, ...]]]:
        """DuckDB's own text, where SQLite has text."""
        kept = [self.types.column(table, column) for column in columns]
        names = ", ".join(map(shown, kept))
        readers = [reader_of(column) for column in kept]
        query = f"SELECT {names} FROM {table_name(table)}"
        cursor = await asyncio.to_thread(self._connection.execute, query)
        while rows := await asyncio.to_thread(cursor.fetchmany, READ_ROWS):
            yield [
                tuple(
                    value if value is None else read(value)
                    for read, value in zip(readers, row, strict=True)
                )
                for row in rows
            ]


def shown(column: NativeColumn) -> str:
    """The expression that a reader's query has for a column."""
    name = quote_name(column.name)
    numbers = {Native.INT2, Native.INT4, Native.INT8, Native.OID, Native.FLOAT, Native.BYTES}
    if column.native in numbers:
        return name
    if column.native is Native.BOOL:
        return f"CAST({name} AS INTEGER)"
    return f"CAST({name} AS VARCHAR)"


def reader_of(column: NativeColumn) -> Callable[[Any], Any]:
    """From the query's value to what SQLite has."""
    if Native.FLOAT in {column.native, column.chosen}:
        return as_sqlite_float
    if column.native in {Native.TIMESTAMP, Native.TIMESTAMPTZ}:
        return as_contract_moment
    return _same


def _same(value: Any) -> Any:
    return value
