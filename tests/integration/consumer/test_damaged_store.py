"""Every reader reports messages that a damaged file loses from the middle of the stream."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import nats
import pytest
from nats.js.api import StreamConfig, StreamSource

from headrace.consumer import (
    Event,
    MemoryWatermarks,
    RetentionGapError,
    Subscription,
    follow,
)
from headrace.contract import events
from headrace.contract.values import Encoding
from headrace.embedded.nats import EmbeddedNats
from headrace.lsn import Position, parse_lsn
from headrace.testing import damage
from headrace.testing.database import Database
from headrace.testing.names import Names
from headrace.testing.oracle import Stored, stored
from headrace.testing.suite import Suite
from tests.support.slot import until_confirmed

# nats-server makes blocks of 8 MiB for a stream of so many bytes.
STREAM_BYTES = 64 << 20
PAD = "x" * 40_000


def a_length(store: Path) -> None:
    """nats-server cuts the block off there when it loads it, and knows what is gone."""
    block, _ = damage.blocks(store)
    damage.flip_length(block, damage.middle_record(block))


def a_payload(store: Path) -> None:
    """nats-server skips the message whenever it reads it, and reports nothing."""
    block, _ = damage.blocks(store)
    damage.flip_payload(block, damage.middle_record(block))


def a_payload_without_an_index(store: Path) -> None:
    """nats-server reads all blocks at its start, and cuts this one off."""
    a_payload(store)
    damage.forget_index(store)


def event_of(number: int) -> events.Payload:
    return {
        "table": "t" if number % 2 else "u",
        "schema": "public",
        "operation": "INSERT",
        "data": {"id": number, "pad": PAD},
        "source": "s",
        "tx": events.transaction(1, Position(number, 0), "2025-12-12T12:00:34.338547Z", last=True),
    }


async def filled(server: EmbeddedNats, number: int) -> None:
    """A stream of several blocks, of two tables in turn."""
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(StreamConfig(name="CDC", subjects=["cdc.>"], max_bytes=STREAM_BYTES))
    for n in range(1, number + 1):
        body = event_of(n)
        await js.publish(f"cdc.{body['table']}.insert", events.encode(body, Encoding.MSGPACK))
    await client.close()


async def damaged(server: EmbeddedNats, how: Callable[[Path], None]) -> None:
    await server.stop()
    how(server.folder)
    await server.start()


async def sequences(server: EmbeddedNats) -> list[int]:
    """The stream's sequences, read by a plain client."""
    return [event.seq for event in await stored(server.url)]


async def read_to_the_loss(
    server: EmbeddedNats, subscription: Subscription, last: int
) -> tuple[list[Event], RetentionGapError | None]:
    """The events that a consumer gives out, and its error; None if it reaches the last message."""
    client = await nats.connect(server.url)
    found: list[Event] = []
    try:
        async with (
            asyncio.timeout(30),
            follow(client, subscription, MemoryWatermarks()) as consumer,
        ):
            async for event in consumer:
                found.append(event)
                await consumer.done(event)
                if event.stream_seq >= last:
                    return found, None
    except RetentionGapError as error:
        return found, error
    finally:
        await client.close()
    raise AssertionError("the stream of a consumer has no end")


@pytest.mark.parametrize("how", [a_length, a_payload, a_payload_without_an_index])
async def test_a_consumer_of_everything_names_what_is_gone_from_the_middle_and_gives_out_all_before_it(
    server: EmbeddedNats, how: Callable[[Path], None]
) -> None:
    await filled(server, 260)
    await damaged(server, how)
    there = await sequences(server)
    gone = sorted(set(range(1, 261)) - set(there))
    assert gone, "the damage has an effect"
    for filters in ((), ("cdc.>",)):
        found, error = await read_to_the_loss(server, Subscription(filters=filters), 260)
        assert [event.stream_seq for event in found] == list(range(1, gone[0]))
        assert error is not None, "a hole was skipped"
        assert (error.damaged, error.first_lost, error.last_lost) == (True, gone[0], gone[-1])
    behind = Subscription(start_seq=gone[-1] + 1)
    found, error = await read_to_the_loss(server, behind, 260)
    assert ([event.stream_seq for event in found], error) == (
        list(range(gone[-1] + 1, 261)),
        None,
    )


async def test_a_consumer_of_one_table_names_what_the_server_knows_to_be_gone(
    server: EmbeddedNats,
) -> None:
    await filled(server, 260)
    subscription = Subscription(filters=("cdc.t.*",))
    found, error = await read_to_the_loss(server, subscription, 259)
    assert error is None
    assert [event.data["id"] for event in found] == list(range(1, 260, 2)), "nothing is gone yet"
    await damaged(server, a_length)
    gone = sorted(set(range(1, 261)) - set(await sequences(server)))
    found, error = await read_to_the_loss(server, subscription, 259)
    assert error is not None
    assert error.damaged
    assert set(range(error.first_lost, error.last_lost + 1)) <= set(gone)
    assert [event.data["id"] for event in found] == list(range(1, gone[0], 2))


async def test_messages_that_are_gone_from_the_end_of_what_was_read_are_named_without_another(
    server: EmbeddedNats,
) -> None:
    await filled(server, 10)
    client = await nats.connect(server.url)
    await client.jetstream().delete_msg("CDC", 10)
    await client.close()
    found, error = await read_to_the_loss(server, Subscription(), 11)
    assert [event.stream_seq for event in found] == list(range(1, 10))
    assert error is not None
    assert (error.first_lost, error.last_lost) == (10, 10)


async def test_a_stream_that_keeps_the_last_of_each_subject_has_holes_that_are_no_loss(
    server: EmbeddedNats,
) -> None:
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(StreamConfig(name="CDC", subjects=["cdc.>"], max_msgs_per_subject=2))
    for n in (1, 3, 2, 5, 7, 9):
        body = event_of(n)
        await js.publish(f"cdc.{body['table']}.insert", events.encode(body, Encoding.MSGPACK))
    await js.publish("cdc.v.insert", events.encode(event_of(11), Encoding.MSGPACK))
    await client.close()
    found, error = await read_to_the_loss(server, Subscription(), 7)
    assert error is None
    assert [event.data["id"] for event in found] == [2, 7, 9, 11]


@pytest.mark.parametrize("filters", [(), ("cdc.t.>",)])
async def test_a_stream_that_copies_another_in_part_has_holes_that_are_no_loss(
    server: EmbeddedNats, filters: tuple[str, ...]
) -> None:
    client = await nats.connect(server.url)
    part = StreamSource(name="CDC", filter_subject="cdc.t.>")
    await filled(server, 10)
    await client.jetstream().add_stream(StreamConfig(name="PART", mirror=part))
    async with asyncio.timeout(30):
        while (await client.jetstream().stream_info("PART")).state.messages < 5:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.05)
    await client.close()
    found, error = await read_to_the_loss(server, Subscription("PART", filters), 9)
    assert error is None
    assert [event.data["id"] for event in found] == [1, 3, 5, 7, 9]


def environment(
    database: Database, server: EmbeddedNats, names: Names, **settings: str
) -> dict[str, str]:
    return {
        **database.environment(server.url),
        **names.settings,
        "HEADRACE_CDC_BYTES_MAX": str(STREAM_BYTES),
        "HEADRACE_PROGRESS_INTERVAL_S": "0.1",
        "HEADRACE_STATUS_INTERVAL_S": "0.1",
        "HEADRACE_LEASE_TTL_S": "1",
        **settings,
    }


async def rows(server: EmbeddedNats) -> dict[int, int]:
    """The rows that the stream has, by id, each with the place of its transaction."""
    return {
        event.payload["data"]["id"]: event.payload["tx"]["lsn"]
        for event in await stored(server.url)
        if event.payload["operation"] == "INSERT"
    }


async def gaps(server: EmbeddedNats) -> list[Stored]:
    return [event for event in await stored(server.url) if event.payload["operation"] == "GAP"]


async def until_row(server: EmbeddedNats, row: int) -> dict[int, int]:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(nats.errors.Error):
                if row in (found := await rows(server)):
                    return found
            await asyncio.sleep(0.1)


async def until_gap(server: EmbeddedNats, number: int = 1) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(nats.errors.Error):
                if len(await gaps(server)) >= number:
                    return
            await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def publishing(
    database: Database, names: Names, settings: dict[str, str], folder: Path
) -> AsyncIterator[Suite]:
    """A suite that publishes a table `t`."""
    await database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text);"
        f"CREATE PUBLICATION {names.publication} FOR TABLE t"
    )
    async with Suite(settings, folder) as suite:
        await suite.logged("publisher", "epoch_joined")
        yield suite


def names_what_is_lost(
    gap: Stored, before: dict[int, int], after: dict[int, int], *, exact: bool
) -> None:
    """The gap contains all lost transactions, and no complete one except at its bounds.

    With arrays it also contains the transactions of the array after the hole.
    """
    begin, end = parse_lsn(gap.payload["after"]), parse_lsn(gap.payload["up_to"])
    lost = set(before) - set(after)
    assert lost, "the damage has an effect"
    assert all(begin <= before[row] < end for row in lost)
    whole = {lsn for row, lsn in before.items() if row in after} - {before[row] for row in lost}
    within = {lsn for lsn in whole if begin < lsn < end}
    assert len(within) <= (0 if exact else 1)


@pytest.mark.parametrize("delivery", ["event", "batch", "transaction"])
@pytest.mark.parametrize("how", [a_length, a_payload_without_an_index])
async def test_what_is_gone_from_the_middle_is_a_gap_once_with_the_bounds_of_what_is_lost(
    database: Database,
    server: EmbeddedNats,
    names: Names,
    tmp_path: Path,
    delivery: str,
    how: Callable[[Path], None],
) -> None:
    settings = environment(
        database, server, names, HEADRACE_DELIVERY=delivery, HEADRACE_BATCH_EVENTS_MAX="4"
    )
    async with publishing(database, names, settings, tmp_path) as suite:
        for first in range(1, 260, 7):
            await database.execute(
                f"INSERT INTO t SELECT g, '{PAD}' FROM generate_series({first}, {first + 6}) g"
            )
        before = await until_row(server, 259)
        await until_confirmed(database, names.slot)
        assert len(before) == 259
        await damaged(server, how)
        await until_gap(server)
        (gap,) = await gaps(server)
        assert (gap.subject, gap.payload["reason"]) == ("cdc._gap", "stream_damaged")
        names_what_is_lost(gap, before, await rows(server), exact=delivery != "batch")
        for row in (600, 601):
            await database.execute(f"INSERT INTO t VALUES ({row}, '')")
            after = await until_row(server, row)
            await suite.stop("publisher")
            await suite.start("publisher")
            await server.restart()
        await until_row(server, 601)
        assert len(await gaps(server)) == 1
        assert set(after) - set(before) == {600, 601}


async def test_a_gap_that_is_lost_with_the_streams_tail_is_reported_again(
    database: Database, server: EmbeddedNats, names: Names, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    settings = environment(database, server, names)
    async with publishing(database, names, settings, tmp_path) as suite:
        for row in range(1, 11):
            await database.execute(f"INSERT INTO t VALUES ({row}, '')")
        await until_row(server, 10)
        await until_confirmed(database, names.slot)
        await suite.stop("publisher")
        client = await nats.connect(server.url)
        await client.jsm().delete_msg("CDC", 5)
        await client.close()
        await server.stop()
        stream = damage.folder_of(server.folder).parent
        shutil.copytree(stream, kept)
        await server.start()
        for _ in range(2):
            await suite.start("publisher")
            await until_gap(server)
            await suite.stop("publisher")
            # An older store, from before the gap was reported.
            await server.stop()
            shutil.rmtree(stream)
            shutil.copytree(kept, stream)
            await server.start()
            assert await gaps(server) == []


async def test_a_second_loss_is_another_gap(
    database: Database, server: EmbeddedNats, names: Names, tmp_path: Path
) -> None:
    settings = environment(database, server, names)
    async with publishing(database, names, settings, tmp_path) as suite:
        for row in range(1, 21):
            await database.execute(f"INSERT INTO t VALUES ({row}, '')")
        before = await until_row(server, 20)
        await until_confirmed(database, names.slot)
        # A running publisher notices deleted messages like those that a file loses.
        client = await nats.connect(server.url)
        for seq, wanted in ((6, 1), (12, 2)):
            await client.jetstream().delete_msg("CDC", seq)
            await until_gap(server, wanted)
        await client.close()
        after = await rows(server)
        assert suite.running("publisher")
    found = await gaps(server)
    lost = sorted(set(before) - set(after))
    bounds = [(parse_lsn(gap.payload["after"]), parse_lsn(gap.payload["up_to"])) for gap in found]
    assert bounds == [(before[row - 1], before[row + 1]) for row in lost]
    assert len({gap.payload["msg_id"] for gap in found}) == len(lost) == 2


async def test_a_gap_whose_event_is_lost_in_another_hole_is_reported_again(
    database: Database, server: EmbeddedNats, names: Names, tmp_path: Path
) -> None:
    settings = environment(database, server, names)
    async with publishing(database, names, settings, tmp_path) as suite:
        for row in range(1, 11):
            await database.execute(f"INSERT INTO t VALUES ({row}, '')")
        before = await until_row(server, 10)
        client = await nats.connect(server.url)
        await client.jetstream().delete_msg("CDC", 5)
        await until_gap(server)
        (gap,) = await gaps(server)
        await database.execute("INSERT INTO t VALUES (11, '')")
        await until_row(server, 11)
        await client.jetstream().delete_msg("CDC", gap.seq)
        await client.close()
        (lost,) = set(before) - set(await rows(server))
        async with asyncio.timeout(60):
            while not any(  # noqa: ASYNC110
                parse_lsn(gap.payload["after"]) <= before[lost] < parse_lsn(gap.payload["up_to"])
                for gap in await gaps(server)
            ):
                await asyncio.sleep(0.2)
        found = len(await gaps(server))
        # Once: a restart reports nothing that is still in the stream.
        await suite.stop("publisher")
        await suite.start("publisher")
        await database.execute("INSERT INTO t VALUES (12, '')")
        await until_row(server, 12)
        assert len(await gaps(server)) == found
