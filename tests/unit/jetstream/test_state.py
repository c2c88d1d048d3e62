"""Values written by compare-and-set, the suite's identity, and leases."""

from __future__ import annotations

import asyncio
import time
from unittest import mock

import msgpack
import pytest
from nats.errors import Error as NatsError

from headrace.errors import HeadraceError
from headrace.jetstream.errors import MissingObjectError
from headrace.jetstream.state import (
    Cell,
    ForeignStateError,
    Lease,
    LostRaceError,
    bucket_patiently,
    known_identity,
    suite_identity,
)
from headrace.process.health import Health
from headrace.process.lifecycle import Scope
from headrace.settings import ProcessSettings, load
from tests.support.simulated_nats import SimulatedNats, simulated_nats
from tests.support.virtual_time import on_virtual_time

SETTINGS = load({})
TTL_S = 4.0


async def cell(nats: SimulatedNats, key: str = "key") -> Cell:
    return Cell(await nats.state(), key)


def stands_by(scope: Scope) -> bool:
    return scope.health.standing_by


def scope() -> Scope:
    return Scope("publisher", ProcessSettings(), mock.Mock(), Health("publisher"))


@on_virtual_time
async def test_a_write_replaces_only_what_was_read() -> None:
    async with simulated_nats(SETTINGS) as nats:
        one, other = await cell(nats), await cell(nats)
        assert await one.read() is None
        await one.write({"a": 1})
        with pytest.raises(LostRaceError):
            await other.write({"a": 2})
        assert await other.read() == {"a": 1}
        await other.write({"a": 2})
        await other.write({"a": 3})
        with pytest.raises(LostRaceError):
            await one.write({"a": 4})
        assert (one.value, other.value) == ({"a": 1}, {"a": 3})
        assert await one.read() == {"a": 3}


@on_virtual_time
async def test_a_deleted_value_is_gone_and_may_be_written_again() -> None:
    async with simulated_nats(SETTINGS) as nats:
        one, other = await cell(nats), await cell(nats)
        await one.write({"a": 1})
        await one.delete()
        assert await other.read() is None
        await other.write({"a": 2})
        assert await one.read() == {"a": 2}


@pytest.mark.parametrize("data", [b"\xc1", b"text of another program", msgpack.packb([1])])
@on_virtual_time
async def test_what_the_suite_did_not_write_is_neither_used_nor_overwritten(data: bytes) -> None:
    async with simulated_nats(SETTINGS) as nats:
        await (await nats.state()).put("key", data)
        with pytest.raises(ForeignStateError):
            await (await cell(nats)).read()


@on_virtual_time
async def test_an_identity_is_created_once_whoever_asks_first() -> None:
    async with simulated_nats(SETTINGS) as nats:
        assert await known_identity(await nats.state()) == ""
        found = await asyncio.gather(*[suite_identity(await nats.state()) for _ in range(5)])
        assert len(set(found)) == 1
        assert found[0]
        assert await known_identity(await nats.state()) == found[0]


@pytest.mark.parametrize("kept", [{}, {"suite": 7}, {"suite": "not hexadecimal"}])
@on_virtual_time
async def test_an_identity_that_is_none_is_foreign(kept: dict[str, object]) -> None:
    async with simulated_nats(SETTINGS) as nats:
        await (await cell(nats, "identity")).write(kept)
        for ask in (suite_identity, known_identity):
            with pytest.raises(ForeignStateError):
                await ask(await nats.state())


async def lease(nats: SimulatedNats, holder: str) -> Lease:
    return Lease(await cell(nats, "lease"), holder, TTL_S)


@on_virtual_time
async def test_a_free_lease_is_taken_at_once_and_a_released_one_soon() -> None:
    async with simulated_nats(SETTINGS) as nats:
        first, second = await lease(nats, "first"), await lease(nats, "second")
        own, other = scope(), scope()
        assert await first.acquire(own)
        waiting = asyncio.ensure_future(second.acquire(other))
        await asyncio.sleep(1)
        assert not waiting.done()
        assert "is held by first" in other.health.reasons["lease"]
        await first.release()
        began = time.monotonic()
        assert await waiting
        assert time.monotonic() - began < 1
        assert "lease" not in other.health.reasons


@on_virtual_time
async def test_a_process_is_a_standby_once_it_could_work() -> None:
    refusals = [HeadraceError("a wrong password")] * 2

    async def check() -> None:
        if refusals:
            raise refusals.pop()

    async with simulated_nats(SETTINGS) as nats:
        first, second = await lease(nats, "first"), await lease(nats, "second")
        keeper, other = scope(), scope()
        assert await first.acquire(keeper)
        keeping = asyncio.ensure_future(first.keep(keeper))
        waiting = asyncio.ensure_future(second.acquire(other, check))
        await asyncio.sleep(TTL_S)
        assert other.health.reasons["lease"] == "could not take over: a wrong password"
        assert not stands_by(other)
        await asyncio.sleep(3 * TTL_S)
        assert "is held by first" in other.health.reasons["lease"]
        assert stands_by(other)
        other.health.block("bus", "NATS is away")
        assert not stands_by(other)
        keeper.stopping.set()
        await keeping
        await first.release()
        assert await waiting
        assert not stands_by(other)


@on_virtual_time
async def test_of_two_that_find_a_lease_free_at_the_same_moment_one_takes_it() -> None:
    async with simulated_nats(SETTINGS) as nats:
        here = scope()
        leases = [Lease(await cell(nats, "lease"), holder, TTL_S) for holder in ("a", "b")]
        both = [asyncio.ensure_future(lease.acquire(here)) for lease in leases]
        await asyncio.sleep(TTL_S / 2)
        assert [one.done() for one in both].count(True) == 1
        here.stopping.set()
        assert sorted(await asyncio.gather(*both)) == [False, True]


@on_virtual_time
async def test_a_bucket_that_cannot_be_read_is_waited_for_and_reported_meanwhile() -> None:
    async with simulated_nats(SETTINGS) as nats:
        here = scope()
        client = nats.client()
        nats.server.stop()
        waiting = asyncio.ensure_future(
            bucket_patiently(here, client.jetstream(), SETTINGS.streams.state)
        )
        await asyncio.sleep(20)
        assert "jetstream" in here.health.reasons
        nats.server.start()
        assert await asyncio.wait_for(waiting, 60) is not None
        assert "jetstream" not in here.health.reasons
        here.stopping.set()
        assert await bucket_patiently(here, client.jetstream(), SETTINGS.streams.state) is None


@on_virtual_time
async def test_a_lease_that_is_renewed_is_kept_and_one_that_is_not_is_taken_after_its_time() -> (
    None
):
    async with simulated_nats(SETTINGS) as nats:
        first, second = await lease(nats, "first"), await lease(nats, "second")
        own = scope()
        assert await first.acquire(own)
        keeping = asyncio.ensure_future(first.keep(own))
        waiting = asyncio.ensure_future(second.acquire(scope()))
        await asyncio.sleep(10 * TTL_S)
        assert not waiting.done()
        assert not keeping.done()
        keeping.cancel()
        began = time.monotonic()
        assert await waiting
        assert TTL_S * 2 / 3 - 0.5 <= time.monotonic() - began <= TTL_S + 0.5


@on_virtual_time
async def test_a_holder_that_slept_learns_that_another_has_the_lease() -> None:
    async with simulated_nats(SETTINGS) as nats:
        first, second = await lease(nats, "first"), await lease(nats, "second")
        own = scope()
        assert await first.acquire(own)
        assert await second.acquire(scope())
        with pytest.raises(LostRaceError, match="another process took lease"):
            await first.keep(own)


@on_virtual_time
async def test_a_lease_that_was_removed_is_not_reported_as_taken_by_another_process() -> None:
    async with simulated_nats(SETTINGS) as nats:
        first = await lease(nats, "first")
        own = scope()
        assert await first.acquire(own)
        removed = await cell(nats, "lease")
        await removed.read()
        await removed.delete()
        with pytest.raises(LostRaceError, match="lease is gone from the state bucket"):
            await first.keep(own)


@on_virtual_time
async def test_a_bucket_that_is_gone_ends_its_holder_and_those_who_wait() -> None:
    async with simulated_nats(SETTINGS) as nats:
        first, second = await lease(nats, "first"), await lease(nats, "second")
        own = scope()
        assert await first.acquire(own)
        nats.server.streams.clear()
        with pytest.raises(MissingObjectError, match="that contains lease is missing"):
            await first.keep(own)
        with pytest.raises(MissingObjectError, match="that contains lease is missing"):
            await second.acquire(scope())


@on_virtual_time
async def test_a_server_that_finds_its_store_late_costs_no_lease() -> None:
    async with simulated_nats(SETTINGS) as nats:
        first = await lease(nats, "first")
        own = scope()
        assert await first.acquire(own)
        keeping = asyncio.ensure_future(first.keep(own))
        streams = dict(nats.server.streams)
        nats.server.streams.clear()
        await asyncio.sleep(TTL_S / 3 + 0.5)
        nats.server.streams.update(streams)
        await asyncio.sleep(2 * TTL_S)
        assert not keeping.done()
        own.stopping.set()
        await keeping


@on_virtual_time
async def test_a_renewal_whose_answer_was_lost_is_not_a_lost_lease() -> None:
    async with simulated_nats(SETTINGS) as nats:
        first = await lease(nats, "first")
        own = scope()
        assert await first.acquire(own)
        # Written by this process, which did not hear of it.
        again = await cell(nats, "lease")
        await again.read()
        await again.write({"holder": "first"})
        keeping = asyncio.ensure_future(first.keep(own))
        await asyncio.sleep(3 * TTL_S)
        assert not keeping.done()
        own.stopping.set()
        await keeping


@on_virtual_time
async def test_an_acquisition_whose_answer_was_lost_needs_no_waiting() -> None:
    async with simulated_nats(SETTINGS) as nats:
        assert await (await lease(nats, "first")).acquire(scope())
        began = time.monotonic()
        assert await (await lease(nats, "first")).acquire(scope())
        assert time.monotonic() - began < 0.5


@on_virtual_time
async def test_time_in_which_the_lease_could_not_be_read_does_not_count_as_silence() -> None:
    async with simulated_nats(SETTINGS) as nats:
        assert await (await lease(nats, "first")).acquire(scope())
        second = await lease(nats, "second")
        own = scope()
        waiting = asyncio.ensure_future(second.acquire(own))
        await asyncio.sleep(TTL_S / 2)
        with mock.patch.object(Cell, "read", mock.AsyncMock(side_effect=NatsError)):
            await asyncio.sleep(TTL_S)
            assert "can't be read" in own.health.reasons["lease"]
        began = time.monotonic()
        assert await waiting
        assert time.monotonic() - began >= TTL_S - 1


@on_virtual_time
async def test_a_stop_ends_the_waiting_for_a_lease() -> None:
    async with simulated_nats(SETTINGS) as nats:
        assert await (await lease(nats, "first")).acquire(scope())
        own = scope()
        waiting = asyncio.ensure_future((await lease(nats, "second")).acquire(own))
        await asyncio.sleep(1)
        own.stopping.set()
        assert await waiting is False
