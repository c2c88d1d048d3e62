"""Messages missing from the middle of the stream are reported as gaps, each once and wide enough."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from unittest import mock

import pytest
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from headrace.contract import events
from headrace.contract.values import Encoding
from headrace.jetstream import provisioning
from headrace.jetstream.publishing.errors import TailLostError
from headrace.jetstream.publishing.message import Outgoing
from headrace.jetstream.publishing.pipe import Window
from headrace.jetstream.publishing.stream_tail import StreamTail
from headrace.jetstream.state import Cell
from headrace.lsn import Position
from headrace.metrics.counters import Counters
from headrace.publisher import damage
from headrace.publisher.chain_pipe import ChainPipe
from headrace.publisher.damage import LOOK_AGAIN_S, LOOK_S, Damage, StreamDamagedError
from headrace.publisher.resume_point import ResumePoint, find_resume_point, reader_of
from headrace.settings import load
from tests.support.simulated_nats import SimulatedNats, simulated_nats
from tests.support.virtual_time import on_virtual_time

SETTINGS = load({"HEADRACE_SLOT": "a"})
STREAM = SETTINGS.streams.cdc
Range = tuple[int, int]


def event(lsn: int, *, seq: int = 0, source: str = "a") -> Outgoing:
    msg_id = f"{lsn:x}-{seq}-{source}"
    payload = {
        "operation": "INSERT",
        "table": source,
        "source": source,
        "msg_id": msg_id,
        "tx": {"lsn": lsn, "seq": seq},
    }
    return Outgoing(f"cdc.{source}.insert", msg_id, events.encode(payload, Encoding.JSON))


class Line:
    """A stream whose server knows which messages are gone, and its publisher."""

    def __init__(self, nats: SimulatedNats) -> None:
        self.nats = nats
        self.stats = Counters()
        self.js = nats.jetstream()
        self.tail = StreamTail(self.js, STREAM, reader_of("a"))
        self.holes: list[Range] = []

    @classmethod
    def without_second(cls, nats: SimulatedNats) -> Line:
        """With three messages, of which the second is gone."""
        line = cls(nats)
        line.store(event(0x10), event(0x20), event(0x30))
        line.lose(2, 2)
        return line

    def store(self, *messages: Outgoing) -> None:
        for one in messages:
            self.nats.cdc.store(one.subject, {"Nats-Msg-Id": one.msg_id}, one.payload, 0.0)

    def lose(self, first: int, last: int) -> None:
        self.holes.append((first, last))
        for seq in range(first, last + 1):
            self.nats.cdc.delete(seq)

    @property
    def gone(self) -> int:
        return sum(last - first + 1 for first, last in self.holes)

    async def cell(self, key: str) -> Cell:
        return Cell(await self.nats.state(), key)

    async def place(self) -> ResumePoint:
        found = await find_resume_point(await self.cell("progress"), self.tail)
        found.tail.gone = self.gone
        return found

    async def report(self, encoding: Encoding | None = Encoding.JSON) -> list[tuple[int, int]]:
        """A start of the publisher; the gaps that it publishes."""
        before = self.nats.cdc.last_seq
        place = await self.place()
        pipe = ChainPipe(self.nats.client(), self.tail, self.stats, Window(100, 1 << 20, 3.0))
        await pipe.open(place.tail)
        one = Damage(self.js, STREAM, self.tail, await self.cell("damage"))
        known = mock.AsyncMock(return_value=self.holes)
        with mock.patch.object(damage, "known_holes", known):
            await one.report(place, "a", encoding, pipe, self.stats)
        bodies = [json.loads(message.payload) for message in self.nats.stored]
        new = bodies[len(bodies) - (self.nats.cdc.last_seq - before) :]
        gaps = [body for body in new if body["operation"] == "GAP"]
        assert all(gap["reason"] == damage.REASON for gap in gaps)
        return [(lsn(gap["after"]), lsn(gap["up_to"])) for gap in gaps]


def lsn(text: str) -> int:
    return int(text.rpartition("/")[2], 16)


async def with_hole(first: int, last: int, *messages: Outgoing) -> list[Range]:
    async with simulated_nats(SETTINGS) as nats:
        line = Line(nats)
        line.store(*messages)
        line.lose(first, last)
        return await line.report()


@on_virtual_time
async def test_a_hole_is_a_gap_from_the_message_before_it_to_the_one_behind_it() -> None:
    whole = [event(0x10 * number) for number in range(1, 7)]
    assert await with_hole(3, 4, *whole) == [(0x20, 0x50)]


@on_virtual_time
async def test_a_gap_ends_behind_a_transaction_of_which_its_hole_took_a_part() -> None:
    part = [event(0x10), event(0x20), event(0x20, seq=1), event(0x20, seq=2), event(0x30)]
    assert await with_hole(3, 3, *part) == [(0x20, 0x21)]


@on_virtual_time
async def test_a_hole_behind_our_last_message_is_no_gap_for_the_slot_delivers_it_again() -> None:
    assert await with_hole(3, 3, event(0x10), event(0x20), event(0x30)) == []
    others = [event(0x10), event(0x20, source="b"), event(0x30, source="b")]
    assert await with_hole(2, 2, *others) == []


@on_virtual_time
async def test_a_hole_before_all_our_messages_may_be_a_gap_from_the_beginning() -> None:
    behind = [event(0x10, source="b"), event(0x20), event(0x30), event(0x40)]
    assert await with_hole(2, 2, *behind) == [(0, 0x30)]


@on_virtual_time
async def test_holes_between_the_same_messages_are_one_gap_and_others_are_their_own() -> None:
    async with simulated_nats(SETTINGS) as nats:
        line = Line(nats)
        line.store(event(0x10), event(0x20), event(0x28, source="b"), event(0x30), event(0x40))
        line.store(event(0x50), event(0x60))
        line.lose(2, 2)
        line.lose(4, 4)
        line.lose(6, 6)
        assert await line.report() == [(0x10, 0x40), (0x40, 0x60)]
        assert line.stats.number("gaps") == 2


@on_virtual_time
async def test_a_hole_of_others_hides_no_gap_behind_it() -> None:
    async with simulated_nats(SETTINGS) as nats:
        line = Line(nats)
        # The first two of ours follow each other without a place between.
        line.store(event(0x1F), event(0x18, source="b"), event(0x20), event(0x30), event(0x40))
        line.lose(2, 2)
        line.lose(4, 4)
        assert await line.report() == [(0x20, 0x40)]


@on_virtual_time
async def test_a_gap_is_reported_once_and_a_new_one_beside_it() -> None:
    async with simulated_nats(SETTINGS) as nats:
        line = Line(nats)
        line.store(*[event(0x10 * number) for number in range(1, 9)])
        line.lose(2, 2)
        assert await line.report() == [(0x10, 0x30)]
        assert await line.report() == []
        line.store(event(0x90))
        line.lose(5, 5)
        assert await line.report() == [(0x40, 0x60)]
        assert await line.report() == []


@on_virtual_time
async def test_a_gap_that_was_published_before_a_crash_is_not_published_again() -> None:
    async with simulated_nats(SETTINGS) as nats:
        line = Line.without_second(nats)
        crash = mock.AsyncMock(side_effect=InterruptedError)
        with mock.patch.object(Cell, "write", crash), pytest.raises(InterruptedError):
            await line.report()
        stored = nats.cdc.last_seq
        assert stored == 4
        assert await line.report() == []
        assert nats.cdc.last_seq == stored


@on_virtual_time
async def test_consumers_that_know_no_gaps_get_none_and_it_is_settled() -> None:
    async with simulated_nats(SETTINGS) as nats:
        line = Line.without_second(nats)
        assert await line.report(None) == []
        assert nats.cdc.last_seq == 3
        assert line.stats.number("gaps") == 1
        assert await line.report() == []


@on_virtual_time
async def test_what_was_reported_of_another_stream_does_not_count() -> None:
    async with simulated_nats(SETTINGS) as nats:
        line = Line.without_second(nats)
        await (await line.cell("damage")).write({"stream_created": "then", "holes": [[2, 2]]})
        assert await line.report() == [(0x10, 0x30)]


@on_virtual_time
async def test_without_damage_nothing_is_asked_and_nothing_is_stored() -> None:
    async with simulated_nats(SETTINGS) as nats:
        line = Line(nats)
        line.store(event(0x10), event(0x20))
        assert await line.report() == []
        assert await (await line.cell("damage")).read() is None


class Watched:
    """A stream whose number of missing messages the test says."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.gone = 0
        self.asked = 0

    async def state(self) -> Any:
        self.asked += 1
        cdc = self.line.nats.cdc
        created = str((await self.line.js.stream_info(STREAM)).created)
        return mock.Mock(gone=self.gone, created=created, last_seq=cdc.last_seq)


@on_virtual_time
async def test_damage_that_spreads_ends_the_run_and_damage_that_was_there_does_not() -> None:
    async with simulated_nats(SETTINGS) as nats:
        line = Line(nats)
        line.store(event(0x10), event(0x20), event(0x30), event(0x40))
        line.lose(2, 2)
        watched = Watched(line)
        one = Damage(line.js, STREAM, line.tail, await line.cell("damage"))
        place = await line.place()
        place.tail.gone = watched.gone = 5
        pipe = ChainPipe(nats.client(), line.tail, line.stats, Window(100, 1 << 20, 3.0))
        await pipe.open(place.tail)
        known = mock.AsyncMock(return_value=line.holes)
        with mock.patch.object(damage, "known_holes", known):
            await one.report(place, "a", Encoding.JSON, pipe, line.stats)
        with mock.patch.object(line.tail, "state", watched.state):
            async with one.watched():
                await asyncio.sleep(3.5 * LOOK_S)
                one.check()
                assert watched.asked == 3
                watched.gone = 2
                await asyncio.sleep(LOOK_S)
                one.check()
                watched.gone = 3
                await asyncio.sleep(LOOK_S)
                with pytest.raises(StreamDamagedError):
                    one.check()
            asked = watched.asked
            await asyncio.sleep(10 * LOOK_S)
            assert watched.asked == asked


@on_virtual_time
async def test_before_anything_was_looked_at_nothing_is_damaged() -> None:
    async with simulated_nats(SETTINGS) as nats:
        line = Line(nats)
        one = Damage(line.js, STREAM, line.tail, await line.cell("damage"))
        one.check()
        watched = Watched(line)
        with mock.patch.object(line.tail, "state", watched.state):
            async with one.watched():
                await asyncio.sleep(2.5 * LOOK_S)
                one.check()
                watched.gone = 1
                await asyncio.sleep(LOOK_S)
                with pytest.raises(StreamDamagedError):
                    one.check()


async def until_looked_at(line: Line) -> Damage:
    """A run that nothing is published in, behind its start."""
    one = Damage(line.js, STREAM, line.tail, await line.cell("damage"))
    place = await line.place()
    pipe = ChainPipe(line.nats.client(), line.tail, line.stats, Window(100, 1 << 20, 3.0))
    await one.report(place, "a", Encoding.JSON, pipe, line.stats)
    return one


async def deleted(line: Line) -> None:
    del line.nats.server.streams[STREAM]


async def made_again(line: Line) -> None:
    """Another one of the name, that is as long."""
    del line.nats.server.streams[STREAM]
    cdc = next(one for one in provisioning.declared(SETTINGS.streams) if one.name == STREAM)
    line.nats.server._create(cdc.as_dict())
    line.nats.cdc.created = "2026-09-20T00:00:00Z"
    line.store(event(0x10, source="b"), event(0x20, source="b"))


async def shortened(line: Line) -> None:
    """An older copy of it, with the time at which it was created."""
    line.nats.cdc.messages.popitem()
    line.nats.cdc.last_seq -= 1


@pytest.mark.parametrize(
    ("lost", "error"),
    [(deleted, NotFoundError), (made_again, TailLostError), (shortened, TailLostError)],
)
@on_virtual_time
async def test_an_idle_publisher_notices_within_seconds_that_its_stream_is_gone(
    lost: Callable[[Line], Awaitable[None]], error: type[Exception]
) -> None:
    async with simulated_nats(SETTINGS) as nats:
        line = Line(nats)
        line.store(event(0x10), event(0x20))
        one = await until_looked_at(line)
        async with one.watched():
            await asyncio.sleep(2.5 * LOOK_S)
            one.check()
            await lost(line)
            await asyncio.sleep(LOOK_S + LOOK_AGAIN_S)
            with pytest.raises(error):
                one.check()


@on_virtual_time
async def test_the_end_that_was_published_last_counts_too() -> None:
    async with simulated_nats(SETTINGS) as nats:
        line = Line(nats)
        line.store(event(0x10))
        one = await until_looked_at(line)
        async with one.watched():
            line.store(event(0x20), event(0x30))
            await asyncio.sleep(2.5 * LOOK_S)
            await shortened(line)
            await asyncio.sleep(LOOK_S + LOOK_AGAIN_S)
            with pytest.raises(TailLostError):
                one.check()


@on_virtual_time
async def test_a_stream_that_is_gone_for_a_moment_or_does_not_answer_ends_nothing() -> None:
    async with simulated_nats(SETTINGS) as nats:
        line = Line(nats)
        line.store(event(0x10))
        one = await until_looked_at(line)
        state = await line.tail.state()
        answers = mock.AsyncMock(
            side_effect=[NotFoundError(), state, NatsError(), OSError(), state]
        )
        with mock.patch.object(line.tail, "state", answers):
            async with one.watched():
                await asyncio.sleep(4.5 * LOOK_S + LOOK_AGAIN_S)
                one.check()
        assert answers.await_count == 5


@on_virtual_time
async def test_a_hole_of_others_behind_a_message_outside_transactions_is_no_gap() -> None:
    """Its position is one byte before its record's end, where the next commit may be."""
    messages = [event(0x10), event(0x1F), event(0x18, source="b"), event(0x20), event(0x30)]
    assert await with_hole(3, 3, *messages) == []
    messages[3] = event(0x28)
    assert await with_hole(3, 3, *messages) == [(0x20, 0x28)]


@on_virtual_time
async def test_behind_a_hole_among_arrays_the_whole_array_may_be_missing_and_no_more() -> None:
    async with simulated_nats(SETTINGS) as nats:
        line = Line(nats)
        line.store(event(0x10), event(0x20))
        headers = {
            events.POSITION_HEADER: events.position_header("a", Position(0x40, 3)),
            "Nats-Msg-Id": "array",
        }
        rows = [
            {"operation": "INSERT", "table": "t", "schema": "public", "source": "a"}
            | {"msg_id": f"{seq}", "tx": {"lsn": 0x40, "seq": seq}}
            for seq in range(4)
        ]
        encoded = [events.encode(each, Encoding.JSON) for each in rows]
        nats.cdc.store("cdc.t.batch", headers, events.join(encoded, Encoding.JSON), 0.0)
        line.store(event(0x50))
        line.lose(2, 2)
        assert await line.report() == [(0x10, 0x41)]


@on_virtual_time
async def test_a_look_that_swallows_its_cancellation_does_not_hold_up_the_runs_end() -> None:
    """As a request does in Python 3.11 that is cancelled while it is timing out."""
    async with simulated_nats(SETTINGS) as nats:
        line = Line(nats)
        one = await until_looked_at(line)
        asked = asyncio.Event()

        async def state() -> Any:
            asked.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise TimeoutError from None

        with mock.patch.object(line.tail, "state", state):
            async with asyncio.timeout(60), one.watched():
                await asked.wait()
