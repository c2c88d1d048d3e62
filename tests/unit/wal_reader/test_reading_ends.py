"""The wal-reader's service stops, waits and fails, and the confirmers that it waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
from nats.errors import Error as NatsError

from headrace.bus.frame import FrameKind, Opening
from headrace.bus.participation import BusClosedError
from headrace.lsn import format_lsn
from headrace.postgres.connection import PostgresUnreachableError
from headrace.postgres.replication_errors import (
    ReplicationRefusedError,
    SlotBusyError,
    StandbyError,
)
from headrace.postgres.slot_reader import SlotReader
from headrace.wal_reader.service import (
    BACKOFF_S,
    BACKOFF_S_MAX,
    DRAIN_SHARE,
    HELLO_INTERVAL_S,
    PING_INTERVAL_S,
    SILENT_CONFIRMER_S,
    STANDBY_POLL_S,
)
from tests.support.reading import (
    OUR_NAME,
    START_LSN,
    Bus,
    Confirmer,
    Source,
    begun,
    kinds,
    reading,
)
from tests.support.virtual_time import on_virtual_time

ARCHIVE = {"archive_url": "file:///archive"}
REQUIRED = {**ARCHIVE, "archive_required": "true"}


# Stopping.


@on_virtual_time
async def test_a_stop_waits_until_what_is_in_flight_is_durable_and_reports_it() -> None:
    source, bus, publisher = await begun()
    publisher.settled = False
    async with reading(source, bus, status_interval_s="30") as one:
        await asyncio.sleep(1)
        source.send((START_LSN + 8, b"m"))
        await asyncio.sleep(0.1)
        publisher.receiver.confirmed_lsn = START_LSN + 8
        began = time.monotonic()
        await one.stop()
        assert time.monotonic() - began < 0.2
    assert publisher.asked_to_flush >= 1
    assert source.confirmed[-1] == START_LSN + 8


@on_virtual_time
async def test_a_stop_with_nothing_in_flight_asks_nobody() -> None:
    source, bus, publisher = await begun()
    async with reading(source, bus) as one:
        source.send((START_LSN + 8, b"m"))
        await asyncio.sleep(1)
        began = time.monotonic()
        await one.stop()
        assert time.monotonic() - began < 0.01
    assert publisher.asked_to_flush == 0


@pytest.mark.parametrize("silent", [True, False])
@on_virtual_time
async def test_a_stop_does_not_wait_for_confirmers_that_are_gone_nor_too_long_for_busy_ones(
    silent: bool,
) -> None:
    source, bus, publisher = await begun()
    publisher.settled = publisher.flushes = False
    async with reading(source, bus, shutdown_timeout_s="20") as one:
        source.send((START_LSN + 8, b"m"))
        await asyncio.sleep(3)
        publisher.silent = silent
        began = time.monotonic()
        await one.stop()
        took = time.monotonic() - began
    limit = SILENT_CONFIRMER_S if silent else 20 * DRAIN_SHARE
    assert limit - PING_INTERVAL_S <= took <= limit + 0.2
    assert source.confirmed[-1] == START_LSN


@on_virtual_time
async def test_a_restart_during_a_stop_ends_it() -> None:
    source, bus, publisher = await begun()
    publisher.settled = publisher.flushes = False
    async with reading(source, bus) as one:
        source.send((START_LSN + 8, b"m"))
        await asyncio.sleep(1)
        one.scope.stopping.set()
        await asyncio.sleep(0.5)
        assert not one.task.done()
        publisher.restart("a publish failed")
        await asyncio.sleep(0.2)
        assert one.task.done()


@on_virtual_time
async def test_a_stop_is_noticed_at_once_while_waiting_for_postgresql() -> None:
    source, bus, _ = await begun()
    async with reading(source, bus, status_interval_s="60") as one:
        await asyncio.sleep(1.2)
        began = time.monotonic()
        await one.stop()
        assert time.monotonic() - began < 0.01


# Waiting for confirmers.


@on_virtual_time
async def test_confirmers_are_called_until_they_join_and_nothing_is_read_before() -> None:
    await asyncio.sleep(1000.0)
    source, bus = Source(), Bus()
    async with reading(source, bus) as one:
        await asyncio.sleep(10 * HELLO_INTERVAL_S)
        assert set(kinds(bus)) == {FrameKind.HELLO}
        assert 9 <= len(bus.frames) <= 11
        assert one.reasons["bus"] == "waiting for publisher"
        assert source.opened_at == []
        assert one.figures["pg_connected"] == 0
        assert (one.figures["received_lsn"], one.figures["confirmed_lsn"]) == (0, 0)
        publisher = Confirmer(bus)
        bus.say(publisher.receiver.join())
        await asyncio.sleep(0.01)
        assert len(publisher.openings) == 1
        assert one.reasons == {}


@on_virtual_time
async def test_a_confirmer_that_has_joined_and_answers_each_call_is_called_no_more_often() -> None:
    source, bus, _ = await begun()
    async with reading(source, bus, **REQUIRED) as one:
        await asyncio.sleep(10 * HELLO_INTERVAL_S)
        assert one.reasons["bus"] == "waiting for archiver"
        assert 9 <= len(bus.frames) <= 11


@on_virtual_time
async def test_while_nats_is_away_nobody_is_called_and_nothing_is_opened() -> None:
    source, bus, _ = await begun()
    bus.is_connected = False
    async with reading(source, bus) as one:
        await asyncio.sleep(10)
        assert bus.frames == []
        assert one.reasons["bus"] == "waiting for publisher"
        bus.is_connected = True
        await asyncio.sleep(1)
        bus.is_connected = False
        source.walsender.broken = PostgresUnreachableError("gone")
        source.walsender.interrupt()
        await asyncio.sleep(1)
        opened = len(source.opened_at)
        await asyncio.sleep(10)
        assert len(source.opened_at) == opened
        assert one.reasons["bus"] == "waiting for NATS"


@on_virtual_time
async def test_a_nats_client_that_gave_up_ends_the_service() -> None:
    source, bus, _ = await begun()
    asyncio.get_running_loop().call_later(1, setattr, bus, "is_closed", True)
    with pytest.raises(BusClosedError):
        async with reading(source, bus):
            await asyncio.sleep(3)


@on_virtual_time
async def test_a_malformed_control_message_is_ignored() -> None:
    source, bus, publisher = await begun()
    async with reading(source, bus) as one:
        await asyncio.sleep(1)
        bus.say(b"garbage")
        await asyncio.sleep(1)
        assert (one.figures["epochs"], len(publisher.openings)) == (1, 1)


# Failures.


async def until(holds: Callable[[], bool]) -> None:
    # On virtual time, asking again costs nothing.
    while not holds():  # noqa: ASYNC110  # there is no event for it
        await asyncio.sleep(0.01)


def more_than(number: int, found: list[Opening]) -> bool:
    return len(found) > number


def pauses(source: Source) -> list[float]:
    return [later - earlier for earlier, later in pairwise(source.opened_at)]


@on_virtual_time
async def test_an_unreachable_server_is_tried_again_after_growing_pauses() -> None:
    source, bus, publisher = await begun()
    source.refusals.extend([PostgresUnreachableError("no answer")] * 8)
    async with reading(source, bus) as one:
        await asyncio.sleep(5)
        assert one.reasons["postgres"].startswith("no answer")
        assert publisher.openings == []
        await asyncio.sleep(60)
        assert one.reasons == {}
        assert len(publisher.openings) == 1
    limits = [min(BACKOFF_S * 2**number, BACKOFF_S_MAX) for number in range(8)]
    for pause, limit in zip(pauses(source), limits, strict=False):
        assert limit / 2 <= pause <= limit


async def pause_after_a_failure(source: Source) -> float:
    """The walsender that streams fails: how long until the next attempt."""
    failed_at = time.monotonic()
    attempts = len(source.opened_at)
    walsender = source.walsender
    walsender.broken = PostgresUnreachableError("gone")
    walsender.interrupt()
    await until(lambda: len(source.opened_at) > attempts)
    return source.opened_at[-1] - failed_at


@on_virtual_time
async def test_pauses_go_on_growing_until_a_connection_has_worked_for_a_while() -> None:
    source, bus, publisher = await begun()
    source.refusals.extend([PostgresUnreachableError("no answer")] * 6)
    async with reading(source, bus):
        for works_s, least, most in (
            (BACKOFF_S_MAX - 1, BACKOFF_S_MAX / 2, BACKOFF_S_MAX + 0.1),
            (BACKOFF_S_MAX + 1, 0.0, BACKOFF_S + 0.1),
        ):
            epochs = len(publisher.openings)
            await until(partial(more_than, epochs, publisher.openings))
            await asyncio.sleep(works_s)
            assert least <= await pause_after_a_failure(source) <= most


@on_virtual_time
async def test_an_epoch_that_ended_in_order_was_a_success() -> None:
    source, bus, publisher = await begun()
    source.refusals.extend([PostgresUnreachableError("no answer")] * 6)
    async with reading(source, bus):
        await until(lambda: bool(publisher.openings))
        publisher.restart("a publish failed")
        await asyncio.sleep(1)
        assert len(publisher.openings) == 2
        assert await pause_after_a_failure(source) <= BACKOFF_S + 0.1


@on_virtual_time
async def test_a_standby_and_a_busy_slot_are_tried_again_at_short_intervals() -> None:
    for refusal in (StandbyError("a standby"), SlotBusyError("read by another")):
        source, bus, publisher = await begun()
        source.refusals.extend([refusal] * 8)
        async with reading(source, bus) as one:
            await asyncio.sleep(2 * STANDBY_POLL_S)
            assert one.reasons["postgres"] == f"standing by: {refusal}"
            await asyncio.sleep(8 * STANDBY_POLL_S)
            assert len(publisher.openings) == 1
        for pause in pauses(source)[:8]:
            assert STANDBY_POLL_S / 2 <= pause <= STANDBY_POLL_S


@on_virtual_time
async def test_a_refusal_that_no_retry_mends_ends_the_service() -> None:
    source, bus, _ = await begun()
    source.refusals.append(ReplicationRefusedError("wal_level is too low"))
    with pytest.raises(ReplicationRefusedError):
        async with reading(source, bus):
            await asyncio.sleep(1)
    assert len(source.opened_at) == 1


@on_virtual_time
async def test_a_failure_of_nats_is_reported_as_one_of_the_bus() -> None:
    source, bus, _ = await begun()
    async with reading(source, bus) as one:
        await asyncio.sleep(1)
        bus.refusal = NatsError("slow")
        await asyncio.sleep(1)
        assert set(one.reasons) == {"bus"}
        bus.refusal = None
        await asyncio.sleep(5)
        assert one.reasons == {}


@on_virtual_time
async def test_a_hello_that_nats_does_not_take_is_sent_again() -> None:
    source, bus, publisher = await begun()
    bus.refusal = NatsError("slow")
    async with reading(source, bus) as one:
        await asyncio.sleep(1)
        assert one.reasons["bus"] == "slow"
        bus.refusal = None
        await asyncio.sleep(5)
        assert one.reasons == {}
        assert len(publisher.openings) == 1


@on_virtual_time
async def test_a_dead_connection_is_noticed_by_its_silence_and_an_idle_one_is_kept() -> None:
    source, bus, _ = await begun()
    async with reading(source, bus) as one:
        await asyncio.sleep(60)
        assert one.figures["epochs"] == 1
        assert any(status.answer for status in source.statuses), "it was asked for an answer"
        source.answers = False
        dead = source.walsender.backend_pid
        source.reader = SlotReader(dead, OUR_NAME, idle=True)
        await asyncio.sleep(15)
        assert one.figures["epochs"] == 2
        assert "headrace wal-reader probe" in source.names
        assert source.commands == [f"end {dead}"]


# Archives.


@on_virtual_time
async def test_an_optional_archiver_that_never_joins_is_waited_for_as_long_as_the_patience() -> (
    None
):
    source, bus, publisher = await begun()
    async with reading(source, bus, **ARCHIVE, archive_patience_s="4") as one:
        await asyncio.sleep(2.9)
        assert one.reasons["bus"] == "waiting for archiver"
        await asyncio.sleep(2.5)
        assert len(publisher.openings) == 1
        assert one.figures["confirmers_dropped"] == 1
        publisher.confirm(START_LSN + 8)
        await asyncio.sleep(1.5)
        assert source.confirmed[-1] == START_LSN + 8


@on_virtual_time
async def test_an_optional_archiver_that_stops_confirming_is_dropped_while_changes_go_on() -> None:
    source, bus, publisher = await begun()
    Confirmer(bus, "archiver")
    async with reading(source, bus, **ARCHIVE, archive_patience_s="4") as one:
        await asyncio.sleep(1)
        publisher.confirm(START_LSN + 8)
        await asyncio.sleep(3)
        assert source.confirmed[-1] == START_LSN
        await asyncio.sleep(5)
        assert source.confirmed[-1] == START_LSN + 8
        assert one.figures["confirmers_dropped"] == 1
        assert one.reasons == {}, "an optional archive makes nothing unready"


@on_virtual_time
async def test_a_required_archiver_is_never_dropped_and_is_named_while_it_holds_the_slot() -> None:
    source, bus, publisher = await begun()
    archiver = Confirmer(bus, "archiver")
    times = {"archive_patience_s": "4", "archive_file_age_max_s": "2"}
    async with reading(source, bus, **REQUIRED, **times) as one:
        await asyncio.sleep(1)
        source.send((START_LSN + 8, b"m"))
        publisher.settled = archiver.settled = False
        publisher.confirm(START_LSN + 16)
        await asyncio.sleep(5)
        assert "confirm" not in one.reasons
        await asyncio.sleep(3)
        waits = f"the slot waits at {format_lsn(START_LSN)} for archiver"
        assert one.reasons["confirm"] == waits
        await asyncio.sleep(60)
        assert source.confirmed[-1] == START_LSN
        archiver.confirm(START_LSN + 16)
        await asyncio.sleep(2)
        assert one.reasons == {}
        assert source.confirmed[-1] == START_LSN + 16


@on_virtual_time
async def test_a_required_archiver_that_starts_again_and_again_is_named_with_its_reason() -> None:
    source, bus, publisher = await begun()
    archiver = Confirmer(bus, "archiver")
    publisher.settled = archiver.settled = False
    async with reading(source, bus, **REQUIRED) as one:
        await asyncio.sleep(1)
        for _ in range(3):
            assert "confirm" not in one.reasons
            archiver.restart("the disk is full")
            await asyncio.sleep(0.02)
        await asyncio.sleep(5)
        assert one.reasons["confirm"].endswith("for archiver (the disk is full)")
