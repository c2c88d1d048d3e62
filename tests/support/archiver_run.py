"""A run of the archiver's change store on a folder, driven entry by entry."""

from __future__ import annotations

import asyncio
import io
import struct
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq

from headrace.archive.layout import file_name
from headrace.archive.store import Get, Store
from headrace.archiver.archived_table import OPTIONS
from headrace.archiver.change_store import ArchiveChangeStore
from headrace.archiver.file_writer import FileWriter, at_the_end
from headrace.bus.frame import Opening
from headrace.confirming.change_store import Stored, Taken
from headrace.confirming.relation_shape import RelationShape
from headrace.lsn import Position
from headrace.pgoutput.messages import Relation
from headrace.postgres.facts import TableFacts
from headrace.process.health import Health
from headrace.process.lifecycle import Scope
from headrace.settings import load

TABLE, INT = 16384, 23
Entry = tuple[int, bytes]


def opening(confirmed_lsn: int = 50, system_id: str = "1") -> Opening:
    return Opening({}, "headrace", "db", system_id, 1, confirmed_lsn)


def begin(commit: int) -> Entry:
    return commit, b"B" + struct.pack(">QqI", commit, 0, 7)


def commit(at: int) -> Entry:
    return at, b"C\0" + struct.pack(">QQq", at, at + 10, 0)


def table() -> Entry:
    column = b"\1id\0" + struct.pack(">Ii", INT, -1)
    return 0, b"R" + struct.pack(">I", TABLE) + b"public\0rows\0d" + b"\0\1" + column


def row(text: bytes) -> Entry:
    value = struct.pack(">I", len(text)) + text
    return 0, b"I" + struct.pack(">I", TABLE) + b"N\0\1t" + value


def transaction(at: int, *texts: bytes) -> list[Entry]:
    return [begin(at), table(), *(row(text) for text in texts), commit(at)]


async def turns() -> None:
    """Let every task run until it waits for a thread."""
    for _ in range(10):
        await asyncio.sleep(0)


def keepalive(lsn: int) -> Entry:
    return lsn, b""


class Clock:
    """In the place of the module `time`."""

    now = 1_000_000.0

    def monotonic(self) -> float:
        return self.now


class Cell:
    """A key of the state bucket."""

    def __init__(self) -> None:
        self.value: Mapping[str, Any] | None = None
        self.writes: list[Mapping[str, Any]] = []

    async def read(self) -> Mapping[str, Any] | None:
        return self.value

    async def write(self, value: Mapping[str, Any]) -> None:
        self.value = value
        self.writes.append(value)


class Relations:
    """The catalog knows nothing more than the stream."""

    async def describe(self, _: Scope, relation: Relation, xid: int) -> RelationShape:
        assert xid == 7
        return RelationShape.of(relation, TableFacts(), OPTIONS)


class Parked:
    """Takes every row, or none."""

    def __init__(self, *, takes: bool = True) -> None:
        self._takes = takes
        self.put_at: list[tuple[int, Position, bytes]] = []

    def takes(self, _: bytes) -> bool:
        return self._takes

    async def put(self, lsn: int, position: Position, message: bytes, *_: object) -> None:
        self.put_at.append((lsn, position, message))


class SlowStore(Store):
    """Lets each put fail, or wait for its turn, as the test says."""

    before_put: Callable[[], object] = staticmethod(lambda: None)

    def put_new(self, name: str, data: bytes) -> None:
        self.before_put()
        super().put_new(name, data)


class Archiver:
    """A sink with its parts, at the end of an archive in memory."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.settings = load({"HEADRACE_ARCHIVE_URL": "file:///a", **settings})
        self.scope = Scope("archiver", self.settings.process, asyncio.TaskGroup(), Health("a"))
        self.store = SlowStore(f"file://{folder}")
        self.cell = Cell()
        self.parked = Parked()
        self.writer: FileWriter = SimpleNamespace()  # type: ignore[assignment]  # made by `open`
        self.sink: ArchiveChangeStore = SimpleNamespace()  # type: ignore[assignment]  # nor a sink

    async def open(self, at: Opening | None = None) -> ArchiveChangeStore:
        self.writer = await at_the_end(
            self.scope,
            self.store,
            self.cell,  # type: ignore[arg-type]  # as much of a cell as it needs
            "headrace",
            "session",
        )
        self.sink = ArchiveChangeStore(
            self.scope,
            self.settings,
            Relations(),  # type: ignore[arg-type]  # as above
            self.parked,  # type: ignore[arg-type]  # as above
            self.writer,
        )
        await self.sink.on_epoch(at or opening())
        return self.sink

    async def take(self, *entries: Entry) -> Stored:
        return await self.sink.take(Taken("1-1", entries))

    def bytes(self, file_id: int) -> bytes:
        fetched = self.store.ask(Get(file_name(file_id)))
        assert fetched is not None, f"file {file_id} is not there"
        return fetched.data  # type: ignore[no-any-return]  # of whichever request it was

    def rows(self, file_id: int) -> list[tuple[int, int, str]]:
        """As pyarrow reads them."""
        found = pq.read_table(io.BytesIO(self.bytes(file_id)))
        columns = ("commit_lsn", "ordinal", "after")
        return list(zip(*(found.column(name).to_pylist() for name in columns), strict=True))

    def is_there(self, file_id: int) -> bool:
        return self.store.ask(Get(file_name(file_id))) is not None

    def hold_puts(self) -> threading.Event:
        """Until the event is set."""
        release = threading.Event()
        self.store.before_put = release.wait
        return release

    async def waits(self) -> None:
        """Until the service names something that it waits for."""
        while not self.scope.waits:  # noqa: ASYNC110  # a list has no event
            await asyncio.sleep(0)

    def figure(self, key: str) -> object:
        return self.scope.health.stats.values().get(key)
