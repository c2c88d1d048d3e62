"""The publisher's sink above the simulation's nats-server: what it stores, reports and remembers."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

from headrace.bus.frame import Entry, Opening
from headrace.confirming.change_store import TICK_S, Demand, Stored, Taken
from headrace.confirming.relation_shape import RelationShape
from headrace.confirming.relations import value_options
from headrace.errors import DecodeError
from headrace.jetstream.state import Cell
from headrace.metrics.counters import Counters
from headrace.pgoutput.messages import Relation
from headrace.postgres.facts import TableFacts
from headrace.process.health import Health
from headrace.process.lifecycle import Scope
from headrace.publisher import damage, run_parts
from headrace.publisher.change_store import WRITING_TICK_S, StreamChangeStore
from headrace.publisher.doubt import Doubt
from headrace.publisher.lag import AckLag
from headrace.publisher.resume_point import SourceDivergedError
from headrace.settings import Settings, load
from tests.support.simulated_nats import SimulatedNats, simulated_nats
from tests.support.virtual_time import on_virtual_time

SLOT = "shop"
TABLE = 16384
TEXT = 25
BEGAN_LSN = 0x100
MODES = ("event", "batch", "transaction")
each_mode = pytest.mark.parametrize("mode", MODES)


def settings(mode: str = "event", **variables: str) -> Settings:
    names = {f"HEADRACE_{name.upper()}": value for name, value in variables.items()}
    return load(
        {
            "HEADRACE_SLOT": SLOT,
            "HEADRACE_DELIVERY": mode,
            "HEADRACE_ENCODING": "json",
            "HEADRACE_PROGRESS_INTERVAL_S": "0.5",
            "HEADRACE_BATCH_AGE_MAX_S": "0.1",
            **names,
        }
    )


def opening(confirmed: int = BEGAN_LSN, *, system_id: str = "7000", end: int = 0x9000) -> Opening:
    return Opening({}, SLOT, "db", system_id, 1, confirmed, end)


def described() -> Entry:
    column = b"\1id\0" + struct.pack(">Ii", TEXT, -1)
    return 0, b"R" + struct.pack(">I", TABLE) + b"public\0users\0d\0\1" + column


def row(lsn: int, text: str) -> Entry:
    value = struct.pack(">I", len(text)) + text.encode()
    return lsn, b"I" + struct.pack(">I", TABLE) + b"N\0\1t" + value


def transaction(commit: int, *texts: str) -> list[Entry]:
    """Ends 8 bytes behind its commit."""
    return [
        (commit, b"B" + struct.pack(">QqI", commit, 0, 7)),
        *[row(commit - 8, text) for text in texts],
        (commit + 8, b"C\0" + struct.pack(">QQq", commit, commit + 8, 0)),
    ]


FIRST, *REST = transaction(0x200, "a", "b")
LOG = [FIRST, described(), *REST, *transaction(0x300, "c"), (0x400, b"")]


class Catalog:
    """In place of what asks PostgreSQL."""

    def __init__(self, of: Settings) -> None:
        self._options = value_options(of)

    async def describe(self, _scope: Scope, relation: Relation, _xid: int) -> RelationShape:
        return RelationShape.of(relation, TableFacts(("id",)), self._options)


class Run:
    """One run of the publisher."""

    def __init__(
        self, scope: Scope, sink: StreamChangeStore, nats: SimulatedNats, doubt: Doubt
    ) -> None:
        self.scope = scope
        self.doubt = doubt
        self.sink = sink
        self.nats = nats

    async def take(self, *entries: Entry) -> Stored:
        return await self.sink.take(Taken("a-1", entries))

    async def rest(self, seconds: float) -> Stored:
        """Nothing comes for a while: the sink is asked as often as it wants."""
        until = time.monotonic() + seconds
        stored = await self.sink.store(Demand.MORE)
        while time.monotonic() < until:
            await asyncio.sleep(stored.again_s)
            stored = await self.sink.store(Demand.MORE)
        return stored

    def figure(self, key: str) -> float:
        return self.scope.health.stats.number(key)


@asynccontextmanager
async def running(
    nats: SimulatedNats, of: Settings, *, healed: list[int] | None = None
) -> AsyncIterator[Run]:
    scope = Scope("publisher", of.process, mock.Mock(), Health("publisher"))
    watch = SimpleNamespace(due=lambda *_: None)
    doubt = Doubt(lambda: healed.append(1) if healed is not None else None)
    lag = AckLag(scope.health.stats, scope.health.traces)
    async with run_parts.opened(nats.client(), of, scope.health.stats) as parts:
        sink = StreamChangeStore(
            scope, parts, cast("Any", Catalog(of)), cast("Any", watch), lag, doubt
        )
        try:
            yield Run(scope, sink, nats, doubt)
        finally:
            await sink.close()


async def deliver_log(nats: SimulatedNats, of: Settings) -> None:
    async with running(nats, of) as one:
        await one.sink.on_epoch(opening())
        await one.take(*LOG)
        await one.rest(2.0)


def told(nats: SimulatedNats) -> list[str]:
    """The rows of the stream, in its order; gaps by their reason."""
    found = []
    for message in nats.stored:
        body = json.loads(message.payload)
        for event in body if isinstance(body, list) else [body]:
            if event["operation"] == "GAP":
                found.append(f"{event['reason']} {event['after']} {event['up_to']}")
            elif event["operation"] != "SCHEMA":
                found.append(event["data"]["id"])
    return found


async def progress(nats: SimulatedNats) -> dict[str, Any]:
    kept = await Cell(await nats.state(), f"progress.{SLOT}").read()
    return dict(kept or {})


@each_mode
@on_virtual_time
async def test_changes_are_stored_in_order_and_reported_up_to_the_end_of_the_log(mode: str) -> None:
    of = settings(mode)
    async with simulated_nats(of) as nats, running(nats, of) as one:
        await one.sink.on_epoch(opening())
        stored = await one.take(*LOG)
        assert stored.waiting
        assert stored.lsn == 0
        stored = await one.rest(2.0)
        assert told(nats) == ["a", "b", "c"]
        assert (stored.lsn, stored.waiting, stored.again_s) == (0x400, False, TICK_S)
        assert one.figure("confirmed_lsn") == 0x400
        assert one.figure("window_messages") == 0
        assert one.figure("transactions") == 2
        kept = await progress(nats)
        assert (kept["confirmed_lsn"], kept["system_id"]) == (0x400, "7000")
        assert kept["position"][0] == 0x300


@each_mode
@on_virtual_time
async def test_nothing_counts_as_stored_before_the_progress_that_says_so_is_written(
    mode: str,
) -> None:
    of = settings(mode)
    async with simulated_nats(of) as nats, running(nats, of) as one:
        await one.sink.on_epoch(opening())
        write = Cell.write
        gate = asyncio.Event()

        async def slow(cell: Cell, value: Any) -> None:
            if cell.key.startswith("progress."):
                await gate.wait()
            await write(cell, value)

        with mock.patch.object(Cell, "write", slow):
            await one.take(*LOG)
            stored = await one.rest(5.0)
            assert told(nats) == ["a", "b", "c"], "events don't wait for it"
            assert stored.lsn == 0
            assert stored.again_s == WRITING_TICK_S
            gate.set()
            assert (await one.rest(1.0)).lsn == 0x400


@each_mode
@on_virtual_time
async def test_a_stop_stores_everything_that_is_whole_and_waits_for_it(mode: str) -> None:
    of = settings(mode, progress_interval_s="60", batch_age_max_s="60")
    async with simulated_nats(of) as nats, running(nats, of) as one:
        await one.sink.on_epoch(opening())
        await one.take(*LOG)
        stored = await one.sink.store(Demand.ALL)
        assert told(nats) == ["a", "b", "c"]
        assert (stored.lsn, stored.waiting) == (0x400, False)
        assert (await progress(nats))["confirmed_lsn"] == 0x400


# The pipe of whole transactions subscribes to nothing.
@pytest.mark.parametrize("mode", ["event", "batch"])
@on_virtual_time
async def test_the_end_of_a_run_leaves_no_subscription(mode: str) -> None:
    of = settings(mode)
    async with simulated_nats(of) as nats:
        client = nats.client()
        async with run_parts.opened(client, of, Counters()):
            assert client._subs
        assert not client._subs


@each_mode
@on_virtual_time
async def test_a_restart_and_a_new_epoch_store_nothing_again(mode: str) -> None:
    of = settings(mode)
    async with simulated_nats(of) as nats:
        async with running(nats, of) as one:
            for epoch in range(2):
                await one.sink.on_epoch(opening())
                await one.take(*LOG)
                assert (await one.rest(2.0)).lsn == 0x400
                assert one.figure("skipped_events") == 3 * epoch
        async with running(nats, of) as heir:
            await heir.sink.on_epoch(opening())
            await heir.take(*LOG, *transaction(0x500, "d"))
            assert (await heir.rest(2.0)).lsn == 0x508
            assert heir.figure("skipped_events") == 3
        assert told(nats) == ["a", "b", "c", "d"]


@each_mode
@on_virtual_time
async def test_after_a_crash_without_progress_the_stream_itself_says_what_is_there(
    mode: str,
) -> None:
    of = settings(mode, progress_interval_s="600")
    async with simulated_nats(of) as nats:
        async with running(nats, of) as one:
            await one.sink.on_epoch(opening())
            await one.take(*LOG)
            await one.rest(1.0)
            assert told(nats) == ["a", "b", "c"]
        async with running(nats, of) as heir:
            await heir.sink.on_epoch(opening())
            await heir.take(*LOG)
            await heir.sink.store(Demand.ALL)
        assert told(nats) == ["a", "b", "c"]


@on_virtual_time
async def test_a_slot_that_moved_leaves_a_gap_that_is_reported_once() -> None:
    of = settings()
    async with simulated_nats(of) as nats:
        await deliver_log(nats, of)
        for number in range(2):
            async with running(nats, of) as heir:
                await heir.sink.on_epoch(opening(0x600))
                assert heir.figure("gaps") == (1 if number == 0 else 0)
                assert told(nats) == ["a", "b", "c", "slot_moved 0/400 0/600"]
        async with running(nats, of) as last:
            await last.sink.on_epoch(opening(0x600))
            begin, *rest = transaction(0x700, "d")
            await last.take(begin, described(), *rest)
            assert (await last.rest(2.0)).lsn == 0x708
        assert told(nats)[-1] == "d"


@on_virtual_time
async def test_what_the_stream_lost_and_the_slot_no_longer_has_is_a_gap_once_in_a_run() -> None:
    of = settings()
    async with simulated_nats(of) as nats:
        async with running(nats, of) as one:
            await one.sink.on_epoch(opening())
            await one.take(*LOG)
            await one.rest(2.0)
        last = next(message for message in nats.stored if b'"c"' in message.payload)
        nats.cdc.lose_tail(last.seq - 1, 0.0)
        async with running(nats, of) as heir:
            for _ in range(2):
                await heir.sink.on_epoch(opening(0x400))
                assert heir.figure("gaps") == 1
        assert told(nats) == ["a", "b", "stream_tail_lost 0/200 0/400"]


@on_virtual_time
async def test_a_run_has_progressed_once_it_stored_something() -> None:
    of = settings()
    async with simulated_nats(of) as nats, running(nats, of) as one:
        await one.sink.on_epoch(opening())
        await one.rest(2.0)
        assert not one.doubt.progressed
        await one.take(*LOG)
        await one.rest(2.0)
        assert one.doubt.progressed


@on_virtual_time
async def test_another_server_is_refused_and_the_stream_says_so_once() -> None:
    of = settings()
    async with simulated_nats(of) as nats:
        await deliver_log(nats, of)
        for _ in range(2):
            async with running(nats, of) as heir:
                with pytest.raises(SourceDivergedError):
                    await heir.sink.on_epoch(opening(system_id="8000"))
        assert told(nats) == ["a", "b", "c", "source_diverged 0/300 0/9000"]


@on_virtual_time
async def test_a_server_that_lost_what_was_just_delivered_is_refused_in_the_same_run() -> None:
    of = settings(progress_interval_s="600")
    async with simulated_nats(of) as nats, running(nats, of) as one:
        await one.sink.on_epoch(opening())
        await one.take(*LOG)
        with pytest.raises(SourceDivergedError):
            await one.sink.on_epoch(opening(end=0x2FF))


@on_virtual_time
async def test_the_bridges_consumers_get_no_gaps() -> None:
    of = settings(compat="bridge")
    async with simulated_nats(of) as nats:
        async with running(nats, of) as one:
            await one.sink.on_epoch(opening())
            await one.take(*LOG)
            await one.rest(2.0)
            stored = len(nats.stored)
        async with running(nats, of) as heir:
            await heir.sink.on_epoch(opening(0x600))
            assert heir.figure("gaps") == 1
        async with running(nats, of) as heir:
            with pytest.raises(SourceDivergedError):
                await heir.sink.on_epoch(opening(0x600, system_id="8000"))
        assert len(nats.stored) == stored


@on_virtual_time
async def test_progress_is_written_at_intervals_and_only_when_it_is_news() -> None:
    of = settings(progress_interval_s="2")
    async with simulated_nats(of) as nats, running(nats, of) as one:
        await one.sink.on_epoch(opening())
        written: list[float] = []
        write = Cell.write

        async def noted(cell: Cell, value: Any) -> None:
            written.append(time.monotonic())
            await write(cell, value)

        with mock.patch.object(Cell, "write", noted):
            for number in range(20):
                await one.take((0x400 + number, b""))
                await one.rest(0.5)
            assert 4 <= len(written) <= 6
            await one.rest(3.0)
            written.clear()
            await one.rest(20.0)
            assert written == []


@on_virtual_time
async def test_an_lsn_is_held_back_until_the_servers_disk_has_it() -> None:
    of = settings(durability="sync", jetstream_sync_s="10")
    async with simulated_nats(of) as nats, running(nats, of) as one:
        await one.sink.on_epoch(opening())
        await one.take(*LOG)
        assert (await one.rest(of.delivery.hold_s - 1)).lsn == 0
        assert (await one.rest(2.0)).lsn == 0x400


@on_virtual_time
async def test_a_doubt_is_over_when_what_was_read_before_it_is_stored() -> None:
    of = settings()
    healed: list[int] = []
    async with simulated_nats(of) as nats, running(nats, of, healed=healed) as one:
        await one.sink.on_epoch(opening())
        before = len(healed)
        await one.take(*LOG)
        await one.rest(2.0)
        assert len(healed) > before


@pytest.mark.parametrize("poison", ["stop", "park"])
@on_virtual_time
async def test_a_malformed_message_stops_the_publisher_or_is_kept_beside_the_stream(
    poison: str,
) -> None:
    of = settings(poison=poison)
    begin, first, second, commit = transaction(0x200, "a", "b")
    entries = [begin, described(), first, (0x1F8, row(0x1F8, "bad")[1][:-1]), second, commit]
    async with simulated_nats(of) as nats, running(nats, of) as one:
        await one.sink.on_epoch(opening())
        if poison == "stop":
            with pytest.raises(DecodeError):
                await one.take(*entries)
            await one.rest(1.0)
            assert (told(nats), one.figure("parked_messages")) == ([], 0)
        else:
            await one.take(*entries)
            await one.rest(1.0)
            assert (told(nats), one.figure("parked_messages")) == (["a", "b"], 1)
        bucket = nats.server.streams[f"OBJ_{of.streams.parked}"]
        assert bool(bucket.messages) is (poison == "park")


@pytest.mark.parametrize(("confirmed", "is_over"), [(0x3FF, False), (0x400, True)])
@on_virtual_time
async def test_a_doubt_is_over_when_the_slot_has_it_confirmed(
    confirmed: int, *, is_over: bool
) -> None:
    of = settings()
    healed: list[int] = []
    async with simulated_nats(of) as nats, running(nats, of, healed=healed) as one:
        one.doubt.read(0x400)
        one.doubt.begin()
        await one.sink.on_epoch(opening(confirmed))
        assert bool(healed) is is_over


@on_virtual_time
async def test_messages_that_are_missing_when_a_run_begins_are_a_gap_before_anything_else() -> None:
    of = settings(progress_interval_s="600")
    async with simulated_nats(of) as nats:
        async with running(nats, of) as one:
            await one.sink.on_epoch(opening())
            await one.take(*LOG)
            await one.rest(1.0)
        missing = next(message for message in nats.stored if b'"b"' in message.payload)
        nats.cdc.delete(missing.seq)
        nats.cdc.store("cdc.x.insert", {}, b'{"operation": "INSERT", "data": {"id": "other"}}', 0.0)
        with mock.patch.object(damage, "known_holes", mock.AsyncMock(return_value=[])):
            async with running(nats, of) as heir:
                assert told(nats) == ["a", "c", "other", f"{damage.REASON} 0/200 0/300"]
                await heir.sink.on_epoch(opening())
                await heir.take(*LOG)
                await heir.sink.store(Demand.ALL)
        assert len(told(nats)) == 4, "changes up to the last one are not delivered again"


@on_virtual_time
async def test_a_frames_processing_time_is_how_long_it_took() -> None:
    describe = Catalog.describe

    async def slow(*given: Any) -> RelationShape:
        await asyncio.sleep(0.25)
        return await describe(*given)

    of = settings()
    async with simulated_nats(of) as nats, running(nats, of) as one:
        await one.sink.on_epoch(opening())
        with mock.patch.object(Catalog, "describe", slow):
            await one.take(*LOG)
        assert one.figure("last_processing_time_us") == pytest.approx(250_000, rel=0.1)


@on_virtual_time
async def test_a_frame_is_measured_until_its_events_are_stored() -> None:
    of = settings()
    async with simulated_nats(of) as nats, running(nats, of) as one:
        await one.sink.on_epoch(opening())
        await one.take(*LOG)
        await one.rest(2.0)
        held = one.scope.health.stats.values()["ack_lag_seconds"]
        assert isinstance(held, list)
        assert sum(held[1:]) == 1
        await one.take(*LOG[-1:])
        await one.rest(2.0)
        held = one.scope.health.stats.values()["ack_lag_seconds"]
        assert isinstance(held, list)
        assert sum(held[1:]) == 1, "a frame that brings nothing new has no time"
