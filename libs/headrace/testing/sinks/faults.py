"""The claims about faults: killed processes, lost answers, restored targets, refused records.

A fault that had no effect proves nothing, so each claim fails unless its fault has happened.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import orjson

from headrace.embedded.process import tied
from headrace.sinks.port import RefusedError, Sink
from headrace.sinks.routing import RoutedTransaction
from headrace.testing.proxy import Proxy
from headrace.testing.sinks.content import same_values
from headrace.testing.sinks.kit import Kit, Process, opened
from headrace.testing.sinks.records import FIRST_LSN, STEP, changes, of_number, row_id

# Around the frame's calls of a sink.
POINTS = ("sink.before_write", "sink.written", "sink.before_commit", "sink.committed")
# More than a process delivers before its second commit.
TRANSACTIONS_A_KILL = 12
PROCESS_S = 120.0
# For a call whose answer may be lost.
ANSWER_S = 20.0
# A commit has fewer answers, or the rest is like these.
ANSWERS_MAX = 12
LARGE_BYTES = 4 * 1024 * 1024


async def kills(kit: Kit) -> None:
    """A process that is killed at each step leaves every transaction whole, and the next one
    continues after it.
    """
    process = kit.bench.process
    assert process is not None, "the claim needs it"
    points = (*POINTS, *process.points)
    first = (kit.lsn - FIRST_LSN) // STEP + 1
    end = first + TRANSACTIONS_A_KILL * (len(points) + 1)
    with tempfile.TemporaryDirectory() as folder:
        for point in points:
            # At the second hit something is committed already, which must not come again.
            code, said = await _run(kit, process, Path(folder), first, end, f"{point}:2")
            assert code == -signal.SIGKILL, f"kills: {point} was not reached ({code}): {said}"
        code, said = await _run(kit, process, Path(folder), first, end, "")
        assert code == 0, f"kills: the last process ended with {code}: {said}"
    delivered = [kit.routed(of_number(number)) for number in range(first, end)]
    kit.note(*delivered)
    kit.lsn = delivered[-1].position.lsn
    await kit.expect("kills")


async def _run(
    kit: Kit, process: Process, folder: Path, first: int, end: int, point: str
) -> tuple[int, str]:
    """Deliver the transactions with these numbers in another process, which ends at the point."""
    task = {
        "sink": process.sink,
        "name": process.options.name,
        "to": process.options.to,
        "stream": process.options.stream,
        "options": dict(process.options.options),
        "marks": str(folder / "marks.json"),
        "destination": kit.bench.destination,
        "first": first,
        "end": end,
        "failpoint": point,
        "path": sys.path,
    }
    child = await asyncio.create_subprocess_exec(
        *tied([sys.executable, "-m", "headrace.testing.sinks.victim"], signal.SIGKILL),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(PROCESS_S):
            output, _ = await child.communicate(orjson.dumps(task))
    except TimeoutError:
        child.kill()
        raise AssertionError(f"kills: {point or 'the last process'} took too long") from None
    return await child.wait(), output.decode(errors="replace")[-3000:]


async def lost_answers(kit: Kit) -> None:
    """Whichever of the target's answers is lost, the next session finds out what was committed."""
    proxied = kit.bench.proxied
    assert proxied is not None, "the claim needs it"
    lost = 0
    async with Proxy(lambda: proxied.port, proxied.listen) as proxy:
        for number in range(ANSWERS_MAX):
            transaction = kit.transaction(2)
            done = False
            async with opened(lambda: proxied.make(proxy.port)) as (sink, _):
                proxy.lose_answer(number)
                done = await _attempt(kit, sink, transaction)
                # Before the sink is closed, whose answers prove nothing.
                happened = proxy.answer_lost.is_set()
                proxy.keep_answers()
            lost += happened
            await _settle(kit, transaction, done=done)
            if not happened:
                break
    assert lost, "lost answers: no answer was lost"
    await kit.expect("lost answers")


async def _attempt(kit: Kit, sink: Sink, transaction: RoutedTransaction) -> bool:
    """Whether the sink says that the transaction is committed."""
    try:
        async with asyncio.timeout(ANSWER_S):
            await sink.write([transaction])
            await sink.commit(kit.marks_of(transaction))
    except Exception:  # noqa: BLE001  # every client has its own errors
        return False
    return True


async def _settle(kit: Kit, transaction: RoutedTransaction, *, done: bool) -> None:
    """Continue as the frame does: from the marks, or from the last known ones."""
    async with opened(kit.bench.make) as (sink, marks):
        committed = done
        # A sink without marks can't tell: the frame sends again what was not confirmed.
        if kit.is_exact:
            committed = marks == kit.marks_of(transaction)
            assert committed or marks == kit.marks, f"lost answers: the marks are {marks}"
            assert committed or not done, "lost answers: a commit that was confirmed is not there"
        if committed:
            kit.note(transaction)
        else:
            await kit.deliver(sink, transaction)


async def an_older_state_is_told(kit: Kit) -> None:
    """If the target comes back with an older state, a session that is open does not commit behind
    the hole, and the next one continues from the older marks.
    """
    backup = kit.bench.backup
    assert backup is not None, "the claim needs it"
    async with opened(kit.bench.make) as (sink, _):
        await kit.deliver(sink, kit.transaction(2))
    await backup.save()
    lost = kit.transaction(2)
    async with opened(kit.bench.make) as (sink, _):
        await sink.write([lost])
        await sink.commit(kit.marks_of(lost))
        # Compared below: a backup that restores nothing would let every sink pass.
        kept = await kit.seen_with(lost)
        await backup.restore()
        older = [one for one in kept if one not in _ids(lost)]
        assert await kit.shows(older), "an older state: the target was not restored"
        behind = kit.transaction(2)
        assert not await _attempt(kit, sink, behind), (
            "an older state: a session commits behind what the target has lost"
        )
    async with opened(kit.bench.make) as (sink, marks):
        assert marks == kit.marks, f"an older state: the marks are {marks}, expected {kit.marks}"
        await kit.deliver(sink, lost)
        await kit.deliver(sink, behind)
    await kit.expect("an older state")


def _ids(transaction: RoutedTransaction) -> Sequence[str]:
    return [record.id for record in transaction.records]


async def a_refused_record_is_named(kit: Kit) -> None:
    """A record that the target does not accept is named by the error, and nothing after it is
    committed; a large one that it accepts arrives.
    """
    size = kit.bench.refused_bytes or LARGE_BYTES
    small = kit.transaction(1)
    lsn = kit.next_lsn()
    large = kit.routed(changes(lsn, [("INSERT", {"id": row_id(lsn, 0), "large": "x" * size})]))
    after = kit.transaction(1)
    refused: BaseException | None = None
    async with opened(kit.bench.make) as (sink, _):
        try:
            await sink.write([small, large, after])
            await sink.commit(kit.marks_of(after))
        except Exception as error:  # noqa: BLE001  # any other error fails the claim
            refused = error
    if not kit.bench.refused_bytes:
        assert refused is None, f"large: {size} bytes are refused: {refused!r}"
        kit.note(small, large, after)
    else:
        assert isinstance(refused, RefusedError), (
            f"large: {size} bytes are not refused: {refused!r}"
        )
        assert refused.record.id == large.records[0].id, f"large: {refused.record.id} is named"
        async with opened(kit.bench.make) as (sink, _):
            # Without it, as after it was parked.
            await sink.write([small, after])
            await sink.commit(kit.marks_of(after))
        kit.note(small, after)
    await kit.expect("large")
    if kit.bench.values is not None:
        await same_values(kit, "large")
