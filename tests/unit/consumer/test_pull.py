"""A reader of a stream whose server, connection and consumer fail: every message comes once, in order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from nats.errors import Error as NatsError

from headrace.consumer import ReaderTakenOverError, RetentionGapError, StreamMissingError
from headrace.consumer.pull import Pull
from tests.simulation.server import Connection
from tests.support.pulling import cdc, losing, pulling, put, rest
from tests.support.virtual_nats import VirtualNats


@pytest.fixture
def nats(nats: VirtualNats) -> VirtualNats:
    nats.server.hiccup = 0.0
    return nats


def test_every_message_comes_once_in_order(nats: VirtualNats) -> None:
    put(nats, 9000)
    assert pulling(nats, rest) == list(range(1, 9001))


def test_a_reader_starts_at_its_sequence(nats: VirtualNats) -> None:
    put(nats, 5)
    assert pulling(nats, rest, start=4) == [4, 5]
    assert pulling(nats, rest, start=None) == [1, 2, 3, 4, 5]


def test_a_reading_is_bounded_in_messages_and_bytes(nats: VirtualNats) -> None:
    async def sizes(pull: Pull) -> list[int]:
        await asyncio.sleep(1.0)
        found = []
        while messages := await pull.read(1.0):
            found.append(len(messages))
        return found

    put(nats, 1200)
    assert pulling(nats, sizes) == [500, 500, 200]
    put(nats, 8, size=300_000)
    assert pulling(nats, sizes, start=1201) == [4, 4]


def test_a_slow_reader_holds_no_more_than_its_limits(nats: VirtualNats) -> None:
    async def use(pull: Pull) -> None:
        await asyncio.sleep(60.0)
        assert cdc(nats).consumers[pull._name].given == 40
        assert len(await pull.read(0)) == 40
        await asyncio.sleep(1.0)
        assert cdc(nats).consumers[pull._name].given == 80

    put(nats, 200)
    pulling(nats, use, messages_max=40)


def test_a_message_of_any_size_is_read(nats: VirtualNats) -> None:
    async def all_seven(pull: Pull) -> list[int]:
        return await rest(pull, quiet_s=5.0)

    put(nats, 3)
    put(nats, 1, size=9_000_000)
    put(nats, 3)
    assert pulling(nats, all_seven) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("durable", [None, "reader"])
def test_a_message_lost_on_its_way_is_requested_again(
    nats: VirtualNats, durable: str | None
) -> None:
    losing(nats, 3, 6)
    put(nats, 9)
    assert pulling(nats, rest, durable=durable) == list(range(1, 10))


def test_the_loss_of_the_last_message_is_noticed_by_a_heartbeat(nats: VirtualNats) -> None:
    losing(nats, 3)
    put(nats, 3)
    assert pulling(nats, lambda pull: rest(pull, quiet_s=6.0)) == [1, 2, 3]


def test_a_consumer_that_nobody_hears_of_is_replaced(nats: VirtualNats) -> None:
    """A server whose requests are lost sends no heartbeat either."""

    async def use(pull: Pull) -> tuple[list[int], list[int], bool]:
        first = await rest(pull, quiet_s=1.0)
        cdc(nats).consumers[pull._name].requests.clear()
        before = await rest(pull, quiet_s=12.0)
        put(nats, 2)
        return first, before + await rest(pull, quiet_s=8.0), pull.in_doubt

    put(nats, 2)
    assert pulling(nats, use) == ([1, 2], [3, 4], False)


@pytest.mark.parametrize("durable", [None, "reader"])
def test_a_deleted_consumer_is_created_again(nats: VirtualNats, durable: str | None) -> None:
    async def use(pull: Pull) -> list[int]:
        first = await rest(pull, quiet_s=1.0)
        nats.server.deleted(cdc(nats), pull._name)
        put(nats, 2)
        return first + await rest(pull)

    put(nats, 2)
    assert pulling(nats, use, durable=durable) == [1, 2, 3, 4]


@pytest.mark.parametrize("durable", [None, "reader"])
def test_a_server_that_restarts_loses_and_repeats_nothing(
    nats: VirtualNats, durable: str | None
) -> None:
    async def use(pull: Pull) -> list[int]:
        found = [seq for seq, *_ in await pull.read(5.0)]
        nats.server.stop()
        await asyncio.sleep(2.0)
        nats.server.start()
        put(nats, 3)
        return found + await rest(pull)

    put(nats, 600)
    assert pulling(nats, use, durable=durable) == list(range(1, 604))


def test_a_server_that_stays_away_is_reported_and_then_read_on(nats: VirtualNats) -> None:
    async def use(pull: Pull) -> list[int]:
        found = await rest(pull, quiet_s=1.0)
        nats.server.stop()
        await asyncio.sleep(1.0)
        nats.server.unanswered.add("STREAM.INFO")
        nats.server.start()
        began = nats.loop.now
        with pytest.raises(NatsError):
            await pull.read(200.0)
        assert nats.loop.now - began > 10.0
        # Each call reports it, until the server answers.
        with pytest.raises(NatsError):
            await pull.read(200.0)
        nats.server.unanswered.clear()
        put(nats, 1)
        return found + await rest(pull)

    put(nats, 2)
    assert pulling(nats, use) == [1, 2, 3]


def test_a_short_trouble_is_waited_for(nats: VirtualNats) -> None:
    async def use(pull: Pull) -> list[int]:
        found = await rest(pull, quiet_s=1.0)
        nats.server.unanswered.add("CONSUMER.CREATE")
        nats.server.deleted(cdc(nats), pull._name)
        put(nats, 1)
        assert await pull.read(7.0) == []
        assert pull.in_doubt
        assert await pull.outstanding() is None
        nats.server.unanswered.clear()
        return found + await rest(pull)

    put(nats, 2)
    assert pulling(nats, use) == [1, 2, 3]


# The stream is not the one that was read.


async def _after(nats: VirtualNats, pull: Pull, change: Callable[[], None]) -> Any:
    await rest(pull, quiet_s=1.0)
    nats.server.deleted(cdc(nats), pull._name)
    change()
    return await rest(pull)


def failing(nats: VirtualNats, change: Callable[[], None], **options: Any) -> RetentionGapError:
    with pytest.raises(RetentionGapError) as found:
        pulling(nats, lambda pull: _after(nats, pull, change), **options)
    return found.value


def test_another_stream_of_the_same_name_is_noticed(nats: VirtualNats) -> None:
    put(nats, 3)

    def replace() -> None:
        cdc(nats).created = "2026-09-20T00:00:00Z"

    error = failing(nats, replace)
    assert error.rewritten
    assert "the stream was replaced by another one" in str(error)
    assert (error.first_lost, error.last_lost) == (4, 3)


def test_an_older_copy_of_the_stream_is_noticed_by_its_end(nats: VirtualNats) -> None:
    put(nats, 3)
    error = failing(nats, lambda: cdc(nats).lose_tail(2, nats.loop.now))
    assert error.rewritten
    assert (error.first_lost, error.last_lost) == (3, 3)


def test_an_older_copy_that_continued_is_noticed_by_its_message(nats: VirtualNats) -> None:
    put(nats, 3)

    def continue_elsewhere() -> None:
        cdc(nats).lose_tail(2, nats.loop.now)
        put(nats, 2)

    error = failing(nats, continue_elsewhere)
    assert error.rewritten
    assert (error.first_lost, error.last_lost) == (3, 3)


def test_messages_discarded_while_the_consumer_was_away_are_noticed(nats: VirtualNats) -> None:
    put(nats, 3)

    def discard() -> None:
        put(nats, 4)
        nats.server.discard("CDC", 6)

    nats_error = failing(nats, discard)
    assert not nats_error.rewritten
    assert (nats_error.first_lost, nats_error.last_lost) == (4, 5)
    assert "stream sequences 4 to 5 were discarded" in str(nats_error)


def test_discarded_messages_that_were_read_or_passed_are_no_loss(nats: VirtualNats) -> None:
    async def use(pull: Pull) -> list[int]:
        found = await rest(pull, quiet_s=1.0)
        for _ in range(4):
            nats.server.put("cdc.b.insert", b"other")
        pull.passed(7)
        nats.server.discard("CDC", 8)
        nats.server.deleted(cdc(nats), pull._name)
        put(nats, 1)
        return found + await rest(pull)

    put(nats, 3)
    assert pulling(nats, use, filters=("cdc.a.>",)) == [1, 2, 3, 8]


def test_a_reader_that_has_no_start_misses_nothing_before_its_first_message(
    nats: VirtualNats,
) -> None:
    async def use(pull: Pull) -> list[int]:
        nats.server.deleted(cdc(nats), pull._name)
        put(nats, 3)
        nats.server.discard("CDC", 3)
        return await rest(pull)

    assert pulling(nats, use, start=None) == [3]


def test_a_stream_that_was_deleted_is_an_error(nats: VirtualNats) -> None:
    async def use(pull: Pull) -> None:
        nats.server.deleted(cdc(nats), pull._name)
        del nats.server.streams["CDC"]
        await pull.read(30.0)

    with pytest.raises(StreamMissingError):
        pulling(nats, use)


# Names and acknowledgements.


def test_unacknowledged_messages_are_acknowledged_through_a_new_consumer(
    nats: VirtualNats,
) -> None:
    async def use(pull: Pull) -> list[int]:
        found = await rest(pull, quiet_s=1.0)
        await pull.done(2)
        await asyncio.sleep(1.0)
        assert cdc(nats).consumers["reader"].acknowledged == 2
        nats.server.deleted(cdc(nats), "reader")
        put(nats, 1)
        found += await rest(pull, quiet_s=10.0)
        await pull.done(4)
        await asyncio.sleep(1.0)
        assert cdc(nats).consumers["reader"].acknowledged == 4
        return found

    put(nats, 5)
    assert pulling(nats, use, durable="reader") == [1, 2, 3, 4, 5, 6], "each is given out once"


def test_nothing_is_acknowledged_in_the_name_of_a_consumer_that_is_gone(
    nats: VirtualNats,
) -> None:
    """Its numbers may be ahead of the new one's, which would then take no acknowledgement."""

    async def use(pull: Pull) -> list[int]:
        await rest(pull, quiet_s=1.0)
        await pull.done(3)
        await asyncio.sleep(1.0)
        nats.server.deleted(cdc(nats), "reader")
        await rest(pull, quiet_s=10.0)
        found = []
        for seq in (4, 5):
            await pull.done(seq)
            await asyncio.sleep(1.0)
            found.append(cdc(nats).consumers["reader"].acknowledged)
        return found

    put(nats, 5)
    assert pulling(nats, use, durable="reader") == [4, 5]


def test_a_durable_consumer_stays_and_another_is_deleted(nats: VirtualNats) -> None:
    put(nats, 1)
    pulling(nats, rest, durable="reader")
    pulling(nats, rest)
    nats.past(1.0)
    assert set(cdc(nats).consumers) == {"reader"}


def test_a_name_that_another_reader_has_is_not_taken_back(nats: VirtualNats) -> None:
    async def use(pull: Pull) -> None:
        await asyncio.sleep(1.0)
        config = {**cdc(nats).consumers["reader"].config, "metadata": {"headrace_reader": "other"}}
        nats.server.deleted(cdc(nats), "reader")
        nats.server._created(cdc(nats), config)
        await pull.read(60.0)

    with pytest.raises(ReaderTakenOverError):
        pulling(nats, use, durable="reader")
    assert cdc(nats).consumers["reader"].config["metadata"] == {"headrace_reader": "other"}


# What is left.


def test_outstanding_messages_are_counted_once_nothing_is_on_its_way(nats: VirtualNats) -> None:
    async def use(pull: Pull) -> list[int | None]:
        await asyncio.sleep(1.0)
        found = [await pull.outstanding()]
        await pull.read(0)
        found.append(await pull.outstanding())
        nats.server.holds_back = True
        put(nats, 2)
        found.append(await pull.outstanding())
        nats.server.deleted(cdc(nats), pull._name)
        found.append(await pull.outstanding())
        return found

    put(nats, 3)
    assert pulling(nats, use) == [None, 0, 2, None]


def test_a_delivery_that_did_not_arrive_is_on_its_way(nats: VirtualNats) -> None:
    async def use(pull: Pull) -> int | None:
        await asyncio.sleep(1.0)
        await pull.read(0)
        return await pull.outstanding()

    losing(nats, 3)
    put(nats, 3)
    assert pulling(nats, use) is None


def test_a_request_that_fails_gives_its_messages_back(
    nats: VirtualNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that was notified of a failure gets the messages at its next call."""

    async def use(pull: Pull) -> list[int]:
        await asyncio.sleep(1.0)
        publish = pull.client.publish

        async def failing(*_: Any, **__: Any) -> None:
            raise OSError("broken")

        monkeypatch.setattr(pull.client, "publish", failing)
        with pytest.raises(OSError, match="broken"):
            await pull.read(0)
        assert pull.has_more
        assert pull._room.held == 40, "they take room still"
        monkeypatch.setattr(pull.client, "publish", publish)
        # The request that failed counts as sent, until nothing was heard for a while.
        return await rest(pull, quiet_s=20.0)

    put(nats, 60)
    assert pulling(nats, use, messages_max=40) == list(range(1, 61))


def test_a_broken_connection_is_followed_by_a_new_consumer(nats: VirtualNats) -> None:
    async def use(pull: Pull) -> tuple[list[int], str, str]:
        before = pull._name
        found = await rest(pull, quiet_s=1.0)
        connection = pull.client.connection  # type: ignore[attr-defined]  # the simulation's
        assert isinstance(connection, Connection)
        connection.drop()
        connection.client.lost(connection)
        put(nats, 2)
        return found + await rest(pull), before, pull._name

    put(nats, 2)
    found, before, now = pulling(nats, use)
    assert found == [1, 2, 3, 4]
    assert before != now


def test_nothing_of_the_consumer_from_before_a_reconnect_is_taken(nats: VirtualNats) -> None:
    """It may be from an older store, with the same counts."""

    async def use(pull: Pull) -> list[int]:
        found = await rest(pull, quiet_s=1.0)
        connection = pull.client.connection  # type: ignore[attr-defined]  # the simulation's
        connection.drop()
        connection.client.lost(connection)
        await asyncio.sleep(1.0)
        assert pull.client.stats["reconnects"] == 1
        # The old consumer gives it out, and nobody looks at the connection meanwhile.
        put(nats, 1)
        await asyncio.sleep(1.0)
        assert cdc(nats).consumers[pull._name].given == 3
        assert not pull.has_more
        return found + await rest(pull)

    put(nats, 2)
    assert pulling(nats, use) == [1, 2, 3]


def test_each_message_has_its_subject_payload_and_header(nats: VirtualNats) -> None:
    async def use(pull: Pull) -> Any:
        return await pull.read(5.0)

    nats.server.put("cdc.a.update", b"payload", {"Headrace-Complete": "7"})
    assert pulling(nats, use) == [
        (1, b"cdc.a.update", b"payload", b"NATS/1.0\r\nHeadrace-Complete: 7\r\n\r\n")
    ]


def test_requests_have_a_limit_in_time_and_ask_for_heartbeats(nats: VirtualNats) -> None:
    asked: list[dict[str, Any]] = []
    requested = nats.server._requested

    def note(reader: Any, reply: str, body: dict[str, Any]) -> None:
        asked.append(json.loads(json.dumps(body)))
        requested(reader, reply, body)

    nats.server._requested = note  # type: ignore[method-assign]  # heard first
    pulling(nats, lambda pull: rest(pull, quiet_s=70.0))
    assert [one["expires"] for one in asked] == [30_000_000_000] * 3, "one follows the other"
    assert asked[0]["idle_heartbeat"] == 5_000_000_000
    assert asked[0]["batch"] == 4000
    assert asked[0]["max_bytes"] == 4 << 20


# Limits, and what is left behind.


def test_a_reader_counts_bytes_as_the_server_does(nats: VirtualNats) -> None:
    async def use(pull: Pull) -> None:
        nats.server.put("cdc.a.update", b"payload", {"Headrace-Complete": "7"})
        put(nats, 20, size=100)
        await asyncio.sleep(1.0)
        (request,) = cdc(nats).consumers[pull._name].requests
        assert pull._room.asked == request.left
        assert pull._room.asked_bytes == request.size_left
        assert pull._room.held_bytes == 2007
        await pull.read(0)
        assert (pull._room.held, pull._room.held_bytes) == (0, 0)

    pulling(nats, use, messages_max=4000)


def test_a_request_has_room_for_the_largest_message(nats: VirtualNats) -> None:
    async def work() -> int:
        client = nats.client()
        pull = Pull(client, "CDC", (), None, 1, bytes_max=1000)
        await pull.open((await client.jetstream().stream_info("CDC")).created)
        await asyncio.sleep(1.0)
        (request,) = cdc(nats).consumers[pull._name].requests
        spare: int = request.size_left - 2 * client.max_payload
        return spare

    assert nats.do(work()) == 2 * 64 * 1024


def test_only_a_named_consumer_acknowledges_and_stays(nats: VirtualNats) -> None:
    configs: list[dict[str, Any]] = []

    async def use(pull: Pull) -> None:
        configs.append(cdc(nats).consumers[pull._name].config)

    pulling(nats, use, start=None)
    pulling(nats, use, start=4, durable="reader", filters=("cdc.a.>",))
    one, named = configs
    assert one["ack_policy"] == "none"
    assert one["inactive_threshold"] == 60_000_000_000
    assert one["deliver_policy"] == "all"
    assert "opt_start_seq" not in one
    assert "durable_name" not in one
    assert named["ack_policy"] == "all"
    assert named["durable_name"] == "reader"
    assert named["ack_wait"] == 300_000_000_000
    assert named["max_ack_pending"] == 250_000
    assert (named["deliver_policy"], named["opt_start_seq"]) == ("by_start_sequence", 4)
    assert named["filter_subjects"] == ["cdc.a.>"]


@pytest.mark.parametrize(("durable", "start"), [(None, 3), ("reader", 3)])
def test_a_new_consumer_starts_with_the_last_message_or_the_first_that_is_not_done(
    nats: VirtualNats, durable: str | None, start: int
) -> None:
    async def use(pull: Pull) -> tuple[int, int, int]:
        await rest(pull, quiet_s=1.0)
        await pull.done(2)
        nats.server.deleted(cdc(nats), pull._name)
        await rest(pull, quiet_s=6.0)
        listening = pull.client.connection.subs  # type: ignore[attr-defined]  # the simulation's
        config = cdc(nats).consumers[pull._name].config
        return config["opt_start_seq"], len(cdc(nats).consumers), len(listening)

    put(nats, 3)
    assert pulling(nats, use, durable=durable) == (start, 1, 2)


def test_a_replaced_consumer_is_deleted(nats: VirtualNats) -> None:
    async def use(pull: Pull) -> set[str]:
        found = await rest(pull, quiet_s=8.0)
        assert found == [1, 2, 3, 4]
        assert set(cdc(nats).consumers) == {pull._name}
        return set(cdc(nats).consumers)

    losing(nats, 2)
    put(nats, 4)
    assert len(pulling(nats, use)) == 1


def test_a_deleted_name_is_left_to_who_may_be_opening_it(nats: VirtualNats) -> None:
    async def use(pull: Pull) -> list[bool]:
        await asyncio.sleep(1.0)
        nats.server.deleted(cdc(nats), "reader")
        found = []
        for _ in range(3):
            await pull.read(1.2)
            found.append("reader" in cdc(nats).consumers)
        return found

    assert pulling(nats, use, durable="reader") == [False, True, True]


def test_a_reader_that_has_read_nothing_notices_that_its_start_was_discarded(
    nats: VirtualNats,
) -> None:
    async def use(pull: Pull) -> None:
        await asyncio.sleep(1.0)
        nats.server.deleted(cdc(nats), pull._name)
        put(nats, 3)
        nats.server.discard("CDC", 3)
        await rest(pull)

    with pytest.raises(RetentionGapError) as found:
        pulling(nats, use, start=1)
    assert (found.value.first_lost, found.value.last_lost) == (1, 2)


def test_a_reader_without_a_start_notices_losses_behind_its_first_message(
    nats: VirtualNats,
) -> None:
    async def use(pull: Pull) -> None:
        await rest(pull, quiet_s=1.0)
        nats.server.deleted(cdc(nats), pull._name)
        put(nats, 3)
        nats.server.discard("CDC", 4)
        await rest(pull)

    put(nats, 2)
    with pytest.raises(RetentionGapError) as found:
        pulling(nats, use, start=None)
    assert (found.value.first_lost, found.value.last_lost) == (3, 3)


def test_a_message_without_a_position_is_requested_again(nats: VirtualNats) -> None:
    deliver = nats.server.route_pull
    count = [0]

    def garbled(reply: str, found: Any, place: str) -> None:
        count[0] += 1
        deliver(reply, found, "$JS.ACK.x" if count[0] == 2 else place)

    nats.server.route_pull = garbled  # type: ignore[method-assign]  # a defect of a server
    put(nats, 4)
    assert pulling(nats, lambda pull: rest(pull, quiet_s=8.0)) == [1, 2, 3, 4]
