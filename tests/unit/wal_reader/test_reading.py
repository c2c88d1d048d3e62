"""The wal-reader's service between a walsender and confirmers that do what the test says."""

from __future__ import annotations

import asyncio
import time

from headrace.bus import frame
from headrace.bus.frame import FrameKind, Opening
from headrace.postgres.connection import PostgresError, PostgresUnreachableError
from headrace.postgres.replication import Keepalive, SlotState
from headrace.wal_reader.service import (
    BACKOFF_S,
    PING_INTERVAL_S,
    STATUS_BYTES_MAX,
)
from tests.support.reading import (
    OUR_NAME,
    SLOT,
    START_LSN,
    begun,
    kinds,
    reading,
)
from tests.support.virtual_time import on_virtual_time

FRAME_BYTES = 1024
SMALL_FRAMES = {"frame_bytes_max": str(FRAME_BYTES), "in_flight_bytes_max": "65536"}


# Epochs.


@on_virtual_time
async def test_an_epoch_names_the_server_and_the_end_of_its_log_once_the_slot_is_held() -> None:
    source, bus, publisher = await begun()
    source.timeline, source.forks = 2, ((1, 0x800),)
    async with reading(source, bus):
        await asyncio.sleep(1)
    sessions = {"publisher": "publisher-1"}
    asked_again = START_LSN + 0x200
    assert publisher.openings == [
        Opening(sessions, SLOT, "db", "7000", 2, START_LSN, asked_again, ((1, 0x800),))
    ]
    assert source.names == [OUR_NAME, "headrace wal-reader"]


@on_virtual_time
async def test_without_a_second_connection_the_first_answer_is_the_end_of_the_log() -> None:
    source, bus, publisher = await begun()
    full = PostgresError("number of requested standby connections exceeds max_wal_senders")
    source.refusals.extend((None, full))
    async with reading(source, bus):
        await asyncio.sleep(1)
        assert [one.current_lsn for one in publisher.openings] == [START_LSN + 0x100]


@on_virtual_time
async def test_an_end_of_the_log_that_is_unknown_opens_no_epoch() -> None:
    source, bus, publisher = await begun()
    source.refusals.extend((None, PostgresUnreachableError("no answer")))
    async with reading(source, bus) as one:
        await asyncio.sleep(BACKOFF_S / 4)
        assert publisher.openings == []
        assert one.reasons["postgres"].startswith("no answer")
        await asyncio.sleep(1)
        assert len(publisher.openings) == 1


@on_virtual_time
async def test_a_confirmer_that_asks_for_it_gets_a_new_epoch_on_a_new_connection() -> None:
    source, bus, publisher = await begun()
    async with reading(source, bus) as one:
        await asyncio.sleep(1)
        assert (one.figures["epochs"], one.figures["pg_reconnects"]) == (1, 0)
        before = source.walsender
        publisher.restart("a publish failed")
        await asyncio.sleep(0.1)
        assert before.closed
        assert source.walsender is not before
        assert (len(publisher.openings), publisher.receiver.following) == (2, True)
        assert (one.figures["epochs"], one.figures["pg_reconnects"]) == (2, 1)
        await asyncio.sleep(10)
        assert len(publisher.openings) == 2


@on_virtual_time
async def test_an_epoch_says_whether_the_slot_was_used_before() -> None:
    for used in (False, True):
        source, bus, publisher = await begun()
        source.slot = SlotState(START_LSN, "pgoutput", "db", "reserved", used)
        async with reading(source, bus):
            await asyncio.sleep(1)
            publisher.restart("a publish failed")
            await asyncio.sleep(1)
        assert [one.slot_used for one in publisher.openings] == [used, used]


@on_virtual_time
async def test_a_slot_that_has_confirmed_since_is_used_also_when_postgresql_has_forgotten_it() -> (
    None
):
    source, bus, publisher = await begun()
    async with reading(source, bus):
        await asyncio.sleep(1)
        source.slot = SlotState(START_LSN + 8, "pgoutput", "db", "reserved")
        publisher.restart("a publish failed")
        await asyncio.sleep(1)
    assert [one.slot_used for one in publisher.openings] == [False, True]


@on_virtual_time
async def test_a_restart_during_a_flood_ends_the_epoch_before_its_next_message() -> None:
    source, bus, publisher = await begun()
    source.endless = (START_LSN + 8, b"m" * 1000)
    async with reading(source, bus, **SMALL_FRAMES) as one:
        await asyncio.sleep(0.1)
        assert publisher.entries
        publisher.restart("a publish failed")
        await asyncio.sleep(0.1)
        assert one.figures["epochs"] == 2


# What is sent.


@on_virtual_time
async def test_messages_of_all_sizes_arrive_whole_once_and_in_order() -> None:
    source, bus, publisher = await begun()
    sizes = (1, 100, FRAME_BYTES, 5, FRAME_BYTES * 3, 0, 700, 700, FRAME_BYTES + 1, 2)
    messages = [(START_LSN + at, b"m" * size) for at, size in enumerate(sizes, 1)]
    async with reading(source, bus, **SMALL_FRAMES) as one:
        source.send(*messages[:5])
        await asyncio.sleep(0.1)
        source.send(*messages[5:])
        await asyncio.sleep(0.1)
        assert publisher.entries == messages
        assert one.figures["received_lsn"] == START_LSN + len(sizes)
        assert one.figures["wal_messages"] == len(sizes)
        assert one.figures["wal_bytes"] == sum(sizes)
    largest = FRAME_BYTES + frame.FRAME_OVERHEAD_BYTES
    assert max(len(data) for data in bus.frames) <= largest


@on_virtual_time
async def test_a_frame_has_at_most_half_of_what_nats_accepts() -> None:
    source, bus, publisher = await begun()
    bus.max_payload = 4096
    async with reading(source, bus):
        source.send((START_LSN + 1, b"m" * 10_000))
        await asyncio.sleep(0.1)
    largest = max(len(data) for data in bus.frames)
    assert 2048 < largest <= 2048 + frame.FRAME_OVERHEAD_BYTES
    assert len(publisher.entries) == 1


@on_virtual_time
async def test_the_lsn_of_an_idle_publication_is_passed_on_once() -> None:
    source, bus, publisher = await begun()
    async with reading(source, bus) as one:
        source.keepalive(START_LSN + 8)
        await asyncio.sleep(0.1)
        for lsn in (START_LSN + 8, START_LSN):
            source.keepalive(lsn)
            await asyncio.sleep(0.1)
        assert publisher.entries == [(START_LSN + 8, b"")]
        source.send((START_LSN + 16, b"m"))
        await asyncio.sleep(0.1)
        source.keepalive(START_LSN + 16)
        await asyncio.sleep(0.1)
        assert len(publisher.entries) == 2
        assert one.figures["received_lsn"] == START_LSN + 16


@on_virtual_time
async def test_a_keepalive_behind_a_full_frame_is_passed_on_in_the_next() -> None:
    source, bus, publisher = await begun()
    async with reading(source, bus, **SMALL_FRAMES):
        full = (START_LSN + 1, b"m" * (FRAME_BYTES - frame.ENTRY_OVERHEAD_BYTES))
        source.send(full, Keepalive(START_LSN + 8, reply_wanted=False))
        await asyncio.sleep(0.1)
        assert publisher.entries == [full, (START_LSN + 8, b"")]


@on_virtual_time
async def test_without_credit_nothing_is_read_and_the_slot_keeps_it() -> None:
    source, bus, publisher = await begun()
    publisher.consumes = False
    message = (START_LSN + 1, b"m" * 60_000)
    async with reading(source, bus, in_flight_bytes_max="65536") as one:
        for _ in range(4):
            await asyncio.sleep(0.1)
            source.send(message)
        await asyncio.sleep(20)
        assert len(publisher.entries) == 2
        assert len(source.waiting) == 2
        assert one.figures["credit_bytes"] == 0
        assert one.figures["in_flight_bytes"] > 2 * 60_000
        assert source.statuses[-1].at > time.monotonic() - 2, "it still reports"
        assert FrameKind.PING in kinds(bus)[-2:]
        assert one.figures["epochs"] == 1, "what is not read can't be missed"
        publisher.consumes = True
        publisher.confirm()
        await asyncio.sleep(0.01)
        assert publisher.entries == [message] * 4
        assert one.figures["in_flight_bytes"] == 0
        assert one.figures["credit_bytes"] == 65536


@on_virtual_time
async def test_each_part_of_a_large_message_waits_for_credit_and_ends_with_the_epoch() -> None:
    source, bus, publisher = await begun()
    publisher.consumes = False
    async with reading(source, bus, **SMALL_FRAMES) as one:
        await asyncio.sleep(0.1)
        source.send((START_LSN + 1, b"m" * 200_000), (START_LSN + 2, b"next"))
        await asyncio.sleep(20)
        parts = kinds(bus).count(FrameKind.PART)
        assert parts * FRAME_BYTES <= 65536 < (parts + 1) * (FRAME_BYTES + 100)
        assert source.statuses[-1].at > time.monotonic() - 2
        publisher.restart("a publish failed")
        await asyncio.sleep(0.1)
        assert kinds(bus).count(FrameKind.PART) == parts
        assert publisher.entries == []
        assert one.figures["epochs"] == 2
        publisher.consumes = True
        source.send((START_LSN + 1, b"m" * 200_000), (START_LSN + 2, b"next"))
        await asyncio.sleep(1)
        assert publisher.entries == [(START_LSN + 1, b"m" * 200_000), (START_LSN + 2, b"next")]


@on_virtual_time
async def test_while_nats_is_away_nothing_is_read_and_nothing_is_sent() -> None:
    source, bus, publisher = await begun()
    async with reading(source, bus) as one:
        await asyncio.sleep(1)
        bus.is_connected = False
        await asyncio.sleep(1)
        sent = len(bus.frames)
        source.send((START_LSN + 1, b"m"))
        await asyncio.sleep(20)
        assert len(bus.frames) == sent
        assert len(source.waiting) == 1
        assert one.figures["pg_connected"] == 1
        bus.is_connected = True
        await asyncio.sleep(1)
        assert publisher.entries == [(START_LSN + 1, b"m")]


@on_virtual_time
async def test_an_idle_epoch_is_pinged_at_intervals() -> None:
    source, bus, _ = await begun()
    async with reading(source, bus):
        await asyncio.sleep(0.1)
        before = len(bus.frames)
        await asyncio.sleep(20 * PING_INTERVAL_S)
        pings = kinds(bus)[before:]
        assert set(pings) == {FrameKind.PING}
        assert 18 <= len(pings) <= 20


@on_virtual_time
async def test_a_traced_frame_is_timed_until_a_confirmer_has_consumed_it() -> None:
    source, bus, _ = await begun()
    async with reading(source, bus) as one:
        one.scope.health.traces.every = 2
        for number in range(4):
            source.send((START_LSN + number, b"m"))
            await asyncio.sleep(0.1)
        spans = one.scope.health.traces.taken()
    assert [span.frame.rpartition("-")[2] for span in spans] == ["2", "4"]
    assert all(0.001 < span.ended_s - span.began_s < 0.1 for span in spans)
    assert spans[0].attributes["confirmer"] == "publisher"


# Status updates to PostgreSQL.


@on_virtual_time
async def test_postgresql_hears_at_intervals_what_is_durable_and_nothing_else() -> None:
    source, bus, publisher = await begun()
    async with reading(source, bus, status_interval_s="2") as one:
        await asyncio.sleep(0.1)
        source.send((START_LSN + 8, b"m"))
        await asyncio.sleep(10)
        assert set(source.confirmed) == {START_LSN}
        assert 5 <= len(source.statuses) <= 7
        publisher.confirm(START_LSN + 8)
        await asyncio.sleep(2.1)
        assert source.confirmed[-1] == START_LSN + 8
        assert source.statuses[-1].received == START_LSN + 8
        assert one.figures["confirmed_lsn"] == START_LSN + 8
        publisher.confirm(START_LSN + 100)
        await asyncio.sleep(2.1)
        assert source.statuses[-1].received == START_LSN + 100


@on_virtual_time
async def test_much_that_is_durable_is_reported_before_the_interval_ends() -> None:
    source, bus, publisher = await begun()
    async with reading(source, bus, status_interval_s="30"):
        await asyncio.sleep(1)
        publisher.confirm(START_LSN + STATUS_BYTES_MAX - 1)
        await asyncio.sleep(5)
        assert set(source.confirmed) == {START_LSN}
        publisher.confirm(START_LSN + STATUS_BYTES_MAX)
        await asyncio.sleep(0.1)
        assert source.confirmed[-1] == START_LSN + STATUS_BYTES_MAX


@on_virtual_time
async def test_what_was_reported_is_not_taken_back_when_a_new_epoch_knows_less() -> None:
    source, bus, publisher = await begun()
    async with reading(source, bus) as one:
        await asyncio.sleep(0.1)
        publisher.confirm(START_LSN + 8)
        await asyncio.sleep(1.5)
        publisher.restart("a publish failed")
        await asyncio.sleep(0.1)
        assert one.figures["confirmed_lsn"] == START_LSN, "the slot's, as PostgreSQL shows it"
    of_the_first = source.confirmed[: source.confirmed.index(START_LSN + 8) + 1]
    assert of_the_first == sorted(of_the_first)


@on_virtual_time
async def test_a_walsender_that_wants_an_answer_gets_one_at_once_for_all_it_asked() -> None:
    source, bus, _ = await begun()
    async with reading(source, bus, status_interval_s="30"):
        await asyncio.sleep(1)
        before = len(source.statuses)
        for wanted in (True, False, True, False):
            source.keepalive(START_LSN, reply_wanted=wanted)
        await asyncio.sleep(0.1)
        assert len(source.statuses) == before + 1
        source.keepalive(START_LSN)
        await asyncio.sleep(0.1)
        assert len(source.statuses) == before + 1
