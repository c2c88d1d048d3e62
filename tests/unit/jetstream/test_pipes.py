"""The promises of every way of publishing, above the simulation's nats-server: in order, once, fenced,
and nothing counts as stored that the server did not say.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from nats.errors import Error as NatsError

from headrace.contract.events import ID_HEADER
from headrace.jetstream.publishing.errors import (
    FencedError,
    IngestError,
    MessageTooLargeError,
    StreamFullError,
    TailLostError,
)
from headrace.jetstream.publishing.fast import FastPipe
from headrace.jetstream.publishing.pipe import HEADERS_BYTES_MAX, Pipe, Window
from headrace.publisher.atomic_pipe import AtomicPipe, AtomicUnsupportedError, GroupTooLongError
from headrace.publisher.chain_pipe import ChainPipe
from tests.simulation.client import PAYLOAD_MAX
from tests.simulation.stream import refused
from tests.support.pipes import (
    ACK_TIMEOUT_S,
    SETTINGS,
    WAYS,
    Publisher,
    answering,
    each_way,
    event,
    expected,
    ids,
    on_pipes,
    opened,
    silent,
)
from tests.support.simulated_nats import SimulatedNats, simulated_nats
from tests.support.virtual_time import on_virtual_time


@each_way
async def test_messages_are_stored_in_order_and_counted_when_the_server_says_so(
    nats: SimulatedNats, one: Publisher
) -> None:
    assert (one.pipe.acked, one.pipe.published, one.pipe.stored_seq) == (0, 0, 0)
    await one.deliver(20)
    await one.pipe.publish_all([event("a", lsn) for lsn in range(21, 41)])
    assert one.pipe.published == 40
    await one.pipe.drain()
    assert ids(nats) == one.stored == expected(40)
    assert (one.pipe.acked, one.pipe.published, one.pipe.stored_seq) == (40, 40, 40)
    sizes = sum(len(message.payload) for message in nats.stored)
    assert one.stats.number("published_bytes") == sizes
    assert time.monotonic() - one.pipe.acked_at < 1
    await one.pipe.drain()
    await one.pipe.close()


@each_way
async def test_an_event_that_takes_its_source_nowhere_is_stored_and_not_its_end(
    nats: SimulatedNats, one: Publisher
) -> None:
    for lsn, advances in ((1, False), (2, True), (3, False), (4, False)):
        await one.pipe.publish(event("a", lsn, advances=advances))
    await one.pipe.drain()
    assert (one.pipe.acked, one.pipe.stored_seq) == (4, 2)


@each_way
async def test_headers_of_a_message_are_stored_with_it_and_its_id(
    nats: SimulatedNats, one: Publisher
) -> None:
    for lsn in range(1, 5):
        await one.pipe.publish(event("a", lsn, Zone=f"z{lsn}"))
    await one.pipe.drain()
    assert [message.headers["Zone"] for message in nats.stored] == ["z1", "z2", "z3", "z4"]
    assert [message.headers["Nats-Msg-Id"] for message in nats.stored] == expected(4)


@pytest.mark.parametrize("way", [ChainPipe, FastPipe])
@pytest.mark.parametrize("window", [Window(8, 1 << 22, 3.0), Window(500, 8 * 150, 3.0)])
@pytest.mark.parametrize("together", [1, 3])
@on_virtual_time
async def test_no_more_messages_or_bytes_are_in_flight_than_the_window_allows(
    way: Callable[..., Pipe], window: Window, together: int
) -> None:
    async with simulated_nats(SETTINGS) as nats:
        one = await opened(nats, way, window=window)
        size = len(event("a", 1).payload)
        most = min(window.messages_max, window.bytes_max // size)
        flying = []
        for first in range(1, 49, together):
            await one.pipe.publish_all([event("a", first + more) for more in range(together)])
            flying.append(one.pipe.published - one.pipe.acked)
        assert max(flying) == most
        await one.pipe.drain()
        assert ids(nats) == expected(48)


@on_pipes(ChainPipe, FastPipe, window=Window(500, 100, ACK_TIMEOUT_S))
async def test_a_message_larger_than_the_window_is_published_alone(
    nats: SimulatedNats, one: Publisher
) -> None:
    await one.publish(3, pad=1000)
    await one.pipe.drain()
    assert ids(nats) == expected(3)


@pytest.mark.parametrize("way", WAYS)
@on_virtual_time
async def test_sources_that_write_at_once_store_everything_once_and_in_order(
    way: Callable[..., Pipe],
) -> None:
    async with simulated_nats(SETTINGS) as nats:
        both = [await opened(nats, way, source) for source in ("a", "b")]

        async def work(one: Publisher) -> None:
            for _ in range(30):
                await one.publish(1)
                await one.pipe.catch_up()
                await asyncio.sleep(0.001)
            await one.pipe.drain()

        await asyncio.gather(*map(work, both))
        for one in both:
            assert ids(nats, one.source) == one.stored == expected(30, one.source)
            assert (one.pipe.acked, one.pipe.published) == (30, 30)
            last = max(
                message.seq for message in nats.stored if f".{one.source}." in message.subject
            )
            assert one.pipe.stored_seq == last


@pytest.mark.parametrize("way", WAYS)
@on_virtual_time
async def test_a_publisher_whose_source_has_another_one_stores_nothing_more(
    way: Callable[..., Pipe],
) -> None:
    async with simulated_nats(SETTINGS) as nats:
        old = await opened(nats, way)
        await old.deliver(3)
        new = await opened(nats, way)
        await new.deliver(3)
        with pytest.raises(FencedError):
            await old.deliver(3)
        assert ids(nats) == expected(6)
        with pytest.raises(IngestError):
            await old.pipe.drain()


@pytest.mark.parametrize("way", WAYS)
@on_virtual_time
async def test_what_was_removed_and_is_still_known_by_its_id_is_stored_again(
    way: Callable[..., Pipe],
) -> None:
    async with simulated_nats(SETTINGS) as nats:
        await (await opened(nats, way)).deliver(5)
        for seq in (4, 5):
            nats.cdc.delete(seq)
        again = await opened(nats, way)
        again.next = 4
        await again.deliver(4)
        assert ids(nats) == expected(7)
        assert again.stats.number("duplicates_refused") >= 1
        assert again.pipe.acked == 4
        own = [message.headers.get(ID_HEADER, "") for message in nats.stored[3:5]]
        assert own == expected(5)[3:]
        await again.deliver(2)
        assert nats.stored[-1].headers["Nats-Msg-Id"] == expected(9)[-1]


# A refused group is stored without any id that the server compares.
@pytest.mark.parametrize("way", [ChainPipe, FastPipe])
@on_virtual_time
async def test_only_a_message_whose_id_the_server_knows_already_is_stored_without_it(
    way: Callable[..., Pipe],
) -> None:
    async with simulated_nats(SETTINGS) as nats:
        known = expected(5)[4]
        nats.cdc.store("cdc.b.insert", {"Nats-Msg-Id": known}, b'{"source": "b"}', 0.0)
        one = await opened(nats, way)
        await one.deliver(30)
        assert ids(nats) == expected(30)
        own = [message.headers.get("Nats-Msg-Id") for message in nats.stored[1:]]
        assert own == [None if one == known else one for one in expected(30)]


@each_way
async def test_behind_a_replaced_connection_nothing_is_published(
    nats: SimulatedNats, one: Publisher
) -> None:
    await one.deliver(2)
    one.client.stats["reconnects"] += 1
    with pytest.raises(IngestError, match="connection was lost"):
        await one.deliver(1)
    for act in (one.pipe.catch_up, one.pipe.drain):
        with pytest.raises(IngestError):
            await act()
    await asyncio.sleep(1)
    assert ids(nats) == expected(2)


@each_way
async def test_a_lost_connection_is_noticed_while_nothing_is_published(
    nats: SimulatedNats, one: Publisher
) -> None:
    await one.pipe.catch_up()
    one.client.stats["reconnects"] += 1
    with pytest.raises(IngestError, match="connection was lost"):
        await one.pipe.catch_up()


@on_pipes(ChainPipe, FastPipe)
async def test_a_connection_that_is_lost_while_an_answer_is_awaited_is_noticed_soon(
    nats: SimulatedNats, one: Publisher
) -> None:
    with silent(nats):
        await one.publish(1)
        going = asyncio.ensure_future(one.pipe.drain())
        await asyncio.sleep(0.2)
        one.client.stats["reconnects"] += 1
        await asyncio.sleep(1)
    assert going.done()
    with pytest.raises(IngestError, match="connection was lost"):
        going.result()


@each_way
async def test_after_a_failure_nothing_is_taken_and_nothing_counts_as_done(
    nats: SimulatedNats, one: Publisher
) -> None:
    one.client.stats["reconnects"] += 1
    with pytest.raises(IngestError):
        await one.pipe.catch_up()
    last = event("a", 1)
    for act in (one.pipe.drain(), one.pipe.publish(last), one.pipe.publish_all([last])):
        with pytest.raises(IngestError, match="connection was lost"):
            await act
    assert (one.pipe.published, nats.stored) == (0, [])


@each_way
async def test_a_server_that_acknowledges_nothing_is_not_waited_for_longer_than_its_time(
    nats: SimulatedNats, one: Publisher
) -> None:
    await one.deliver(1)
    await asyncio.sleep(60)
    with silent(nats):
        await one.publish(2)
        began = time.monotonic()
        with pytest.raises(IngestError):
            await one.pipe.drain()
    assert ACK_TIMEOUT_S <= time.monotonic() - began <= ACK_TIMEOUT_S + 1
    assert one.pipe.acked == 1


@on_pipes(ChainPipe, FastPipe)
async def test_an_acknowledgement_that_is_missing_is_noticed_while_nothing_is_published(
    nats: SimulatedNats, one: Publisher
) -> None:
    await one.deliver(1)
    await asyncio.sleep(60)
    await one.pipe.catch_up()
    with silent(nats):
        await one.publish(1)
        await one.pipe.catch_up()
        await asyncio.sleep(ACK_TIMEOUT_S - 0.1)
        await one.pipe.catch_up()
        await asyncio.sleep(0.2)
        with pytest.raises(IngestError, match="acknowledged nothing for 3"):
            await one.pipe.catch_up()


@each_way
async def test_a_missing_stream_is_reported_at_once(nats: SimulatedNats, one: Publisher) -> None:
    del nats.server.streams[SETTINGS.streams.cdc]
    began = time.monotonic()
    with pytest.raises(IngestError, match="no stream takes these subjects"):
        await one.deliver(2)
    assert time.monotonic() - began < 1


@each_way
async def test_a_stream_that_was_created_again_is_not_gone_on_with(
    nats: SimulatedNats, one: Publisher
) -> None:
    await one.deliver(3)
    config = nats.cdc
    config.created = "2027-01-01T00:00:00.000000000Z"
    config.lose_tail(0, 0.0)
    with pytest.raises(TailLostError):
        await one.deliver(3)
    assert ids(nats) == []


@each_way
async def test_a_store_that_came_back_older_is_not_gone_on_with(
    nats: SimulatedNats, one: Publisher
) -> None:
    await one.deliver(5)
    nats.cdc.lose_tail(3, 0.0)
    with pytest.raises(TailLostError):
        await one.deliver(3)
    assert ids(nats) == expected(3)


@on_pipes(ChainPipe, FastPipe)
async def test_an_older_store_that_others_went_on_with_is_recognized_by_its_content(
    nats: SimulatedNats, one: Publisher
) -> None:
    await one.deliver(5)
    nats.cdc.lose_tail(3, 0.0)
    await (await opened(nats, ChainPipe, "b")).deliver(6)
    with pytest.raises(TailLostError):
        await one.deliver(3)
    assert ids(nats) == expected(3)


@each_way
async def test_a_full_stream_is_reported_and_nothing_follows_the_refused_message(
    nats: SimulatedNats, one: Publisher
) -> None:
    await one.deliver(2)
    full = refused(503, 10047, "insufficient storage resources available")
    with answering(nats, full), pytest.raises(StreamFullError):
        await one.deliver(3)
    for act in (one.pipe.drain, one.pipe.catch_up):
        with pytest.raises(StreamFullError):
            await act()
    assert ids(nats) == expected(2)
    assert one.pipe.acked == 2


@on_pipes(ChainPipe, FastPipe, window=Window(1, 1 << 22, ACK_TIMEOUT_S))
async def test_a_message_that_nats_does_not_take_is_refused_before_it_is_sent(
    nats: SimulatedNats, one: Publisher
) -> None:
    await one.publish(1)
    base = len(event("a", 2, pad=0).payload)
    fits = PAYLOAD_MAX - HEADERS_BYTES_MAX - base
    await one.publish(1, pad=fits)
    with pytest.raises(MessageTooLargeError):
        await one.publish(1, pad=PAYLOAD_MAX - base)
    await one.pipe.drain()
    assert ids(nats) == expected(2)
    assert one.client.is_connected


# Only the chain.


@on_pipes(ChainPipe)
async def test_what_others_store_in_between_breaks_the_chain_and_costs_nothing(
    nats: SimulatedNats, one: Publisher
) -> None:
    await one.publish(3)
    nats.cdc.store("cdc.b.insert", {}, b'{"source": "b"}', 0.0)
    await one.publish(3)
    await one.pipe.drain()
    assert ids(nats) == expected(6)
    assert one.pipe.stored_seq == 7


@on_pipes(ChainPipe)
async def test_a_large_header_counts_towards_what_nats_takes(
    nats: SimulatedNats, one: Publisher
) -> None:
    base = len(event("a", 1, pad=0).payload)
    message = event("a", 1, pad=PAYLOAD_MAX - base - 1000, Note="n" * 700)
    await one.pipe.publish(message)
    await one.pipe.drain()
    with pytest.raises(MessageTooLargeError):
        await one.pipe.publish(event("a", 2, pad=PAYLOAD_MAX - base - 1000, Note="n" * 920))
    assert ids(nats) == expected(1)


@on_pipes(ChainPipe, FastPipe)
async def test_after_close_no_answer_is_heard(nats: SimulatedNats, one: Publisher) -> None:
    await one.publish(3)
    await one.pipe.catch_up()
    stored = list(one.stored)
    assert len(stored) < 3
    await one.pipe.close()
    await asyncio.sleep(1)
    assert ids(nats) == expected(3)
    assert one.stored == stored


@on_pipes(ChainPipe)
async def test_a_message_that_the_client_cannot_send_ends_the_pipe(
    nats: SimulatedNats, one: Publisher
) -> None:
    await one.deliver(1)
    broken = mock.AsyncMock(side_effect=NatsError("outbound buffer limit exceeded"))
    with (
        mock.patch.object(one.client, "publish", broken),
        pytest.raises(IngestError, match="outbound buffer limit"),
    ):
        await one.deliver(1)
    with pytest.raises(IngestError, match="outbound buffer limit"):
        await one.deliver(1)
    assert ids(nats) == expected(1)


@on_virtual_time
async def test_behind_a_break_nothing_is_sent_again_before_all_is_answered() -> None:
    async with simulated_nats(SETTINGS) as nats:
        # Another source's message has the id of our third.
        nats.cdc.store("cdc.b.insert", {"Nats-Msg-Id": expected(3)[2]}, b'{"source": "b"}', 0.0)
        one = await opened(nats, ChainPipe)
        await one.deliver(1)
        answers: list[tuple[Any, ...]] = []
        answer = nats.server.answer

        def held(*given: Any) -> None:
            answers.append(given)
            if len(answers) != 3:
                answer(*given)

        with mock.patch.object(nats.server, "answer", held):
            await one.publish(3)
            going = asyncio.ensure_future(one.pipe.drain())
            await asyncio.sleep(ACK_TIMEOUT_S / 2)
            assert len(answers) == 3, "the fourth message may be stored yet"
            answer(*answers[2])
            await going
        assert ids(nats) == expected(4)


# Only atomic groups.


def atomic(one: Publisher) -> AtomicPipe:
    assert isinstance(one.pipe, AtomicPipe)
    return one.pipe


@on_pipes(AtomicPipe, window=Window(4, 1 << 22, ACK_TIMEOUT_S))
async def test_a_group_is_stored_as_a_whole_when_it_is_full_or_flushed(
    nats: SimulatedNats, one: Publisher
) -> None:
    pipe = atomic(one)
    await one.publish(4)
    await asyncio.sleep(1)
    assert (ids(nats), pipe.published) == ([], 4)
    assert not pipe.fits(1, 1)
    assert [pipe.fits_alone(messages, 1) for messages in (4, 5)] == [True, False]
    await one.publish(1)
    assert pipe.published == 5
    flying = [pipe.flying]
    await asyncio.sleep(1)
    assert [*flying, pipe.flying] == [True, False]
    assert ids(nats) == expected(4)
    await pipe.flush()
    await asyncio.sleep(1)
    assert ids(nats) == expected(5)
    await pipe.catch_up()
    assert (pipe.acked, pipe.published) == (5, 5)
    groups = [message.headers.get("Nats-Batch-Id", "") for message in nats.stored]
    assert len(set(groups[:4])) == 1
    assert groups[4] == ""


@on_virtual_time
async def test_a_group_has_a_limit_of_bytes_that_one_large_message_may_exceed() -> None:
    async with simulated_nats(SETTINGS) as nats:
        size = len(event("a", 1).payload)
        one = await opened(nats, AtomicPipe, window=Window(100, 3 * size, ACK_TIMEOUT_S))
        pipe = atomic(one)
        assert (pipe.fits(1, 3 * size), pipe.fits(1, 3 * size + 1)) == (True, False)
        assert (pipe.fits_alone(2, 3 * size), pipe.fits_alone(2, 3 * size + 1)) == (True, False)
        assert pipe.fits_alone(1, 100 * size)
        await one.publish(3)
        assert not pipe.fits(1, 1)
        assert not pipe.flying
        await pipe.publish_all([event("a", lsn) for lsn in range(4, 9)])
        await pipe.drain()
        assert ids(nats) == expected(8)
        assert pipe.fits(1, 3 * size)


@on_virtual_time
async def test_a_stream_without_atomic_batches_is_refused_before_anything_is_stored() -> None:
    async with simulated_nats(SETTINGS) as nats:
        nats.cdc.atomic = False
        with pytest.raises(AtomicUnsupportedError):
            await opened(nats, AtomicPipe)


@pytest.mark.parametrize(
    ("err_code", "error"), [(10174, AtomicUnsupportedError), (10199, GroupTooLongError)]
)
@on_virtual_time
async def test_a_refusal_of_groups_says_what_to_change(
    err_code: int, error: type[Exception]
) -> None:
    async with simulated_nats(SETTINGS) as nats:
        one = await opened(nats, AtomicPipe)
        with answering(nats, refused(400, err_code, "no")), pytest.raises(error):
            await one.deliver(3)


@on_pipes(AtomicPipe)
async def test_a_server_with_too_many_groups_is_asked_again_a_little_later(
    nats: SimulatedNats, one: Publisher
) -> None:
    store = nats.server._store
    groups: set[str] = set()

    def refuse_three(message: tuple[Any, ...]) -> None:
        _, _, reply, headers, _ = message
        groups.add(headers["Nats-Batch-Id"])
        if len(groups) > 3:
            store(message)
        else:
            said = {**refused(429, 10210, "too many"), "stream": SETTINGS.streams.cdc, "seq": 0}
            nats.server.answer(reply, said)

    with mock.patch.object(nats.server, "_store", refuse_three):
        await one.publish(3)
        await one.pipe.drain()
    assert (ids(nats), len(groups)) == (expected(3), 4)


@on_pipes(AtomicPipe)
async def test_a_group_in_flight_is_abandoned_by_close_and_may_still_be_stored(
    nats: SimulatedNats, one: Publisher
) -> None:
    await one.publish(3)
    await atomic(one).flush()
    await asyncio.sleep(0)
    await one.pipe.close()
    await asyncio.sleep(1)
    assert one.stored == []
    assert one.pipe.acked == 0
