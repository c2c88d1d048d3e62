"""The surroundings of a wal-reader, for tests of its service: a walsender and confirmers that do what
a test says. The confirmers' receiver is the real one; time is the simulation's.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

from headrace.bus import control, frame, subjects
from headrace.bus.control import Control
from headrace.bus.frame import Entry, FrameKind, Opening
from headrace.bus.receiver import FrameReceiver
from headrace.postgres.replication import (
    Keepalive,
    Message,
    ReplicationConnection,
    SlotState,
    SystemIdentity,
)
from headrace.postgres.slot_reader import SlotReader, application_name
from headrace.process.health import Health
from headrace.process.lifecycle import Scope
from headrace.settings import load
from headrace.wal_reader import service

SLOT = "shop"
START_LSN = 0x1000
LATENCY_S = 0.001
SUITE = "abc123"
OUR_NAME = application_name(SUITE)


@dataclass(frozen=True, slots=True)
class Status:
    """A status that PostgreSQL got, and when."""

    at: float
    received: int
    confirmed: int
    answer: bool


class Source:
    """A PostgreSQL server with one slot."""

    def __init__(self) -> None:
        self.slot: SlotState | None = SlotState(START_LSN, "pgoutput", "db", "reserved")
        # The slot's reader, as pg_stat_activity shows it.
        self.reader: SlotReader | None = None
        self.is_standby = False
        self.publications = {"headrace"}
        self.timeline = 1
        self.forks: tuple[tuple[int, int], ...] = ()
        self.end_lsn = START_LSN
        # Attempts to connect that fail, next first; None succeeds.
        self.refusals: deque[Exception | None] = deque()
        # The walsender's next messages, and those that it repeats after that.
        self.waiting: deque[Message] = deque()
        self.endless: Message | None = None
        self.answers = True
        self.opened_at: list[float] = []
        self.names: list[str] = []
        self.connections: list[Walsender] = []
        self.commands: list[str] = []
        self.statuses: list[Status] = []

    async def open(self, _settings: object, application: str) -> Walsender:
        self.opened_at.append(time.monotonic())
        self.names.append(application)
        refusal = self.refusals.popleft() if self.refusals else None
        if refusal is not None:
            raise refusal
        made = Walsender(self, 100 + len(self.connections))
        self.connections.append(made)
        return made

    @property
    def walsender(self) -> Walsender:
        """The one that streams."""
        return next(one for one in reversed(self.connections) if one.streams)

    def send(self, *messages: Message) -> None:
        self.waiting.extend(messages)
        for one in self.connections:
            one.news.set()

    def keepalive(self, lsn: int, *, reply_wanted: bool = False) -> None:
        self.send(Keepalive(lsn, reply_wanted))

    @property
    def confirmed(self) -> list[int]:
        return [status.confirmed for status in self.statuses]


class Walsender:
    """A replication connection."""

    def __init__(self, source: Source, pid: int) -> None:
        self.source = source
        self.backend_pid = pid
        self.streams = False
        self.closed = False
        self.broken: Exception | None = None
        self.news = asyncio.Event()

    async def identify(self) -> SystemIdentity:
        # The log grows in the meantime.
        self.source.end_lsn += 0x100
        return SystemIdentity("7000", self.source.timeline, self.source.end_lsn, "db")

    async def forks(self, timeline: int) -> tuple[tuple[int, int], ...]:
        assert timeline == self.source.timeline
        return self.source.forks

    async def is_standby(self) -> bool:
        return self.source.is_standby

    async def has_publication(self, publication: str) -> bool:
        return publication in self.source.publications

    async def slot(self, slot: str) -> SlotState | None:
        assert slot == SLOT
        return self.source.slot

    async def slot_reader(self, slot: str) -> SlotReader | None:
        assert slot == SLOT
        return self.source.reader

    async def end_backend(self, pid: int) -> None:
        self.source.commands.append(f"end {pid}")
        self.source.reader = None

    async def create_slot(self, slot: str, *, failover: bool) -> None:
        self.source.commands.append(f"create {slot}, failover {failover}")
        self.source.slot = SlotState(self.source.end_lsn, "pgoutput", "db", "reserved")

    async def drop_slot(self, slot: str) -> None:
        self.source.commands.append(f"drop {slot}")
        self.source.slot = None

    async def start(self, slot: str, publication: str) -> None:
        assert (slot, publication) == (SLOT, "headrace")
        self.streams = True

    async def read(self, wait_s: float) -> list[Message]:
        self.news.clear()
        found = self.read_now()
        if found:
            return found
        with _ignored_timeout():
            async with asyncio.timeout(wait_s):
                await self.news.wait()
        return self.read_now()

    def read_now(self) -> list[Message]:
        if self.broken is not None:
            raise self.broken
        found = list(self.source.waiting)
        self.source.waiting.clear()
        if not found and self.source.endless is not None:
            found = [self.source.endless]
        return found

    def interrupt(self) -> None:
        self.news.set()

    def close(self) -> None:
        self.closed = True

    async def status(self, received: int, confirmed: int, *, answer: bool = False) -> None:
        self.source.statuses.append(Status(time.monotonic(), received, confirmed, answer))
        if answer and self.source.answers:
            self.source.keepalive(START_LSN)


class Bus:
    """A NATS client, with the confirmers at its other end."""

    max_payload = 1024 * 1024

    def __init__(self) -> None:
        self.is_connected = True
        self.is_closed = False
        self.confirmers: list[Confirmer] = []
        self.frames: list[bytes] = []
        self.refusal: Exception | None = None
        self._control: Callable[[Any], Awaitable[None]] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def subscribe(self, subject: str, cb: Callable[[Any], Awaitable[None]]) -> None:
        assert subject == subjects.control(SLOT)
        self._control = cb

    async def publish(self, subject: str, data: bytes) -> None:
        assert subject == subjects.frames(SLOT)
        if self.refusal is not None:
            raise self.refusal
        self.frames.append(data)
        for confirmer in self.confirmers:
            _later(partial(confirmer.take, data))

    def say(self, message: Control | bytes) -> None:
        """To the wal-reader."""
        data = message if isinstance(message, bytes) else control.encode(message)
        _later(partial(self._heard, data))

    def _heard(self, data: bytes) -> None:
        if self._control is not None:
            task = asyncio.ensure_future(self._control(mock.Mock(data=data)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


class Confirmer:
    """Takes frames, and confirms what the test says is durable."""

    def __init__(self, bus: Bus, name: str = "publisher") -> None:
        self.bus = bus
        self.receiver = FrameReceiver(name, f"{name}-1")
        self.receiver.suite = SUITE
        self.consumes = True
        # Confirms everything when it is asked to flush.
        self.flushes = True
        self.settled = True
        self.silent = False
        self.openings: list[Opening] = []
        self.entries: list[Entry] = []
        self.asked_to_flush = 0
        bus.confirmers.append(self)

    def take(self, data: bytes) -> None:
        if self.silent:
            return
        received = self.receiver.receive(data, time.monotonic())
        if received.opening is not None:
            self.openings.append(received.opening)
        self.entries += received.entries
        if received.flush:
            self.asked_to_flush += 1
            self.settled = self.settled or self.flushes
        if received.reply is not None:
            self.bus.say(received.reply)
        if self.consumes and (received.entries or received.confirm):
            self.confirm()

    def confirm(self, lsn: int = 0) -> None:
        """Everything before `lsn` is durable."""
        self.receiver.confirmed_lsn = max(lsn, self.receiver.confirmed_lsn)
        self.bus.say(self.receiver.confirm(settled=self.settled))

    def restart(self, reason: str) -> None:
        self.bus.say(self.receiver.restart(reason))


@dataclass
class Reading:
    """A wal-reader at work."""

    source: Source
    bus: Bus
    scope: Scope
    task: asyncio.Task[None]

    @property
    def figures(self) -> dict[str, Any]:
        return dict(self.scope.health.refreshed())

    @property
    def reasons(self) -> dict[str, str]:
        return self.scope.health.reasons

    async def stop(self) -> None:
        self.scope.stopping.set()
        await self.task


@asynccontextmanager
async def reading(source: Source, bus: Bus, **variables: str) -> AsyncIterator[Reading]:
    """A wal-reader that runs while the context lasts, and is stopped at its end."""
    names = {f"HEADRACE_{name.upper()}": value for name, value in variables.items()}
    settings = load({"HEADRACE_SLOT": SLOT, **names})

    async def on_the_bus(_scope: object, _settings: object, work: Callable[..., Any]) -> None:
        await work(bus)

    scope = Scope("wal-reader", settings.process, mock.Mock(), Health("wal-reader"))
    with (
        mock.patch.object(ReplicationConnection, "open", source.open),
        mock.patch.object(service, "on_the_bus", on_the_bus),
    ):
        task = asyncio.create_task(service.run(scope, settings))
        one = Reading(source, bus, scope, task)
        try:
            yield one
            await one.stop()
        finally:
            task.cancel()
    assert all(connection.closed for connection in source.connections), "one was left open"


def kinds(bus: Bus) -> list[FrameKind]:
    return [frame.decode_header(data).kind for data in bus.frames]


async def begun() -> tuple[Source, Bus, Confirmer]:
    """With clocks that did not begin just now."""
    await asyncio.sleep(1000.0)
    bus = Bus()
    return Source(), bus, Confirmer(bus)


def _later(call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(LATENCY_S, call)


@contextmanager
def _ignored_timeout() -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        return
