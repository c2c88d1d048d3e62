"""PostgreSQL for the simulation: a log of transactions, slots that replay it, promotions.

`Replication` replaces `ReplicationConnection`: pgoutput messages byte by byte, from the slot's
confirmed LSN, cut at any message, until the connection breaks. The durable LSN of a slot is older
than the reported one: a crash restores it.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from dataclasses import dataclass, field
from typing import Any

from headrace.postgres.connection import PostgresUnreachableError
from headrace.postgres.replication import Keepalive, SlotState, SystemIdentity
from headrace.postgres.replication_errors import SlotBusyError
from headrace.postgres.slot_reader import SlotReader
from headrace.timing.waits import wait_for
from tests.simulation.catalog import Table

BEGINS = 0x1000
_TICK_S = 0.0005


@dataclass(slots=True)
class Change:
    """A row, or an emitted message; each has a separate number in the whole history."""

    lsn: int
    number: int
    # None: an emitted message.
    table: Table | None
    columns: tuple[str, ...] = ()
    large: int = 0


@dataclass(slots=True)
class Transaction:
    xid: int
    commit: int
    end: int
    changes: list[Change]
    # An emitted message outside any transaction; `commit` is within its record.
    alone: bool = False

    def changes_of(self, publication: str) -> list[Change]:
        """The content of a slot: rows of the publication's tables, and every emitted message."""
        return [
            one for one in self.changes if one.table is None or one.table.publication == publication
        ]


@dataclass(slots=True)
class Slot:
    name: str
    confirmed: int
    # A crash goes back to this.
    durable: int
    # Whether it has delivered changes, as PostgreSQL's statistics say; a crash forgets them.
    used: bool = False
    reader: Replication | None = None
    freed_at: float = 0.0


@dataclass(slots=True)
class Cluster:
    """One server, with its own history."""

    timeline: int = 1
    forks: tuple[tuple[int, int], ...] = ()
    transactions: list[Transaction] = field(default_factory=list)
    end: int = BEGINS
    next_xid: int = 800
    slots: dict[str, Slot] = field(default_factory=dict)
    tables: dict[int, Table] = field(default_factory=dict)
    # Places in the log that open transactions have already.
    begun: list[int] = field(default_factory=list)
    connections: dict[Replication, None] = field(default_factory=dict)
    up: bool = True

    def record(self, size: int = 8) -> int:
        """A record's place."""
        at, self.end = self.end, self.end + size
        return at

    def commit(self, changes: list[Change], early: int) -> Transaction:
        """A transaction whose first changes may precede its predecessor's commit."""
        places = [self.begun.pop(0) for _ in range(min(len(self.begun), len(changes)))]
        places += [self.record() for _ in range(len(changes) - len(places))]
        self.begun = [self.record() for _ in range(early)]
        for change, place in zip(changes, places, strict=True):
            # A row is where its record begins, a message where it ends.
            change.lsn = place if change.table is not None else place + 8
        at = self.record(16)
        made = Transaction(self.next_xid, at, self.end, changes)
        self._append(made)
        return made

    def emit(self, change: Change) -> Transaction:
        """A message outside any transaction: its LSN is where its record ends, and a slot that is
        confirmed up to there doesn't give it again.
        """
        self.record()
        change.lsn = self.end
        made = Transaction(0, self.end - 1, self.end, [change], alone=True)
        self._append(made)
        return made

    def _append(self, made: Transaction) -> None:
        self.next_xid += 1
        self.transactions.append(made)
        self.wake()

    def wake(self) -> None:
        for connection in self.connections:
            connection.wake()

    def promoted(self, at: int, slots: dict[str, int]) -> Cluster:
        """A standby that has everything before `at`, and these slots, as the primary."""
        made = Cluster(
            self.timeline + 1,
            (*self.forks, (self.timeline, at)),
            [one for one in self.transactions if one.end <= at],
            at,
            self.next_xid,
            tables=self.tables,
        )
        made.slots = {name: Slot(name, lsn, lsn) for name, lsn in slots.items()}
        made.record(40)
        return made

    def crash(self, chance: random.Random) -> None:
        """All connections break; slots are as they were written last."""
        for connection in tuple(self.connections):
            connection.cut()
        for slot in self.slots.values():
            slot.confirmed = chance.choice((slot.durable, slot.confirmed))
            slot.durable = slot.confirmed
            slot.used = False
            slot.reader, slot.freed_at = None, 0.0
        self.begun.clear()


class Server:
    """The server at the address: the primary of now."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.primary = Cluster()
        # Whether ordinary connections are answered.
        self.catalog_up = True
        self.pids = 100
        # Checks a status from the wal-reader before PostgreSQL believes it.
        self.on_told: Any = lambda *_: None

    async def open(self, application: str) -> Replication:
        await asyncio.sleep(self.latency())
        if not self.primary.up:
            raise PostgresUnreachableError("the server is down")
        self.pids += 1
        return Replication(self, self.primary, application, self.pids)

    def latency(self) -> float:
        return 0.0002 + self.chance.random() * 0.001


class Replication:
    """A connection in replication mode."""

    def __init__(self, server: Server, cluster: Cluster, application: str, pid: int) -> None:
        self._server = server
        self._cluster = cluster
        self.application = application
        self.backend_pid = pid
        self.process: Any = None
        self._broken = False
        self._slot: Slot | None = None
        self._publication = ""
        # Set by news of the log, and by an interruption.
        self._attention = asyncio.Event()
        self._news = False
        # The next transaction, and the end of what was decoded before it.
        self._next = 0
        self._decoded = 0
        self._ready: list[Any] = []
        self._described: dict[int, tuple[str, ...]] = {}
        self._kept_alive = 0
        cluster.connections[self] = None

    def cut(self) -> None:
        self._broken = True
        self._cluster.wake()
        self._cluster.connections.pop(self, None)

    def close(self) -> None:
        self.cut()
        if self._slot is not None and self._slot.reader is self:
            # The walsender may notice late that nobody reads.
            late = self._server.chance.choice((0.0, 0.0, 0.05, 0.4))
            self._slot.freed_at = time.monotonic() + late
            self._slot.reader = None

    async def _ask(self) -> Cluster:
        await asyncio.sleep(self._server.latency())
        self._check()
        return self._cluster

    def _check(self) -> None:
        if self._broken or not self._cluster.up:
            raise PostgresUnreachableError("the replication connection broke")

    async def identify(self) -> SystemIdentity:
        cluster = await self._ask()
        return SystemIdentity("7000", cluster.timeline, cluster.end, "db")

    async def forks(self, timeline: int) -> tuple[tuple[int, int], ...]:  # noqa: ARG002  # as there
        return (await self._ask()).forks

    async def is_standby(self) -> bool:
        await self._ask()
        return False

    async def has_publication(self, publication: str) -> bool:  # noqa: ARG002  # as there
        await self._ask()
        return True

    async def slot(self, slot: str) -> SlotState | None:
        found = (await self._ask()).slots.get(slot)
        if found is None:
            return None
        return SlotState(found.confirmed, "pgoutput", "db", "reserved", found.used)

    async def slot_reader(self, slot: str) -> SlotReader | None:
        found = (await self._ask()).slots.get(slot)
        if found is None or found.reader is None:
            return None
        return SlotReader(found.reader.backend_pid, found.reader.application, idle=True)

    async def end_backend(self, pid: int) -> None:
        for connection in tuple((await self._ask()).connections):
            if connection.backend_pid == pid:
                connection.cut()
                connection.close()

    async def create_slot(self, slot: str, *, failover: bool) -> None:  # noqa: ARG002  # as there
        cluster = await self._ask()
        cluster.slots[slot] = Slot(slot, cluster.end, cluster.end)

    async def drop_slot(self, slot: str) -> None:
        (await self._ask()).slots.pop(slot, None)

    async def start(self, slot: str, publication: str) -> None:
        found = (await self._ask()).slots.get(slot)
        if found is None:
            raise PostgresUnreachableError("the slot is gone")
        now = time.monotonic()
        if found.reader is not None or now < found.freed_at:
            raise SlotBusyError(f"slot {slot} is active")
        found.reader, self._slot, self._publication = self, found, publication
        self._decoded = found.confirmed
        lsns = [one.commit for one in self._cluster.transactions]
        self._next = sum(lsn < found.confirmed for lsn in lsns)

    async def read(self, wait_s: float) -> list[Any]:
        messages = self.read_now()
        if messages or wait_s <= 0:
            return messages
        self._attention.clear()
        self._news = False
        await wait_for(self._attention, wait_s)
        if self._news:
            await asyncio.sleep(self._server.latency())
        return self.read_now()

    def interrupt(self) -> None:
        self._attention.set()

    def wake(self) -> None:
        """The log has grown, or the connection is cut."""
        self._news = True
        self._attention.set()

    def read_now(self) -> list[Any]:
        """Return some of the available messages, possibly a part of a transaction."""
        self._check()
        if not self._ready:
            self._decode()
        count = self._server.chance.choice((1, 3, 8, 50))
        taken, self._ready = self._ready[:count], self._ready[count:]
        return taken

    def _decode(self) -> None:
        cluster = self._cluster
        if self._next < len(cluster.transactions):
            transaction = cluster.transactions[self._next]
            self._next += 1
            self._decoded = transaction.end
            if self._slot is not None:
                self._slot.used = True
            changes = transaction.changes_of(self._publication)
            # Of a transaction that has nothing for this publication nothing is sent.
            self._ready = self._messages(transaction, changes) if changes else []
            if self._server.chance.random() < 0.2:
                self._ready.append(Keepalive(transaction.end, reply_wanted=False))
        elif self._kept_alive < cluster.end and self._server.chance.random() < 0.5:
            self._kept_alive = self._decoded = cluster.end
            self._ready = [Keepalive(cluster.end, reply_wanted=self._server.chance.random() < 0.5)]

    def _messages(self, one: Transaction, changes: list[Change]) -> list[Any]:
        if one.alone:
            return [(one.end, _message(changes[0], transactional=False))]
        found: list[Any] = [(changes[0].lsn, b"B" + struct.pack("!QqI", one.commit, 0, one.xid))]
        for change in changes:
            if change.table is None:
                found.append((change.lsn, _message(change, transactional=True)))
                continue
            if self._described.get(change.table.oid) != change.columns:
                self._described[change.table.oid] = change.columns
                found.append((change.lsn, _relation(change)))
            found.append((change.lsn, _insert(change)))
        found.append((one.end, b"C" + struct.pack("!BQQq", 0, one.commit, one.end, 0)))
        return found

    async def status(self, received: int, confirmed: int, *, answer: bool = False) -> None:  # noqa: ARG002  # as there
        self._check()
        slot = self._slot
        if slot is None or slot.reader is not self:
            return
        if confirmed > slot.confirmed:
            self._server.on_told(self._cluster, slot, confirmed)
            slot.confirmed = confirmed
        if self._server.chance.random() < 0.3:
            slot.durable = slot.confirmed
        if answer:
            # The decoded LSN may be far behind the end of the log.
            self._ready.append(Keepalive(self._decoded, reply_wanted=False))


def _text(value: str) -> bytes:
    return value.encode() + b"\0"


def _relation(change: Change) -> bytes:
    table = change.table
    assert table is not None
    head = b"R" + struct.pack("!I", table.oid) + _text("public") + _text(table.name) + b"d"
    columns = b"".join(
        bytes([name == "id"]) + _text(name) + struct.pack("!Ii", 23, -1) for name in change.columns
    )
    return head + struct.pack("!h", len(change.columns)) + columns


def _insert(change: Change) -> bytes:
    assert change.table is not None
    values = [str(change.number).encode(), *[b"7"] * (len(change.columns) - 1)]
    if change.large:
        values[1:2] = [b"7" * change.large] if len(values) > 1 else []
    row = b"".join(b"t" + struct.pack("!i", len(value)) + value for value in values)
    return b"I" + struct.pack("!I", change.table.oid) + b"N" + struct.pack("!h", len(values)) + row


def _message(change: Change, *, transactional: bool) -> bytes:
    content = b"%d" % change.number
    head = b"M" + struct.pack("!BQ", transactional, change.lsn) + _text("app")
    return head + struct.pack("!i", len(content)) + content
