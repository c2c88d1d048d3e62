"""One session of a sink: what it commits and when, in virtual time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from headrace.consumer import MemoryWatermarks, Subscription, Watermark, follow
from headrace.lsn import Position
from headrace.metrics.counters import Counters
from headrace.sinks import RefusedError, Sink, SinkAwayError, SinkFencedError
from headrace.sinks.port import SEEN, Pace
from headrace.sinks.reading import SourceTransactions, source_mark
from headrace.sinks.routing import Router
from headrace.sinks.session import IDLE_S, KEEP_SEEN_S, SinkSession
from tests.support.memory_sink import MemorySink, Target
from tests.support.virtual_nats import VirtualNats


def put(nats: VirtualNats, lsn: int, seq: int, *, last: bool = False, **more: Any) -> None:
    tx = {"xid": lsn, "lsn": lsn, "ts": None, "seq": seq, "last": last}
    body: dict[str, Any] = {"table": "a", "schema": "public", "source": "s", "operation": "INSERT"}
    body |= {"msg_id": f"{lsn}-{seq}", "key": ["id"], "data": {"id": seq}, "tx": tx, **more}
    nats.server.put("cdc.a.insert", json.dumps(body).encode())


async def session(
    nats: VirtualNats,
    sink: Sink,
    for_s: float,
    pace: Pace | None = None,
    router: Router | None = None,
) -> SinkSession:
    """Run one session for some seconds; its error is raised."""
    marks = dict(await sink.open())
    store = MemoryWatermarks()
    for lane, mark in marks.items():
        await store.save(lane, mark)
    async with follow(nats.client(), Subscription(), store) as consumer:
        one = SinkSession(
            sink,
            router or Router(),
            SourceTransactions(consumer, "s", None, source_mark(marks, "s")),
            marks,
            Counters(),
            pace or Pace(),
        )
        stopping = asyncio.Event()
        asyncio.get_running_loop().call_later(for_s, stopping.set)
        await one.run(stopping)
    return one


def ids(target: Target) -> list[str]:
    return [record.id for record in target.records]


def test_a_session_commits_whole_transactions_with_their_marks(nats: VirtualNats) -> None:
    put(nats, 10, 0)
    put(nats, 10, 1, last=True)
    put(nats, 20, 0)
    target = Target()
    nats.do(session(nats, MemorySink(target), 5))
    assert ids(target) == ["10-0", "10-1"], "the second one has not ended"
    assert target.marks["s"] == Watermark(Position(10, 1), 2)
    assert target.marks[SEEN].stream_seq == 2


def test_the_next_session_continues_after_the_marks(nats: VirtualNats) -> None:
    put(nats, 10, 0, last=True)
    put(nats, 20, 0)
    target = Target()
    nats.do(session(nats, MemorySink(target), 5))
    put(nats, 20, 1, last=True)
    put(nats, 30, 0, last=True)
    nats.do(session(nats, MemorySink(target), 5))
    assert ids(target) == ["10-0", "20-0", "20-1", "30-0"]


def test_a_stop_does_not_wait_for_the_pace_and_commits_what_has_come(nats: VirtualNats) -> None:
    put(nats, 10, 0, last=True)
    target = Target()

    async def seconds() -> float:
        began = time.monotonic()
        await session(nats, MemorySink(target), 3, pace=Pace(wait_s=600))
        return time.monotonic() - began

    assert nats.do(seconds()) < 3 + 2 * IDLE_S
    assert ids(target) == ["10-0"]


@pytest.mark.parametrize("commits", [True, False], ids=["committed", "not committed"])
def test_a_commit_of_unknown_outcome_is_neither_lost_nor_repeated(
    nats: VirtualNats, commits: bool
) -> None:
    put(nats, 10, 0, last=True)
    target = Target(failures=[(SinkAwayError("the connection broke"), commits)])
    with pytest.raises(SinkAwayError):
        nats.do(session(nats, MemorySink(target), 5))
    put(nats, 20, 0, last=True)
    nats.do(session(nats, MemorySink(target), 5))
    assert ids(target) == ["10-0", "20-0"]


def test_many_small_transactions_share_a_commit(nats: VirtualNats) -> None:
    for lsn in range(1, 101):
        put(nats, lsn, 0, last=True)
    target = Target()
    nats.do(session(nats, MemorySink(target), 5, Pace(events_max=40, wait_s=0.5)))
    assert target.commits == [40, 80, 100]


def test_a_large_transaction_is_one_commit(nats: VirtualNats) -> None:
    for seq in range(100):
        put(nats, 10, seq, last=seq == 99)
    target = Target()
    nats.do(session(nats, MemorySink(target), 5, Pace(events_max=40)))
    assert target.commits == [100]


def test_an_idle_session_stores_how_far_it_has_seen_the_stream(nats: VirtualNats) -> None:
    put(nats, 10, 0, last=True)
    nothing = Router(filters=(lambda _: (),))
    target = Target()
    nats.do(session(nats, MemorySink(target), KEEP_SEEN_S + 5, router=nothing))
    assert target.marks[SEEN].stream_seq == 1
    assert target.records == []


def test_an_older_session_can_not_commit(nats: VirtualNats) -> None:
    put(nats, 10, 0, last=True)
    target = Target()
    older = MemorySink(target)

    async def work() -> None:
        running = asyncio.create_task(session(nats, older, 60, Pace(wait_s=20)), name="older")
        await asyncio.sleep(5)
        await MemorySink(target).open()
        with pytest.raises(SinkFencedError):
            await running

    nats.do(work())
    assert target.records == []


def test_a_refused_record_names_itself_and_nothing_passes_it(nats: VirtualNats) -> None:
    put(nats, 10, 0)
    put(nats, 10, 1, last=True)
    put(nats, 20, 0, last=True)
    target = Target(refused={"10-1"})
    with pytest.raises(RefusedError) as refused:
        nats.do(session(nats, MemorySink(target), 5))
    assert refused.value.record.id == "10-1"
    assert target.records == []


def test_a_target_that_never_answers_ends_the_session(nats: VirtualNats) -> None:
    put(nats, 10, 0, last=True)

    class Hanging(MemorySink):
        async def commit(self, marks: Mapping[str, Watermark]) -> None:
            await asyncio.sleep(10_000)
            await super().commit(marks)

    with pytest.raises(SinkAwayError, match="did not answer a commit"):
        nats.do(session(nats, Hanging(Target()), 500, Pace(timeout_s=30)))
