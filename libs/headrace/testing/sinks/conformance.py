"""Checks a sink against the port's claims, on a real target.

Promises: each claim is checked on what `read` returns, never on what the sink says. Each acts as
the frame does: sessions that open, write, commit, and end at the worst moment. Raises
`AssertionError` with the claim that does not hold, also if a fault has had no effect.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.consumer import Position, Watermark
from headrace.sinks.port import SEEN, Promise
from headrace.testing.sinks import content, faults
from headrace.testing.sinks.kit import (
    Backup,
    Bench,
    Kit,
    MakeSink,
    Process,
    Proxied,
    Read,
    ReadValues,
    opened,
)

__all__ = [
    "Backup",
    "Bench",
    "MakeSink",
    "Process",
    "Proxied",
    "Read",
    "ReadValues",
    "check",
    "run",
]


def run(make: MakeSink, read: Read, **bench: Any) -> list[str]:
    """Check every claim that the sink's promise names and `bench` allows; returns their names.
    The keywords are those of `Bench`.
    """
    return asyncio.run(check(make, read, **bench))


async def check(make: MakeSink, read: Read, **bench: Any) -> list[str]:
    """`run`, for tests that are coroutines."""
    kit = Kit(Bench(make, read, **bench), make().promise)
    checked = []
    for claim in claims_of(kit.promise):
        if not claim.needs or getattr(kit.bench, claim.needs) is not None:
            await claim.check(kit)
            checked.append(claim.name)
    return checked


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim."""

    check: Callable[[Kit], Awaitable[None]]
    # The field of `Bench` without which it can't be checked.
    needs: str = ""
    promises: Sequence[Promise] = tuple(Promise)

    @property
    def name(self) -> str:
        return self.check.__name__


def claims_of(promise: Promise) -> tuple[Claim, ...]:
    """The claims that a promise names."""
    return tuple(claim for claim in CLAIMS if promise in claim.promises)


async def order(kit: Kit) -> None:
    """Records are visible in the order in which they were written, within a key."""
    async with opened(kit.bench.make) as (sink, _):
        for size in (1, 3, 2):
            await kit.deliver(sink, kit.transaction(size))
    await kit.expect("order")


async def order_within_a_key(kit: Kit) -> None:
    """The changes of a row are visible in their order."""
    row = {"id": 7}
    async with opened(kit.bench.make) as (sink, _):
        await kit.deliver(sink, kit.changed([("INSERT", row), ("UPDATE", row)]))
        await kit.deliver(sink, kit.changed([("UPDATE", row)] * 5))
    await kit.expect("order")


async def shared_commit(kit: Kit) -> None:
    """Transactions that share a commit are all there."""
    async with opened(kit.bench.make) as (sink, _):
        first = kit.transaction(2)
        second = kit.transaction(2)
        await sink.write([first])
        await sink.write([second])
        await sink.commit(kit.marks_of(second))
        kit.note(first, second)
    await kit.expect("shared commit")


async def marks_return(kit: Kit) -> None:
    """`open` returns exactly the marks that were committed, also those of an idle time."""
    async with opened(kit.bench.make) as (sink, _):
        await kit.deliver(sink, kit.transaction(1))
    await _same_marks(kit, "after a commit")
    async with opened(kit.bench.make) as (sink, _):
        seen = Watermark(stream_seq=kit.marks[SEEN].stream_seq + 5)
        kit.marks = {**kit.marks, SEEN: seen, "copy/orders/1": Watermark(Position(1 << 60, 7), 9)}
        await sink.commit(kit.marks)
    await _same_marks(kit, "after a commit without records")


async def _same_marks(kit: Kit, when: str) -> None:
    async with opened(kit.bench.make) as (_, marks):
        assert marks == kit.marks, f"marks {when}: {marks}, expected {kit.marks}"


async def nothing_before_the_commit(kit: Kit) -> None:
    """Readers see nothing of a transaction before its commit, and then all of it."""
    async with opened(kit.bench.make) as (sink, _):
        before = await kit.visible()
        transaction = kit.transaction(4)
        await sink.write([transaction])
        found = await kit.visible()
        assert found == before, f"before the commit: readers see {set(found) - set(before)}"
        await sink.commit(kit.marks_of(transaction))
        kit.note(transaction)
    await kit.expect("after the commit")


async def an_abandoned_session_leaves_nothing(kit: Kit) -> None:
    """A session that ends without a commit leaves nothing, also after the next commit."""
    async with opened(kit.bench.make) as (sink, _):
        await sink.write([kit.transaction(3)])
    async with opened(kit.bench.make) as (sink, marks):
        assert marks == kit.marks, f"marks of what was not committed: {marks}"
        await kit.deliver(sink, kit.transaction(1))
    await kit.expect("abandoned")


async def an_older_session_changes_nothing(kit: Kit) -> None:
    """Of two sessions that read the same stream, the newer can't open, or the older is refused, or
    what it commits again is recognized.
    """
    async with opened(kit.bench.make) as (older, _):
        both = kit.transaction(2)
        await older.write([both])
        newer = kit.bench.make()
        try:
            async with asyncio.timeout(30):
                await newer.open()
        except Exception:  # noqa: BLE001  # a target that excludes a second writer may raise anything
            await newer.close()
            return
        # The newer one reads the same transaction, because the older has not committed it.
        older_marks = kit.marks_of(both)
        await kit.deliver(newer, both)
        last = kit.transaction(1)
        before_last = dict(kit.marks)
        await kit.deliver(newer, last)
        await newer.close()
        refused = True
        with contextlib.suppress(Exception):
            await older.commit(older_marks)
            refused = False
    await kit.expect("an older session")
    if refused:
        await _same_marks(kit, "after an older session")
        return
    async with opened(kit.bench.make) as (sink, marks):
        if marks != kit.marks:
            # The older session's marks: the frame continues from there.
            assert marks == before_last, f"marks after an older session: {marks}"
            await sink.write([last])
            await sink.commit(kit.marks)
    await kit.expect("after an older session")


async def a_replay_changes_nothing(kit: Kit) -> None:
    """Everything from the beginning again leaves the state as it is."""
    before = await kit.visible()
    async with opened(kit.bench.make) as (sink, _):
        for transaction in kit.history:
            await sink.write([transaction])
            await sink.commit(kit.marks)
    assert await kit.visible() == before, "a replay changes what readers see"


_EXACTLY = (Promise.EXACTLY_ONCE,)
_STATE = (Promise.RIGHT_STATE,)
# Promises about every change, and not only about the rows that changes leave.
_CHANGES = (Promise.EXACTLY_ONCE, Promise.AT_LEAST_ONCE)

CLAIMS: tuple[Claim, ...] = (
    Claim(order),
    Claim(shared_commit),
    Claim(marks_return, promises=_EXACTLY),
    Claim(nothing_before_the_commit, promises=_EXACTLY),
    Claim(an_abandoned_session_leaves_nothing, promises=_EXACTLY),
    Claim(an_older_session_changes_nothing, promises=_EXACTLY),
    Claim(content.copies_continue),
    Claim(faults.a_refused_record_is_named),
    Claim(a_replay_changes_nothing, promises=_STATE),
    # Records with values are changes; a table shows the rows that they leave.
    Claim(order_within_a_key, "values", _CHANGES),
    Claim(content.values_arrive, "values", _CHANGES),
    Claim(content.every_operation_arrives, "values", _CHANGES),
    Claim(faults.kills, "process"),
    Claim(faults.lost_answers, "proxied"),
    Claim(faults.an_older_state_is_told, "backup", _EXACTLY),
)
