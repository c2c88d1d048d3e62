"""The part of the copy that a reader holds: one cut of all tables, and a cursor that shows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import duckdb

from headrace.lake.catalog import Cut
from headrace.lake.errors import LakeError
from headrace.sql.relations import LakeRelation

_INTERRUPTED_S = 5.0
# The one in use, and a spare one.
_CURSORS_MAX = 2


class PinExpiredError(LakeError):
    """A reader held its cut for too long."""

    # snapshot_too_old
    sqlstate = "72000"
    remedy = "Use shorter transactions, or raise HEADRACE_SQL_PIN_S."


@dataclass(frozen=True, slots=True)
class Shown:
    """A state of the copy: a cut, and its tables by their OIDs in the private PostgreSQL."""

    cut: Cut
    relations: Mapping[int, LakeRelation]


class PinnedCut:
    """One cut of all tables, for one reader: a cursor in a transaction that shows it.

    An error of a statement ends DuckDB's transaction. `recover` continues with the spare one, at
    the same cut.
    """

    def __init__(
        self,
        shown: Shown,
        version: int,
        cursors: Sequence[duckdb.DuckDBPyConnection],
        another: Callable[[int], duckdb.DuckDBPyConnection | None],
        give_back: Callable[[int, duckdb.DuckDBPyConnection], bool] | None = None,
    ) -> None:
        """`another` opens a cursor at a version, if the copy still shows it to new readers;
        `give_back` takes a cursor for another reader of the version, if that is possible.
        """
        self._shown = shown
        self.version = version
        self._cursors = list(cursors)
        self._another = another
        self._give_back = give_back
        self.since = time.monotonic()
        self._lock = threading.Lock()
        self._expired = False

    @property
    def cut(self) -> int:
        """The cut's number."""
        return self._shown.cut.number

    @property
    def identity(self) -> tuple[int, str]:
        """Of its rows: a lake that was set back makes another cut of the same number."""
        return self._shown.cut.number, self._shown.cut.attempt

    @property
    def lsn(self) -> int:
        """Every change that committed before this LSN is shown, and no later one."""
        return self._shown.cut.lsn

    @property
    def relations(self) -> Mapping[int, LakeRelation]:
        """The tables of the cut, by their OIDs."""
        return self._shown.relations

    @property
    def closed(self) -> bool:
        """Whether the reader has let go of it, or had to."""
        return not self._cursors

    @property
    def cursor(self) -> duckdb.DuckDBPyConnection:
        """The cursor; `using` also keeps it from being taken away."""
        self._check()
        return self._cursors[0]

    @contextmanager
    def using(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The cursor, which is not taken away meanwhile; raises `PinExpiredError`."""
        with self._lock:
            try:
                yield self.cursor
            except duckdb.InterruptException:
                self._check()
                raise

    def prepare(self, relids: Iterable[int]) -> None:
        """Make sure that these tables can be read; those of the last cut always can."""

    def recover(self) -> bool:
        """Continue after an error of a statement; False if the cut can't be shown any more."""
        with self._lock:
            self._check()
            # An error has ended this cursor's transaction, and another one would show a later cut.
            self._cursors.pop(0).close()
            if not self._cursors:
                self._add_cursor()
            return bool(self._cursors)

    def spare(self) -> bool:
        """Make sure that `recover` will succeed once; False if that is not possible any more."""
        with self._lock:
            self._check()
            if len(self._cursors) < _CURSORS_MAX:
                self._add_cursor()
            return len(self._cursors) == _CURSORS_MAX

    def _add_cursor(self) -> None:
        cursor = self._another(self.version)
        if cursor is not None:
            self._cursors.append(cursor)

    def interrupt(self) -> None:
        """End the statement that runs, from another thread."""
        with suppress(duckdb.ConnectionException, IndexError):
            # Without the lock, which the statement that is to end holds.
            self._cursors[0].interrupt()

    def expire(self) -> None:
        """Take the cut away from its reader."""
        # Set first: the interrupted statement finds it, and raises the error that explains it.
        self._expired = True
        self.interrupt()
        self.close()

    def release(self) -> bool:
        """Let go of the cut without waiting, and leave its transaction to the next reader; False if
        it has to be closed. Only after results that were read to their ends.
        """
        if self._give_back is None or not self._lock.acquire(blocking=False):
            return False
        try:
            if self._expired or len(self._cursors) != 1:
                return False
            if not self._give_back(self.version, self._cursors[0]):
                return False
            self._cursors.clear()
        finally:
            self._lock.release()
        return True

    def close(self) -> None:
        """Let go of the cut."""
        # A statement that runs was interrupted, or its thread closes the pin itself.
        if not self._lock.acquire(timeout=_INTERRUPTED_S):
            return
        try:
            while self._cursors:
                self._cursors.pop().close()
        finally:
            self._lock.release()

    def _check(self) -> None:
        if self._expired:
            raise PinExpiredError("the transaction held the lake's cut for too long")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
