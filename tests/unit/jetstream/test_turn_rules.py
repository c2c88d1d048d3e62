"""Publishers of one stream that take turns: which begins, for how long, and which are not awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest

from headrace.bus import subjects
from headrace.jetstream.publishing import turns
from headrace.jetstream.publishing.turns import Turns
from headrace.metrics.counters import Counters
from headrace.settings import load
from tests.simulation.client import SimClient
from tests.support.simulated_nats import SimulatedNats, simulated_nats
from tests.support.virtual_time import on_virtual_time

STREAM = "CDC"
A_MOMENT_S = 0.02
SUBJECT = subjects.turns(STREAM)


class Publisher:
    """One that takes turns."""

    def __init__(self, client: SimClient, source: str) -> None:
        self.stats = Counters()
        self.turns = Turns(client, STREAM, source, self.stats)
        self.writes = False

    async def open(self) -> None:
        await self.turns.open(lambda: self.writes)

    async def begins_after(self, new: int = 0, *, limit_s: float = 20.0) -> float:
        """It wants to write: how long it waits for its turn."""
        began = time.monotonic()
        await self.turns.want()
        # It reads the stream's end, which takes longer than a writer's answer.
        await asyncio.sleep(A_MOMENT_S)
        while await self.turns.wait(new) and time.monotonic() - began < limit_s:
            pass
        self.writes = True
        return time.monotonic() - began


class Site:
    def __init__(self, nats: SimulatedNats) -> None:
        self.nats = nats
        self.client = nats.client()
        self.notes: list[dict[str, object]] = []

    async def publisher(self, source: str) -> Publisher:
        made = Publisher(self.nats.client(), source)
        await made.open()
        await asyncio.sleep(A_MOMENT_S)
        return made

    async def say(self, word: str, by: str, source: str, to: str = "", **more: object) -> None:
        note = {"word": word, "by": by, "source": source, "to": to, **more}
        await self.client.publish(SUBJECT, orjson.dumps(note))
        await asyncio.sleep(A_MOMENT_S)

    def said(self, word: str) -> int:
        return sum(note["word"] == word for note in self.notes)


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    async with simulated_nats(load({})) as nats:
        nats.server.hiccup = 0.0
        made = Site(nats)

        async def note(message: object) -> None:
            made.notes.append(orjson.loads(message.data))  # type: ignore[attr-defined]  # a Msg

        await made.client.subscribe(SUBJECT, cb=note)
        yield made


@on_virtual_time
async def test_a_publisher_alone_begins_at_once_and_says_only_that_it_wants_to() -> None:
    async with site() as one:
        alone = await one.publisher("a")
        assert await alone.begins_after() < 2 * A_MOMENT_S
        assert not alone.turns.is_over
        await alone.turns.keep()
        assert not alone.turns.pass_on(more=True)
        await asyncio.sleep(1)
        assert [note["word"] for note in one.notes] == ["wait"]
        await alone.turns.close()


@on_virtual_time
async def test_a_publisher_that_never_had_to_ask_passes_no_turn() -> None:
    async with site() as one:
        alone = await one.publisher("a")
        assert not alone.turns.pass_on(more=False)
        await asyncio.sleep(1)
        assert one.notes == []
        await alone.turns.close()


@on_virtual_time
async def test_a_turn_ends_for_a_waiting_publisher_that_is_near_and_later_for_one_far_behind() -> (
    None
):
    for new, turn_s in ((0, turns._TURN_S), (turns._BEHIND_MESSAGES, turns._LONG_TURN_S)):
        async with site() as one:
            first, second = await one.publisher("a"), await one.publisher("b")
            await first.begins_after()
            waiting = asyncio.ensure_future(second.begins_after(new))
            began = time.monotonic()
            while not first.turns.is_over:
                await first.turns.keep()
                await asyncio.sleep(0.01)
            assert turn_s - 0.05 <= time.monotonic() - began <= turn_s + 0.2
            assert not waiting.done()
            assert second.turns.others_write
            first.writes = False
            assert first.turns.pass_on(more=True)
            await first.turns.tell()
            assert first.turns.others_write
            await asyncio.sleep(0.1)
            assert waiting.done()
            assert first.stats.number("turns_passed") == 1


@on_virtual_time
async def test_the_turn_passes_to_the_one_that_has_waited_longest() -> None:
    async with site() as one:
        writer = await one.publisher("a")
        await writer.begins_after()
        for number, name in enumerate(("x", "y", "z")):
            await asyncio.sleep(0.1)
            await one.say("wait", name, f"source_{number}", ready=True)
        await one.say("wait", "x", "source_0", ready=True)
        await asyncio.sleep(turns._TURN_S)
        writer.writes = False
        assert writer.turns.pass_on(more=True)
        await writer.turns.tell()
        await asyncio.sleep(A_MOMENT_S)
        assert one.notes[-1]["word"] == "pass"
        assert one.notes[-1]["to"] == "x"


@on_virtual_time
async def test_a_publisher_with_nothing_more_to_write_passes_its_turn_soon() -> None:
    async with site() as one:
        first, second = await one.publisher("a"), await one.publisher("b")
        await first.begins_after()
        waiting = asyncio.ensure_future(second.begins_after())
        await asyncio.sleep(3 * A_MOMENT_S)
        assert not waiting.done()
        first.writes = False
        assert not first.turns.pass_on(more=False)
        await asyncio.sleep(turns._REST_S + A_MOMENT_S)
        assert waiting.done()


@on_virtual_time
async def test_a_turn_is_kept_if_something_is_published_during_the_rest() -> None:
    async with site() as one:
        first, second = await one.publisher("a"), await one.publisher("b")
        await first.begins_after()
        waiting = asyncio.ensure_future(second.begins_after(limit_s=0.15))
        await asyncio.sleep(3 * A_MOMENT_S)
        first.writes = False
        first.turns.pass_on(more=False)
        first.writes = True
        await asyncio.sleep(turns._REST_S + A_MOMENT_S)
        assert one.said("pass") == 0
        assert not waiting.done()
        waiting.cancel()


@on_virtual_time
async def test_a_writer_that_dies_is_believed_for_a_short_time() -> None:
    async with site() as one:
        first, second = await one.publisher("a"), await one.publisher("b")
        await first.begins_after()
        waited = await second.begins_after()
        assert turns._BELIEVED_S * 0.9 <= waited <= turns._BELIEVED_S + 0.2


@on_virtual_time
async def test_nobody_waits_without_end_for_a_writer_that_never_passes_the_turn() -> None:
    async with site() as one:
        second = await one.publisher("b")

        async def go_on() -> None:
            while True:
                await one.say("write", "x", "a")
                await asyncio.sleep(0.1)

        writing = asyncio.ensure_future(go_on())
        await asyncio.sleep(0.1)
        waited = await second.begins_after()
        assert turns._WAIT_MAX_S <= waited <= turns._WAIT_MAX_S + 0.2
        writing.cancel()
        assert 40 <= one.said("wait") <= 60


@on_virtual_time
async def test_a_waiting_publisher_that_falls_silent_ends_no_turn() -> None:
    async with site() as one:
        writer = await one.publisher("a")
        await writer.begins_after()
        await one.say("wait", "x", "b", ready=True)
        await asyncio.sleep(turns._FORGOTTEN_S - 0.1)
        assert writer.turns.is_over
        await asyncio.sleep(0.2)
        assert not writer.turns.is_over


@on_virtual_time
async def test_a_turn_that_has_just_begun_is_not_ended_by_one_that_waits_for_long() -> None:
    async with site() as one:
        writer = await one.publisher("a")
        await one.say("wait", "x", "b", ready=True)
        await asyncio.sleep(0.5)
        await writer.begins_after()
        assert not writer.turns.is_over
        await one.say("wait", "x", "b", ready=True)
        await asyncio.sleep(turns._TURN_S)
        assert writer.turns.is_over


@on_virtual_time
async def test_a_waiting_publisher_that_writes_meanwhile_ends_no_turn() -> None:
    async with site() as one:
        writer = await one.publisher("a")
        await writer.begins_after()
        for word in ("wait", "write"):
            await one.say(word, "x", "b", ready=True)
        await asyncio.sleep(turns._TURN_S)
        assert not writer.turns.is_over


@on_virtual_time
async def test_publishers_of_one_source_do_not_hear_each_other() -> None:
    async with site() as one:
        first, heir = await one.publisher("a"), await one.publisher("a")
        await first.begins_after()
        assert await heir.begins_after() < 2 * A_MOMENT_S
        assert not first.turns.others_write


@pytest.mark.parametrize(
    "data", [b"", b"garbage", b"[]", b"7", b'{"word": "write"}', b'{"word": 1, "by": 2}']
)
@on_virtual_time
async def test_a_malformed_note_changes_nothing(data: bytes) -> None:
    async with site() as one:
        writer = await one.publisher("a")
        await one.nats.client().publish(SUBJECT, data)
        await asyncio.sleep(A_MOMENT_S)
        assert not writer.turns.others_write
        await one.say("write", "x", "b")
        assert writer.turns.others_write


@on_virtual_time
async def test_invented_publishers_take_a_bounded_memory() -> None:
    async with site() as one:
        writer = await one.publisher("a")
        for number in range(turns._OTHERS_MAX + 10):
            await one.client.publish(
                SUBJECT, orjson.dumps({"word": "wait", "by": str(number), "source": "b", "to": ""})
            )
        await asyncio.sleep(A_MOMENT_S)
        assert len(writer.turns._waiting) == turns._OTHERS_MAX


@on_virtual_time
async def test_a_turn_that_is_passed_to_one_with_nothing_to_write_is_passed_on() -> None:
    async with site() as one:
        idle = await one.publisher("a")
        await one.say("write", "x", "b")
        await one.say("pass", "x", "b", idle.turns._me)
        assert not idle.turns.others_write
        answers = [one.notes[-1]["word"]]
        idle.writes = True
        await one.say("write", "x", "b")
        await one.say("pass", "x", "b", idle.turns._me)
        assert [*answers, one.notes[-1]["word"]] == ["pass", "write"]


@on_virtual_time
async def test_before_a_turn_begins_the_end_is_read_once_more() -> None:
    """The last messages of the one that passes it precede its note."""
    async with site() as one:
        waiting = await one.publisher("a")
        await one.say("write", "x", "b")
        await waiting.turns.want()
        await one.say("pass", "x", "b", waiting.turns._me)
        assert await waiting.turns.wait(0)
        assert not await waiting.turns.wait(0)


@on_virtual_time
async def test_a_turn_that_nobody_waits_for_is_passed_to_everybody() -> None:
    async with site() as one:
        writer = await one.publisher("a")
        await writer.begins_after()
        await one.say("write", "x", "b")
        writer.writes = False
        writer.turns.pass_on(more=False)
        await asyncio.sleep(turns._REST_S + A_MOMENT_S)
        assert (one.notes[-1]["word"], one.notes[-1]["to"]) == ("pass", "")
        assert writer.stats.number("turns_passed") == 0


@on_virtual_time
async def test_a_turn_that_is_passed_to_another_is_the_others() -> None:
    async with site() as one:
        waiting = await one.publisher("a")
        await one.say("write", "x", "b")
        await one.say("pass", "x", "b", "y")
        assert waiting.turns.others_write
        await one.say("pass", "x", "b")
        assert waiting.turns.others_write, "it was not the writer's to pass"
        await one.say("pass", "y", "c")
        assert not waiting.turns.others_write


@on_virtual_time
async def test_a_writer_that_waits_again_no_longer_writes() -> None:
    async with site() as one:
        waiting = await one.publisher("a")
        await one.say("write", "x", "b")
        await one.say("wait", "x", "b")
        assert not waiting.turns.others_write


@on_virtual_time
async def test_after_close_nothing_is_heard() -> None:
    async with site() as one:
        first = await one.publisher("a")
        await first.turns.want()
        first.turns.pass_on(more=False)
        await first.turns.close()
        await asyncio.sleep(A_MOMENT_S)
        await one.say("write", "x", "b")
        assert not first.turns.others_write
        assert one.said("pass") == 0
