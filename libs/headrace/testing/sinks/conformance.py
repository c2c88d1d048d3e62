"""Checks a sink against the port's claims, on a real target.

Promises: each claim is checked on what `read` returns, never on what the sink says. Each acts as
the frame does: sessions that open, write, commit, and end at the worst moment. Raises
`AssertionError` with the claim that does not hold.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from headrace.consumer import Event, Position, Watermark
from headrace.sinks.port import SEEN, Promise, Sink
from headrace.sinks.routing import Record, RoutedTransaction

SOURCE = "conformance"
# A commit LSN that needs more than 53 bits, as a large log has.
FIRST_LSN = (1 << 54) + 1

MakeSink = Callable[[], Sink]
# The IDs of all records that readers see, in the readers' order.
Read = Callable[[], Sequence[str]]
Claim = Callable[["Kit"], Awaitable[None]]


def run(make: MakeSink, read: Read) -> None:
    """Check every claim that the sink's promise names."""
    asyncio.run(check(make, read))


async def check(make: MakeSink, read: Read) -> None:
    """`run`, for tests that are coroutines."""
    kit = Kit(make, read)
    for claim in claims_of(make().promise):
        await claim(kit)


def claims_of(promise: Promise) -> tuple[Claim, ...]:
    """The claims that a promise names."""
    if promise is Promise.EXACTLY_ONCE:
        return (*EVERY, *EXACTLY_ONCE)
    return EVERY


@dataclass(slots=True)
class Kit:
    """One target, and what was committed in it so far."""

    make: MakeSink
    read: Read
    # The next commit LSN.
    lsn: int = FIRST_LSN
    committed: list[str] = field(default_factory=list)
    marks: dict[str, Watermark] = field(default_factory=dict)

    def transaction(self, size: int) -> RoutedTransaction:
        """A new transaction with this many records of one table."""
        self.lsn += 1 << 8
        records = tuple(self._record(seq, last=seq == size - 1) for seq in range(size))
        position = Position(self.lsn, size - 1)
        return RoutedTransaction(records, SOURCE, position, self._stream_seq(size - 1))

    def _stream_seq(self, seq: int) -> int:
        return (self.lsn - FIRST_LSN) * 8 + seq

    def _record(self, seq: int, *, last: bool) -> Record:
        record_id = f"{self.lsn:x}-conformance-insert-{seq}"
        tx = {"xid": self.lsn & 0xFFFF, "lsn": self.lsn, "ts": None, "seq": seq, "last": last}
        payload: dict[str, Any] = {
            "subject": "cdc.conformance.insert",
            "table": "conformance",
            "schema": "public",
            "operation": "INSERT",
            "msg_id": record_id,
            "source": SOURCE,
            "key": ["id"],
            "data": {"id": self.lsn * 10 + seq, "note": record_id},
            "lsn": self.lsn,
            "tx": tx,
        }
        position = Position(self.lsn, seq)
        event = Event(
            SOURCE,
            "public",
            "conformance",
            "INSERT",
            position,
            payload,
            "cdc.conformance.insert",
            self._stream_seq(seq),
            SOURCE,
            closes=True,
        )
        key = orjson.dumps([payload["data"]["id"]])
        return Record(record_id, "public.conformance", key, orjson.dumps(payload), event)

    def marks_of(self, transaction: RoutedTransaction) -> dict[str, Watermark]:
        """All marks after a transaction."""
        mark = Watermark(transaction.position, transaction.stream_seq)
        seen = Watermark(stream_seq=transaction.stream_seq)
        return {**self.marks, SOURCE: mark, SEEN: seen}

    async def deliver(self, sink: Sink, transaction: RoutedTransaction) -> None:
        """Write and commit, as the frame does."""
        marks = self.marks_of(transaction)
        await sink.write([transaction])
        await sink.commit(marks)
        self.marks = marks
        self.committed += _ids(transaction)

    async def visible(self) -> list[str]:
        """The records of this kit that readers see."""
        ours = await asyncio.to_thread(self.read)
        return [one for one in ours if "-conformance-insert-" in one]


def _ids(transaction: RoutedTransaction) -> list[str]:
    return [record.id for record in transaction.records]


@contextlib.asynccontextmanager
async def _opened(kit: Kit) -> Any:
    sink = kit.make()
    try:
        kit_marks = await sink.open()
        yield sink, kit_marks
    finally:
        await sink.close()


async def order(kit: Kit) -> None:
    """Records are visible in the order in which they were written."""
    async with _opened(kit) as (sink, _):
        for size in (1, 3, 2):
            await kit.deliver(sink, kit.transaction(size))
    found = await kit.visible()
    assert found == kit.committed, f"order: readers see {found}, expected {kit.committed}"


async def shared_commit(kit: Kit) -> None:
    """Transactions that share a commit are all there."""
    async with _opened(kit) as (sink, _):
        first = kit.transaction(2)
        second = kit.transaction(2)
        marks = kit.marks_of(second)
        await sink.write([first])
        await sink.write([second])
        await sink.commit(marks)
        kit.marks = marks
        kit.committed += [*_ids(first), *_ids(second)]
    found = await kit.visible()
    assert found == kit.committed, f"shared commit: readers see {found}"


async def marks_return(kit: Kit) -> None:
    """`open` returns exactly the marks that were committed, also those of an idle time."""
    async with _opened(kit) as (sink, _):
        await kit.deliver(sink, kit.transaction(1))
    await _same_marks(kit, "after a commit")
    async with _opened(kit) as (sink, _):
        seen = Watermark(stream_seq=kit.marks[SEEN].stream_seq + 5)
        kit.marks = {**kit.marks, SEEN: seen, "copy/orders/1": Watermark(Position(1 << 60, 7), 9)}
        await sink.commit(kit.marks)
    await _same_marks(kit, "after a commit without records")


async def _same_marks(kit: Kit, when: str) -> None:
    async with _opened(kit) as (_, marks):
        found: Mapping[str, Watermark] = marks
        assert dict(found) == kit.marks, f"marks {when}: {dict(found)}, expected {kit.marks}"


async def nothing_before_the_commit(kit: Kit) -> None:
    """Readers see nothing of a transaction before its commit, and then all of it."""
    async with _opened(kit) as (sink, _):
        before = await kit.visible()
        transaction = kit.transaction(4)
        await sink.write([transaction])
        found = await kit.visible()
        assert found == before, f"before the commit: readers see {set(found) - set(before)}"
        marks = kit.marks_of(transaction)
        await sink.commit(marks)
        kit.marks = marks
        kit.committed += _ids(transaction)
    assert await kit.visible() == kit.committed, "a commit shows the whole transaction"


async def an_abandoned_session_leaves_nothing(kit: Kit) -> None:
    """A session that ends without a commit leaves nothing, also after the next commit."""
    async with _opened(kit) as (sink, _):
        await sink.write([kit.transaction(3)])
    async with _opened(kit) as (sink, marks):
        assert dict(marks) == kit.marks, f"marks of what was not committed: {dict(marks)}"
        await kit.deliver(sink, kit.transaction(1))
    found = await kit.visible()
    assert found == kit.committed, f"abandoned: readers see {set(found) ^ set(kit.committed)}"


async def an_older_session_is_refused(kit: Kit) -> None:
    """Of two sessions, at most one commits: the older is refused, or the newer can't open."""
    async with _opened(kit) as (older, _):
        transaction = kit.transaction(2)
        await older.write([transaction])
        newer = kit.make()
        try:
            async with asyncio.timeout(30):
                await newer.open()
        except Exception:  # noqa: BLE001  # a target that excludes a second writer may raise anything
            await newer.close()
            return
        await kit.deliver(newer, kit.transaction(1))
        refused = False
        try:
            await older.commit(kit.marks_of(transaction))
        except Exception:  # noqa: BLE001  # every client refuses in its own words
            refused = True
        await newer.close()
    assert refused, "an older session commits after a newer one"
    found = await kit.visible()
    assert found == kit.committed, f"an older session: readers see {found}"
    await _same_marks(kit, "after an older session")


EVERY: tuple[Claim, ...] = (order, shared_commit)
EXACTLY_ONCE: tuple[Claim, ...] = (
    marks_return,
    nothing_before_the_commit,
    an_abandoned_session_leaves_nothing,
    an_older_session_is_refused,
)
