"""The copy of a lake in DuckDB: all tables at one cut, fed once per cut.

Promises that a reader who pins the copy sees exactly the rows of one cut in all tables, for as long
as it holds the pin: a cut is one transaction of DuckDB. A cut that can't be fed leaves the one from
before. The copy is in no file that has to be kept: it is filled from the lake when it is opened,
and again if it was lost. Any number of processes may each have one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import duckdb

from headrace.errors import HeadraceError
from headrace.lake.catalog import Cut, TableName
from headrace.lake.errors import LakeError
from headrace.lake.tables import LakeTable
from headrace.sql.cut_reading import CutReader, CutTables
from headrace.sql.lake_copy_database import CopyLimits, open_database
from headrace.sql.lake_copy_tables import CopyDamagedError, FedTable, TableFeed
from headrace.sql.older_cuts import OlderCut, find_cut
from headrace.sql.pins import PinnedCut, Shown
from headrace.sql.relations import Defined, LakeRelation
from headrace.sql.stored_rows import column_name

IDLE_MAX = 8

Define = Callable[[Mapping[TableName, LakeTable]], Mapping[TableName, Defined]]
"""Defines the tables of a cut in PostgreSQL, before readers see it. A table that it leaves out is
in no relation. If it raises, readers see the cut from before.
"""


class CopyEmptyError(LakeError):
    """There is no cut yet, or the copy is still being filled."""

    # cannot_connect_now
    sqlstate = "57P03"
    retry = True
    remedy = "Wait until the lake has a cut and the copy is filled."


class CopyTooLargeError(LakeError):
    """The lake's tables don't fit into what the copy may use."""

    retry = True
    remedy = "Raise HEADRACE_SQL_MEMORY_MB or HEADRACE_SQL_SPILL_MB."


class OtherDefinitionError(HeadraceError):
    """A table in the cut has other columns than its definition in PostgreSQL."""

    # object_not_in_prerequisite_state
    sqlstate = "55000"
    retry = True


@dataclass(frozen=True, slots=True)
class _Version:
    """The state that a version of the copy shows, and the Iceberg table of each relation."""

    shown: Shown
    identities: Mapping[int, str]


class _Contents:
    """An empty database, and the state of its tables."""

    def __init__(self, reader: CutReader, limits: CopyLimits) -> None:
        self.database = open_database(limits)
        self.cursor = self.database.cursor()
        self.feed = TableFeed(reader.files, self.cursor)
        self.states: dict[str, FedTable] = {}
        self.version = 0
        self.versions: dict[int, _Version] = {}
        # Transactions that show the version, for the next readers: beginning one takes longer than
        # most lookups.
        self.idle: list[duckdb.DuckDBPyConnection] = []
        self.cursor.execute("CREATE TABLE shown AS SELECT 0 AS version")


class LakeCopy:
    """The copy: one thread feeds it, and any thread pins it."""

    def __init__(self, reader: CutReader, limits: CopyLimits, define: Define) -> None:
        self._reader = reader
        self._limits = limits
        self._define = define
        # Held for moments: a version must not be forgotten while a reader takes it.
        self._lock = threading.Lock()
        self._pins: list[PinnedCut] = []
        self._defined: tuple[Mapping[TableName, LakeTable], Mapping[TableName, Defined]] = ({}, {})
        self._copy = _Contents(reader, limits)

    @property
    def cut(self) -> Cut | None:
        """The cut that readers see; None before the first."""
        version = self._copy.versions.get(self._copy.version)
        if version is None:
            return None
        return version.shown.cut

    def advance(self) -> Cut | None:
        """Feed the lake's last cut; returned if readers see another one, or a later LSN, now.

        One thread calls it. If it raises, readers see the cut from before, and the next call starts
        again.
        """
        # First: dead rows that only an old pin needs can be freed by this feed.
        self.expire_pins()
        before = self.cut
        last = self._reader.last()
        if last is None or last == before:
            return None
        # The attempt, too: another lake in the same place may have a cut with this number.
        if before is None or (last.number, last.attempt) != (before.number, before.attempt):
            tables = self._reader.read()
            if tables is None:
                return None
            self._take(tables)
        else:
            self._show_later(last)
        return self.cut

    def _show_later(self, cut: Cut) -> None:
        """The same rows are those of a later LSN, too."""
        with self._lock:
            version = self._copy.versions[self._copy.version]
            self._copy.versions[self._copy.version] = replace(
                version, shown=replace(version.shown, cut=cut)
            )

    def _take(self, cut: CutTables) -> None:
        try:
            self._copy.cursor.execute("BEGIN TRANSACTION")
            states = self._fed(cut)
            number = self._copy.version + 1
            # In the feed's transaction: a reader of it sees the tables of the same version.
            self._copy.cursor.execute("UPDATE shown SET version = ?", [number])
            # Before the commit: a reader that sees the version finds its description.
            self._copy.versions[number] = self._described(cut.cut, states)
            # DuckDB keeps the rows that this cut deletes for as long as a transaction may see them.
            self._close_idle()
            self._copy.cursor.execute("COMMIT")
        except BaseException as error:
            self._give_up(error)
            if isinstance(error, duckdb.OutOfMemoryException):
                raise CopyTooLargeError(
                    f"cut {cut.cut.number} of the lake doesn't fit into the copy"
                ) from error
            raise
        # After the commit: a transaction that failed leaves the states from before.
        self._copy.states = states
        with self._lock:
            self._copy.version = number
        self._close_idle()
        self._forget()

    def _fed(self, cut: CutTables) -> dict[str, FedTable]:
        states = {
            table.identity: self._copy.feed.feed(self._copy.states.get(table.identity), table)
            for table in cut.tables.values()
        }
        for identity, state in self._copy.states.items():
            if identity not in states:
                self._copy.feed.drop(state)
        return states

    def _described(self, cut: Cut, states: Mapping[str, FedTable]) -> _Version:
        tables = {state.table.name: state.table for state in states.values()}
        # Defining takes locks in PostgreSQL, and most cuts change no table's form.
        if tables != self._defined[0] or not self._copy.version:
            self._defined = (tables, self._define(tables))
        relations: dict[int, LakeRelation] = {}
        identities: dict[int, str] = {}
        for identity, state in states.items():
            defined = self._defined[1].get(state.table.name)
            if defined is not None:
                relations[defined.relid] = _relation(state, defined)
                identities[defined.relid] = identity
        return _Version(Shown(cut, relations), identities)

    def _give_up(self, error: BaseException) -> None:
        """Return to the state from before; a database that is broken is opened again, empty."""
        self._copy.versions.pop(self._copy.version + 1, None)
        # The next try defines the tables again, even if this one did.
        self._defined = ({}, {})
        try:
            self._copy.cursor.execute("ROLLBACK")
        except duckdb.TransactionException:
            # It did not begin, or DuckDB has ended it.
            pass
        except duckdb.Error:
            self._copy = _Contents(self._reader, self._limits)
            return
        if isinstance(error, duckdb.FatalException | duckdb.InternalException):
            self._copy = _Contents(self._reader, self._limits)
        elif isinstance(error, CopyDamagedError):
            damaged = self._copy.states[error.identity]
            self._copy.states[error.identity] = replace(damaged, files={}, snapshot_id=0)

    def pin(self, as_of: str | None = None) -> PinnedCut:
        """The last cut that was fed, for one reader; or an older one, by its number, or the last
        before an LSN or a time.
        """
        tables: CutTables | None = None
        if as_of is not None:
            tables = self._reader.read_older(find_cut(self._reader.cuts(), as_of))
        with self._lock:
            copy = self._copy
            number, cursor = self._begun()
            version = copy.versions.get(number)
            if version is None:
                cursor.close()
                raise CopyEmptyError("the lake's copy is empty")
            if tables is None:
                pinned = self._pinned(copy, number, cursor)
            else:
                cursor.execute("ROLLBACK")
                pinned = OlderCut(
                    self._reader.files, tables, version.shown, version.identities, cursor
                )
            self._pins.append(pinned)
            return pinned

    def pin_idle(self) -> PinnedCut | None:
        """The last cut, if a transaction that shows it is left from another reader. Never waits."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            copy = self._copy
            if not copy.idle:
                return None
            pinned = self._pinned(copy, copy.version, copy.idle.pop())
            self._pins.append(pinned)
            return pinned
        finally:
            self._lock.release()

    def _pinned(self, copy: _Contents, number: int, cursor: duckdb.DuckDBPyConnection) -> PinnedCut:
        shown = copy.versions[number].shown
        return PinnedCut(shown, number, [cursor], self._another, partial(self._keep, copy))

    def _keep(self, copy: _Contents, version: int, cursor: duckdb.DuckDBPyConnection) -> bool:
        """Keep a reader's transaction for the next one, as long as it shows the last cut. Never
        waits.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            last = copy is self._copy and version == copy.version and len(copy.idle) < IDLE_MAX
            if last:
                copy.idle.append(cursor)
            return last
        finally:
            self._lock.release()

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._copy.idle = self._copy.idle, []
        for cursor in idle:
            cursor.close()

    def _another(self, version: int) -> duckdb.DuckDBPyConnection | None:
        found, cursor = self._begun()
        if found == version:
            return cursor
        cursor.close()
        return None

    def _begun(self) -> tuple[int, duckdb.DuckDBPyConnection]:
        """A cursor in a transaction, and the version that it shows."""
        cursor = self._copy.database.cursor()
        cursor.execute("BEGIN TRANSACTION READ ONLY")
        # The transaction begins with the first table that it reads.
        row = cursor.execute("SELECT version FROM shown").fetchone()
        assert row is not None, "the copy has a version from the beginning"
        return int(row[0]), cursor

    def expire_pins(self) -> int:
        """Take cuts away that were held for too long: DuckDB keeps all rows for them; how many."""
        oldest = time.monotonic() - self._limits.pin_s
        with self._lock:
            old = [pin for pin in self._pins if pin.since < oldest and not pin.closed]
        for pin in old:
            pin.expire()
        self._forget()
        return len(old)

    def _forget(self) -> None:
        with self._lock:
            self._pins = [pin for pin in self._pins if not pin.closed]
            seen = {pin.version for pin in self._pins} | {self._copy.version}
            for version in self._copy.versions.keys() - seen:
                del self._copy.versions[version]

    def close(self) -> None:
        """End all readers, and the copy."""
        for pin in list(self._pins):
            pin.expire()
        self._close_idle()
        self._copy.database.close()


def _relation(state: FedTable, defined: Defined) -> LakeRelation:
    """The table as statements refer to it."""
    fields = {each.info.name: column_name(each.field_id) for each in state.table.columns}
    if {column.name for column in defined.columns} != fields.keys():
        raise OtherDefinitionError(f"{state.table.name} is defined with other columns")
    columns = tuple(
        replace(
            column,
            copy=f'"{fields[column.name]}"',
            held=fields[column.name] not in state.unheld,
        )
        for column in defined.columns
    )
    name = state.table.name
    return LakeRelation(defined.relid, name.namespace, name.name, columns, f'"{state.name}"')
