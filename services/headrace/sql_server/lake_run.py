"""Runs statements on the lake's copies: pins a cut, executes in threads, returns rows in batches.

A session has at most one pinned cut. All statements of a transaction see it. A statement can be
cancelled at any moment, also before DuckDB has started it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from weakref import WeakSet

import duckdb
import pyarrow as pa

from headrace.metrics.counters import Counters
from headrace.sql.builtins import Builtins
from headrace.sql.relations import LakeRelation
from headrace.sql_server.problems import refused

if TYPE_CHECKING:
    from headrace.sql_server.exact_tables import ExactTables

T = TypeVar("T")

BATCH_ROWS: Final = 8192
# Rows of a portal that is read in parts, while another statement runs.
SET_ASIDE_BYTES_MAX: Final = 256 << 20
_INTERRUPT_EVERY_S: Final = 0.02


class Pinned(Protocol):
    """A cut of all tables, which stays the same until it is closed."""

    @property
    def cut(self) -> int: ...
    @property
    def identity(self) -> tuple[int, str]: ...
    @property
    def lsn(self) -> int: ...
    @property
    def relations(self) -> Mapping[int, LakeRelation]: ...
    def using(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]: ...
    def prepare(self, relids: Iterable[int]) -> None: ...
    def interrupt(self) -> None: ...
    def spare(self) -> bool: ...
    def recover(self) -> bool: ...
    def release(self) -> bool: ...
    def close(self) -> None: ...


class Copies(Protocol):
    """The copies of the lake's tables."""

    def pin(self, as_of: str | None = None) -> Pinned: ...
    def pin_idle(self) -> Pinned | None: ...


@dataclass(slots=True)
class SharedLake:
    """What all sessions share."""

    builtins: Builtins
    threads: ThreadPoolExecutor
    turns: asyncio.Semaphore
    stats: Counters
    rows_max: int = 0
    copies: Copies = field(init=False)
    # Every relation of the private PostgreSQL that was ever a table of the lake.
    relids: set[int] = field(default_factory=set)
    # The columns that the private PostgreSQL's tables have now: number, type and modifier.
    shapes: dict[int, tuple[object, ...]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    # How often tables were defined: since then, a name may mean another table.
    definitions: int = 0
    # The tables with rows in the private PostgreSQL: no client's own statement reads them.
    exact_relids: set[int] = field(default_factory=set)
    exact: ExactTables = field(init=False)


class CancelledError(Exception):
    """The client, or a time limit, cancelled the statement."""


class Runner:
    """One session's work on the copies."""

    def __init__(self, lake: SharedLake) -> None:
        self._lake = lake
        self._pinned: Pinned | None = None
        self._reading: Result | None = None
        # The transaction's results whose portals are open.
        self._results: WeakSet[Result] = WeakSet()
        # Whether an error has taken the cut away from the transaction.
        self._lost = False
        # Whether all work on the cut has ended without an error.
        self._whole = True
        self._cancelled = asyncio.Event()
        # Set when the thread's work has ended, or is to end.
        self._waiting: asyncio.Future[None] | None = None
        self._busy = False
        # Calls that let go of other things that the transaction holds, with its cut.
        self._held: list[Callable[[], None]] = []

    @property
    def pinned(self) -> Pinned | None:
        """The cut that the transaction sees, if it has looked already."""
        return self._pinned

    async def pin(self, as_of: str | None, *, in_block: bool) -> Pinned:
        """The transaction's cut; in a block, statements after an error see it again."""
        if self._lost:
            raise refused(
                "72000",
                "the transaction's cut can't be shown any more after an error",
                hint="Begin another transaction.",
            )
        if self._pinned is None and as_of is None and not in_block:
            self._pinned = self._lake.copies.pin_idle()
        if self._pinned is None:
            # Not cancellable: a cut that was taken and not noted would never be closed.
            self._pinned = await self._thread(lambda: self._taken(as_of, in_block=in_block))
        return self._pinned

    def _taken(self, as_of: str | None, *, in_block: bool) -> Pinned:
        pinned = self._lake.copies.pin(as_of)
        # A later statement may need the cut again after an error, so its files have to stay.
        if in_block:
            pinned.spare()
        return pinned

    async def unpin(self) -> None:
        """Another transaction may see a later cut."""
        # Taken before the first await: the next transaction never sees the cut of this one.
        pinned, self._pinned = self._pinned, None
        # A transaction with rows that nobody has read, or after an error, is of no use to others.
        whole = self._whole and (self._reading is None or self._reading.ended)
        self._reading = None
        self._results.clear()
        self._lost = False
        self._whole = True
        held, self._held = self._held, []
        for let_go in held:
            let_go()
        if pinned is not None and not (whole and pinned.release()):
            await self._thread(pinned.close)

    def hold(self, let_go: Callable[[], None]) -> None:
        """Keep something until the transaction ends."""
        self._held.append(let_go)

    @property
    def cancelled(self) -> asyncio.Event:
        """Set when the statement that runs is to end."""
        return self._cancelled

    @property
    def busy(self) -> bool:
        """Whether a statement runs here."""
        return self._busy

    def cancel(self) -> None:
        """Cancel the statement that runs; nothing if there is no such statement."""
        # A late request must not cancel the next statement.
        if self._busy:
            self._cancelled.set()
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_result(None)

    @contextlib.contextmanager
    def cancellable(self) -> Iterator[None]:
        """A statement runs, which can be cancelled."""
        # A request for the statement before may have come too late for it.
        self._cancelled.clear()
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    async def apart(self, work: Callable[[Pinned], T]) -> T:
        """Work on the pinned cut besides an open result."""
        pinned = self._pinned
        assert pinned is not None, "pinned before"
        # DuckDB's connection has one result at a time.
        if self._reading is not None:
            await self._reading.set_aside()
            self._reading = None
        return await self.read(lambda: work(pinned))

    async def execute(
        self, sql: str, values: Sequence[object], relids: Collection[int], *, spare: bool = False
    ) -> Result:
        """Start a query on the pinned cut; with `spare`, another one can follow after its error."""
        pinned = self._pinned
        assert pinned is not None, "pinned before"
        if self._reading is not None:
            # DuckDB's connection has one result at a time.
            await self._reading.set_aside()

        def start() -> tuple[pa.RecordBatchReader | None, list[pa.RecordBatch]]:
            if spare:
                pinned.spare()
            pinned.prepare(relids)
            with pinned.using() as cursor:
                return _begun(cursor.execute(sql, list(values)).to_arrow_reader(BATCH_ROWS))

        reader, first = await self.read(start)
        self._reading = Result(self, pinned, reader, first)
        self._results.add(self._reading)
        return self._reading

    @property
    def held_bytes(self) -> int:
        """The size of rows in memory that no portal of the transaction has fetched yet."""
        return sum(result.held_bytes for result in self._results)

    async def read(self, work: Callable[[], T]) -> T:
        """`run` with DuckDB. An error ends its transaction, and the cut has to be shown again."""
        try:
            return await self.run(work)
        except (duckdb.Error, CancelledError):
            pinned = self._pinned
            self._reading = None
            if pinned is not None:
                self._lost = not await self._thread(pinned.recover)
            raise

    async def run(self, work: Callable[[], T]) -> T:
        """Work in a thread when it is its turn; interrupted when the statement is cancelled."""
        async with contextlib.AsyncExitStack() as stack:
            turn = stack.enter_async_context(self._lake.turns)
            if self._lake.turns.locked():
                # Waiting for a turn can be cancelled, too: the queue may be long.
                await self._unless_cancelled(turn)
            else:
                await turn
            future = asyncio.get_running_loop().run_in_executor(self._lake.threads, work)
            try:
                await self._ended(future)
            # The thread can't be abandoned: it uses the cut, which is closed after this.
            except BaseException:
                self._whole = False
                await self._interrupted(future)
                raise
            self._whole &= future.exception() is None
            return future.result()

    async def _ended(self, future: asyncio.Future[Any]) -> None:
        """Wait for a thread; without a task, which most statements would take longer to make than
        to run.
        """
        if self._cancelled.is_set():
            raise CancelledError
        waiting = asyncio.get_running_loop().create_future()

        def wake(_: asyncio.Future[Any]) -> None:
            if not waiting.done():
                waiting.set_result(None)

        future.add_done_callback(wake)
        self._waiting = waiting
        try:
            await waiting
        finally:
            self._waiting = None
        if not future.done():
            raise CancelledError

    async def _unless_cancelled(self, wanted: Awaitable[object]) -> None:
        task = asyncio.ensure_future(wanted)
        stop = asyncio.create_task(self._cancelled.wait(), name="statement-cancelled")
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            if not task.done():
                # The wait below lets it release what it holds, such as a turn that it has just got.
                task.cancel()
                await asyncio.wait({task})
        if task.cancelled():
            raise CancelledError
        task.result()

    async def _interrupted(self, future: asyncio.Future[Any]) -> None:
        """Interrupt DuckDB until the thread ends: an interrupt before its start has no effect."""
        while not future.done():
            if self._pinned is not None:
                self._pinned.interrupt()
            await asyncio.wait({future}, timeout=_INTERRUPT_EVERY_S)
        with contextlib.suppress(Exception):
            future.result()

    async def _thread(self, work: Callable[[], T]) -> T:
        """Work that is short, and that nobody cancels."""
        future = asyncio.get_running_loop().run_in_executor(self._lake.threads, work)
        # A cancelled task doesn't stop a thread, which must not run on without anyone who knows.
        return await asyncio.shield(future)


def _begun(
    reader: pa.RecordBatchReader,
) -> tuple[pa.RecordBatchReader | None, list[pa.RecordBatch]]:
    """The first rows, and the reader of the others: the whole result if it is small, because
    another thread for each look at it would cost more than the rows.
    """
    found = []
    # DuckDB fills batches: one that is smaller is the last, or nearly.
    for batch in reader:
        if batch.num_rows:
            found.append(batch)
        if batch.num_rows >= BATCH_ROWS or len(found) > 1:
            return reader, found
    return None, found


class Result:
    """The rows of a query that were not read yet."""

    def __init__(
        self,
        runner: Runner,
        pinned: Pinned,
        reader: pa.RecordBatchReader | None,
        first: list[pa.RecordBatch],
    ) -> None:
        """`first` has rows that were read already; without a reader these are all."""
        self._runner = runner
        self._pinned = pinned
        self._reader = reader
        self._waiting = first

    @property
    def ended(self) -> bool:
        """Whether DuckDB has no more rows."""
        return self._reader is None

    @property
    def held_bytes(self) -> int:
        """The size of its rows that are in memory."""
        return sum(batch.nbytes for batch in self._waiting)

    async def batch(self, rows_max: int = 0) -> pa.RecordBatch | None:
        """The next rows, so many at most (0: any number); None after the last."""
        while not self._waiting:
            found = await self._read()
            if found is None:
                return None
            # DuckDB may return empty batches in between, which are not the end.
            if found.num_rows:
                self._waiting.append(found)
        first = self._waiting.pop(0)
        if rows_max and first.num_rows > rows_max:
            # The rest comes first at the next call: a portal is read in parts of any size.
            self._waiting.insert(0, first.slice(rows_max))
            return first.slice(0, rows_max)
        return first

    async def set_aside(self) -> None:
        """Read all rows into memory: another query is about to start."""
        # Many portals may be open, so the limit is one of all together.
        held = self._runner.held_bytes
        while (found := await self._read()) is not None:
            self._waiting.append(found)
            held += found.nbytes
            if held > SET_ASIDE_BYTES_MAX:
                raise refused(
                    "53200",
                    "another statement would keep too many rows of open portals in memory",
                    hint="Fetch all rows of the portals first, or close them.",
                )

    async def _read(self) -> pa.RecordBatch | None:
        reader, pinned = self._reader, self._pinned
        if reader is None:
            return None

        def read() -> pa.RecordBatch | None:
            # The cut must not be closed by another thread while DuckDB reads its files.
            with pinned.using():
                return next(reader, None)

        found = await self._runner.read(read)
        if found is None:
            self._reader = None
        return found
