"""A stream's end read back: what a message of ours says, what is searched for, what was removed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from unittest import mock

import pytest

from headrace.jetstream.publishing.stream_tail import StreamTail, Tail, TailError, TailMark
from headrace.lsn import Position
from headrace.settings import load
from tests.support.simulated_nats import SimulatedNats, simulated_nats
from tests.support.virtual_time import on_virtual_time

SETTINGS = load({})


def at(lsn: int) -> Position:
    return Position(lsn, 0)


def read(payload: bytes, headers: dict[str, str]) -> TailMark | None:
    """Watermarks of the source `a`, from messages that are written by `store`."""
    body = json.loads(payload)
    if body["source"] != "a":
        return None
    lane = None if body["lane"] is None else ("t", at(body["lane"]))
    return TailMark(headers["Nats-Msg-Id"], None if body["lsn"] is None else at(body["lsn"]), lane)


def store(
    nats: SimulatedNats, *lsns: int | None, source: str = "a", lane: int | None = None
) -> None:
    for lsn in lsns:
        payload = json.dumps({"source": source, "lsn": lsn, "lane": lane}).encode()
        nats.cdc.store(f"cdc.{source}.x", {"Nats-Msg-Id": f"{source}{lsn}"}, payload, 0.0)


def tail_of(nats: SimulatedNats) -> StreamTail:
    return StreamTail(nats.jetstream(), SETTINGS.streams.cdc, read, lambda _, data: b'"a"' in data)


@pytest.mark.parametrize(
    ("first_seq", "last_seq", "messages", "seq", "lacks"),
    [
        (1, 10, 10, 0, False),
        (6, 10, 5, 5, False),
        (6, 10, 5, 4, True),
        # From the middle.
        (6, 10, 4, 5, True),
        (1, 10, 9, 10, True),
        # An empty stream that never had any, and one that lost all.
        (0, 0, 0, 5, False),
        (11, 10, 0, 10, False),
        (11, 10, 0, 9, True),
    ],
)
def test_messages_that_were_removed_are_noticed_by_numbers(
    first_seq: int, last_seq: int, messages: int, seq: int, *, lacks: bool
) -> None:
    assert Tail(first_seq, last_seq, "", messages=messages).lacks_some_behind(seq) is lacks


def test_a_tail_is_where_everything_of_the_source_is_in_the_stream() -> None:
    tail = Tail(1, 9, "")
    tail.see(1, TailMark("first", None))
    assert (tail.position, tail.ids_after, tail.ours_seq) == (None, {"first"}, 0)
    tail.see(2, TailMark("array", at(5), ("t", at(9))))
    # Changes of other tables before it may be missing.
    assert (tail.position, tail.position_seq, tail.ids_after) == (at(5), 0, {"first"})
    assert (tail.lanes, tail.ours_seq) == ({"t": at(9)}, 2)
    tail.see(3, TailMark("last", at(9), ("t", at(9))))
    assert (tail.position, tail.position_seq, tail.position_id) == (at(9), 3, "last")
    assert (tail.ids_after, tail.ours_seq) == (set(), 3)
    tail.see(4, TailMark("behind", at(9), ("u", at(12))))
    assert (tail.position, tail.position_seq) == (at(9), 3)
    assert tail.lanes == {"t": at(9), "u": at(12)}


@on_virtual_time
async def test_one_message_is_read_by_its_sequence() -> None:
    async with simulated_nats(SETTINGS) as nats:
        store(nats, 1, 2)
        store(nats, 3, source="b")
        nats.cdc.delete(1)
        tail = tail_of(nats)
        assert await tail.mark_at(2) == TailMark("a2", at(2))
        assert [await tail.mark_at(seq) for seq in (1, 3, 4)] == [None, None, None]
        assert [await tail.id_at(seq) for seq in (1, 2, 3)] == [None, "a2", "b3"]


@pytest.mark.parametrize("others", [0, 1, 48, 49, 50, 51, 300, 900])
@on_virtual_time
async def test_the_last_message_with_a_position_is_found_however_far_back_it_is(
    others: int,
) -> None:
    async with simulated_nats(SETTINGS) as nats:
        store(nats, 1, 2, None)
        store(nats, *range(others), source="b")
        end = nats.cdc.last_seq
        tail = tail_of(nats)
        assert await tail.last_mark(1, end) == TailMark("a2", at(2))
        assert await tail.last_mark(1, 1) == TailMark("a1", at(1))
        assert await tail.last_mark(3, end) is None
        assert nats.cdc.consumers == {}, "each reader is given up"


@on_virtual_time
async def test_the_first_message_that_settles_its_source_is_found() -> None:
    async with simulated_nats(SETTINGS) as nats:
        store(nats, None)
        store(nats, 1, lane=5)
        store(nats, 5, 6)
        tail = tail_of(nats)
        assert await tail.first_settled(1, 4) == TailMark("a5", at(5))
        assert await tail.first_settled(4, 4) == TailMark("a6", at(6))
        assert await tail.first_settled(1, 2) is None


@on_virtual_time
async def test_a_watched_end_is_read_once() -> None:
    async with simulated_nats(SETTINGS) as nats:
        store(nats, 1)
        async with tail_of(nats).watched(1) as look:
            assert (await look()).position is None
            for lsn in (2, 3):
                store(nats, lsn)
                store(nats, lsn, source="b")
                found = await look()
                assert (found.position, found.position_seq) == (at(lsn), 2 * lsn - 2)
            assert (await look()).position is None
            assert len(nats.cdc.consumers) == 1, "one reader for all looks"
        assert nats.cdc.consumers == {}


@on_virtual_time
async def test_holes_are_found_while_the_end_is_read() -> None:
    async with simulated_nats(SETTINGS) as nats:
        store(nats, 1, 2, 3, 4)
        store(nats, 5, source="b")
        nats.cdc.delete(3)
        found = await tail_of(nats).after(1)
        assert (found.position, found.position_seq) == (at(4), 4)
        assert [tuple(hole) for hole in found.holes] == [(3, 3)]
        assert nats.cdc.consumers == {}


@pytest.mark.parametrize(
    ("removed", "is_read"),
    [
        # Even if others are missing, the last message exists, and was not read.
        ((), False),
        ((3,), False),
        ((4,), True),
        ((1, 2, 3, 4), True),
    ],
)
@on_virtual_time
async def test_only_what_is_gone_may_be_left_unread(
    removed: tuple[int, ...], *, is_read: bool
) -> None:
    async with simulated_nats(SETTINGS) as nats:
        store(nats, 1, 2)
        store(nats, 3, 4, source="b")
        tail = tail_of(nats)
        wanted = await tail.state()
        for seq in removed:
            nats.cdc.delete(seq)
        if is_read:
            await tail._check_end(wanted, 2)
        else:
            with pytest.raises(TailError, match="could not be read beyond 2"):
                await tail._check_end(wanted, 2)
        await tail._check_end(wanted, 4)


class Silent:
    """Reads nothing: its server is slow."""

    def __init__(self, first_seq: int) -> None:
        self.at = first_seq - 1

    async def read(self, _last_seq: int) -> AsyncIterator[list[object]]:
        none: tuple[list[object], ...] = ()
        for found in none:
            yield found

    async def close(self) -> None:
        """There is nothing to give up."""


@on_virtual_time
async def test_what_a_slow_server_does_not_return_may_be_of_the_source() -> None:
    async with simulated_nats(SETTINGS) as nats:
        store(nats, 1, 2)
        store(nats, 3, 4, source="b")
        tail = tail_of(nats)
        with (
            mock.patch.object(tail, "_stretch", Silent),
            pytest.raises(TailError, match="could not be read beyond 2"),
        ):
            await tail.after(2)


@pytest.mark.parametrize("messages", [1, 3])
@on_virtual_time
async def test_a_stream_that_cannot_be_read_to_its_last_message_is_an_error(messages: int) -> None:
    """Another source's message is at its end; one of ours may be right before it."""

    async def nothing(*_: object) -> AsyncIterator[list[tuple[int, bytes, bytes]]]:
        found: list[list[tuple[int, bytes, bytes]]] = []
        for some in found:
            yield some

    async with simulated_nats(SETTINGS) as nats:
        store(nats, *range(1, messages + 1), source="b")
        with mock.patch("headrace.jetstream.range_reader.Stretch.read", nothing):
            with pytest.raises(TailError, match="could not be read"):
                await tail_of(nats).after(messages - 1)
            nats.cdc.delete(messages)
            await tail_of(nats).after(messages - 1)


@on_virtual_time
async def test_a_watched_tail_sees_the_first_message_of_a_stream() -> None:
    async with simulated_nats(SETTINGS) as nats, tail_of(nats).watched(0) as look:
        assert (await look()).position is None
        store(nats, 1)
        assert (await look()).position == at(1)
        assert (await look()).position is None


@on_virtual_time
async def test_a_state_says_when_the_stream_was_created() -> None:
    async with simulated_nats(SETTINGS) as nats:
        created = (await nats.jetstream().stream_info(SETTINGS.streams.cdc)).created
        assert (await tail_of(nats).state()).created == str(created)
