"""A mirror in MariaDB, or in MySQL by the same statements.

Promises: rows and marks are committed in one transaction. A statement that changes tables commits
implicitly there, so the first one of a transaction begins a journal: it and all later steps are
stored, and committed with what came before. Then the journal is executed, each step recorded with
its effect, and the marks are stored with the last one. A process that opens the target after a
crash completes the journal first.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from headrace.mirror import target
from headrace.mirror.mariadb_journal import Journal
from headrace.mirror.mariadb_session import MariadbSession, MariadbUrl, explained
from headrace.mirror.mariadb_statements import DIALECT, MARKS, table_name
from headrace.mirror.native_types import (
    TEXT_MARK,
    Native,
    NativeColumn,
    NativeTypes,
    as_contract_moment,
    as_sqlite_float,
    kept_as_chosen,
    trimmed,
)
from headrace.mirror.table import Column, Table
from headrace.mirror.threaded_target import WRITER, ThreadedTarget

TAKE_OVER_S = 10
# How long a reader waits for the end of a journal, which may change many tables.
JOURNAL_S = 60
_LOOK_S = 0.05
_ROW_STEPS = (
    target.InsertRows,
    target.UpdateRow,
    target.DeleteRow,
    target.TruncateTable,
    target.RemoveSoftDeleted,
    target.CarryOver,
)


class MariadbTarget(ThreadedTarget):
    """`url` is `mariadb://user@host:port/database`; `text` are patterns of columns to store as
    text, and `ca` is the file of an authority for TLS.
    """

    def __init__(
        self, url: str, text: Sequence[str] = (), password: str = "", ca: str = ""
    ) -> None:
        super().__init__("mariadb")
        self.url = MariadbUrl.parsed(url, password, ca)
        self.types = NativeTypes(DIALECT, text)
        self._session: MariadbSession | None = None
        self._journal: Journal | None = None

    @contextlib.asynccontextmanager
    async def reading(self, table: Table | None = None) -> AsyncIterator[MariadbReading]:
        reading = await asyncio.to_thread(MariadbReading, self.url, self.types, table)
        try:
            yield reading
        finally:
            await asyncio.to_thread(reading.close)

    def _close(self) -> None:
        session = self._session
        self._session = None
        self._journal = None
        if session is not None:
            session.close()

    def _load(self) -> dict[str, str]:
        self._close()
        with explained():
            session = MariadbSession(self.url, self.types, TAKE_OVER_S)
            self._session = session
            session.create_state()
            # Nobody executes a journal while another one takes over.
            with session.locked():
                if self._has_opened:
                    self._check(session)
                # Committed before the journal is touched: a process that was replaced fails at its
                # next check.
                session.keep({WRITER: self._writer})
                session.commit()
                self._has_opened = True
                found = Journal.found(session)
                if found is not None:
                    found.execute()
            # After the journal, whose statements fit the columns as they were.
            session.keep(kept_as_chosen(session.marks(), self.types))
            marks = session.marks()
            session.commit()
        return of_mirror(marks)

    def _check(self, session: MariadbSession) -> None:
        found = session.locked_mark(WRITER)
        self._check_writer(found, "the mirror's MariaDB", session.roll_back)

    def _begun(self) -> MariadbSession:
        if self._session is None:
            raise target.TargetAwayError("the mirror's MariaDB: the connection was lost")
        # The writer's mark stays locked until the commit, so a mirror that takes over waits.
        if not self._session.in_transaction:
            self._journal = None
            self._check(self._session)
        return self._session

    def _write(self, steps: Sequence[target.Step]) -> None:
        with explained():
            session = self._begun()
            for step in steps:
                # Later rows wait for the change of the table, which would commit these now.
                if self._journal is None and isinstance(step, _ROW_STEPS):
                    for statement in session.statements.rows(step):
                        session.run(statement)
                    continue
                if self._journal is None:
                    self._journal = Journal.begun(session)
                self._journal.add(step)

    def _commit(self, marks: Mapping[str, str | None]) -> None:
        with explained():
            session = self._begun()
            # Removed first: if anything fails below, the next load decides from the target.
            journal = self._journal
            self._journal = None
            if journal is None:
                session.keep(marks)
                session.commit()
                return
            with session.locked():
                # The marks are in the journal: the process that completes it stores them with its
                # last step.
                journal.seal(marks)
                refused = journal.execute()
        # The marks in memory are not the stored ones any more; an error makes the mirror load them.
        if refused:
            raise target.TargetAwayError(
                f"the mirror's MariaDB refused what followed a change of a table: {refused}",
                remedy="The mirror copies that table again.",
            )


class MariadbReading:
    """One moment of the database: a read-only transaction."""

    def __init__(self, url: MariadbUrl, types: NativeTypes, table: Table | None) -> None:
        self.types = types
        with explained():
            self._session = MariadbSession(url, types, TAKE_OVER_S)
            try:
                self.marks: Mapping[str, str] = self._begin(table)
            except BaseException:
                self._session.close()
                raise

    def _begin(self, table: Table | None) -> dict[str, str]:
        if not self._session.exists(MARKS):
            raise target.TargetError(
                "the database contains no mirror",
                remedy="Check --to; `headrace mirror` creates a mirror there.",
            )
        deadline = time.monotonic() + JOURNAL_S
        while True:
            self._session.begin_reading()
            if table is not None and self._session.exists(table_name(table).strip("`")):
                # From here on, nobody can change the table's shape under this reader.
                self._session.ask(f"SELECT 1 FROM {table_name(table)} LIMIT 0")
            marks = self._session.marks()
            # DDL commits immediately, so other sessions see the steps of a journal one by one.
            if not Journal.is_open(marks):
                return of_mirror(marks)
            # Its tables are between two moments.
            self._session.roll_back()
            if time.monotonic() > deadline:
                raise target.TargetAwayError("the mirror's MariaDB: a change of a table is open")
            time.sleep(_LOOK_S)

    def close(self) -> None:
        self._session.close()

    def _streamed(self, table: Table, names: Sequence[str]) -> Iterator[Sequence[Any]]:
        with explained():
            return self._session.streamed(table, names)

    async def rows(
        self, table: Table, columns: Sequence[Column]
    ) -> AsyncIterator[list[tuple[Any, ...]]]:
        """The server's own text, read a part at a time."""
        kept = [self.types.column(table, column) for column in columns]
        readers = [reader_of(column) for column in kept]
        parts = await asyncio.to_thread(self._streamed, table, [column.name for column in kept])
        while rows := await asyncio.to_thread(_next, parts):
            yield [
                tuple(
                    value if value is None else read(value)
                    for read, value in zip(readers, row, strict=True)
                )
                for row in rows
            ]


def of_mirror(marks: Mapping[str, str]) -> dict[str, str]:
    """Without the target's own."""
    return {name: value for name, value in marks.items() if name not in {WRITER, TEXT_MARK}}


def _next(parts: Iterator[Sequence[Any]]) -> Sequence[Any]:
    with explained():
        return next(parts, ())


def reader_of(column: NativeColumn) -> Callable[[Any], Any]:
    """From the server's text to what SQLite has."""
    if Native.FLOAT in {column.native, column.chosen}:
        return as_sqlite_float
    return _READERS.get(column.native, _same)


_READERS: dict[Native, Callable[[Any], Any]] = {
    Native.BOOL: int,
    Native.INT2: int,
    Native.INT4: int,
    Native.INT8: int,
    Native.OID: int,
    Native.TIMESTAMP: as_contract_moment,
    Native.TIMESTAMPTZ: lambda text: as_contract_moment(f"{text}+00"),
    Native.TIME: trimmed,
}


def _same(value: Any) -> Any:
    return value
