"""wal-reader and publisher under faults that must cost time and nothing else: neither process ends,
nothing is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgpack
import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.kv import KeyValue

from headrace.bus import control, frame, subjects
from headrace.bus.frame import FrameKind
from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.server import StopMode
from headrace.settings import BusSettings
from headrace.testing.database import Database
from headrace.testing.oracle import Change, Oracle, Stored, stored
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.proxy import Proxy
from headrace.testing.suite import Suite
from tests.support.slot import until_confirmed

SETTINGS = {
    "HEADRACE_DEDUPE_WINDOW_S": "0.1",
    "HEADRACE_NATS_RECONNECT_WAIT_S": "0.1",
    "HEADRACE_PROGRESS_INTERVAL_S": "0.1",
    "HEADRACE_STATUS_INTERVAL_S": "0.1",
    "HEADRACE_ACK_TIMEOUT_S": "3",
    "HEADRACE_LEASE_TTL_S": "1",
}

LARGE_BYTES = 24 << 20


class Line:
    """Both servers, an oracle, and the suite between them."""

    def __init__(self, postgres: EmbeddedPostgres, nats_server: EmbeddedNats, folder: Path) -> None:
        self.postgres = postgres
        self.nats = nats_server
        self.database = Database(postgres, "postgres")
        self.oracle = Oracle(self.database)
        settings = {
            **SETTINGS,
            **postgres.environment(),
            "PG_DB": "postgres",
            "NATS_URL": nats_server.url,
        }
        self.suite = Suite(settings, folder)
        self.committed: list[Change] = []

    async def prepare(self) -> None:
        await self.database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text)")
        await self.database.execute("ALTER TABLE orders ALTER note SET STORAGE EXTERNAL")
        await self.database.execute("CREATE PUBLICATION headrace FOR ALL TABLES")
        await self.oracle.begin()

    async def insert(self, first: int, count: int, note: str = "note") -> None:
        await self.database.execute(
            "INSERT INTO orders SELECT g, $3::text FROM generate_series($1::bigint, $2::bigint) g",
            first,
            first + count - 1,
            note,
        )

    async def rows_delivered(self, timeout_s: float = 30) -> list[Stored]:
        """Wait until the stream has what was committed; exactly that, in that order."""
        self.committed += await self.oracle.changes()
        client = await nats.connect(self.nats.url)
        try:
            async with asyncio.timeout(timeout_s):
                while await self._messages(client) < len(self.committed):  # noqa: ASYNC110  # a stream gives no event
                    await asyncio.sleep(0.05)
        finally:
            await client.close()
        await asyncio.sleep(0.2)
        standing = ("SCHEMA", "GAP")
        found = [
            event
            for event in await stored(self.nats.url)
            if event.payload["operation"] not in standing
        ]
        assert [event.change for event in found] == self.committed
        return found

    async def _messages(self, client: Client) -> int:
        """Messages of the stream that carry a row."""
        try:
            info = await client.jetstream().stream_info("CDC", subjects_filter="cdc.>")
        except NatsError:
            return -1
        subjects = info.state.subjects or {}
        return sum(
            count
            for subject, count in subjects.items()
            if not subject.endswith((".schema", "._gap"))
        )

    async def caught_up(self, timeout_s: float = 15) -> None:
        """Wait until the slot is confirmed up to the end of the log."""
        await until_confirmed(self.database, timeout_s=timeout_s)

    async def slot_is_free(self, timeout_s: float = 30) -> None:
        query = "SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'headrace'"
        async with asyncio.timeout(timeout_s):
            while not await self.database.fetchval(query):  # noqa: ASYNC110  # PostgreSQL gives no event
                await asyncio.sleep(0.05)

    def alive(self) -> None:
        for service in ("wal-reader", "publisher"):
            assert self.suite.running(service), self.suite.log(service)[-3000:]


pytestmark = pytest.mark.slow


@pytest.fixture
async def line(
    request: pytest.FixtureRequest, own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> AsyncIterator[Line]:
    """A running line; the parameter, if any, is nats-server's configuration."""
    made = Line(
        await own_postgres(), await own_nats(config=getattr(request, "param", "")), tmp_path
    )
    try:
        await made.prepare()
        async with made.suite:
            await made.suite.logged("publisher", "epoch_joined")
            yield made
    finally:
        await made.database.close()


async def test_terminating_the_walsender_under_load_costs_no_process_and_no_row(line: Line) -> None:
    for round_ in range(6):
        writing = asyncio.create_task(line.insert(round_ * 10_000, 10_000))
        await asyncio.sleep(0.05 * round_)
        other = await line.database.connect()
        await other.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
            "WHERE slot_name = 'headrace' AND active_pid IS NOT NULL"
        )
        await other.close()
        await writing
        await asyncio.sleep(0.1)
    await line.rows_delivered()
    line.alive()


async def test_an_idle_slot_follows_the_log_in_every_epoch(line: Line) -> None:
    await line.insert(0, 10)
    await line.rows_delivered()
    # WAL that publishes nothing: only a keepalive tells of it, and the publisher that hears of it
    # dies.
    os.kill(line.suite.pid("publisher"), signal.SIGSTOP)
    await line.database.execute("CREATE TABLE quiet (a int); CREATE TABLE quieter (a int)")
    await asyncio.sleep(1.5)
    await line.suite.kill("publisher")
    await line.suite.start("publisher")
    # PostgreSQL writes a record at least every 15 s, which must not be the cause of the recovery.
    await line.caught_up(timeout_s=12)
    # A PostgreSQL that stops waits until its walsender has sent everything.
    async with asyncio.timeout(10):
        await line.postgres.stop("fast")
    await line.postgres.start()
    await line.database.close()
    await line.insert(100, 10)
    await line.caught_up()
    line.alive()


async def test_the_first_change_after_a_quiet_time_is_no_silence_of_jetstreams(line: Line) -> None:
    await line.insert(0, 1)
    await line.rows_delivered()
    # Longer than an acknowledgement may take.
    await asyncio.sleep(4)
    await line.insert(1, 1)
    await line.rows_delivered()
    assert "acknowledged nothing" not in line.suite.log("publisher")
    assert line.suite.log("publisher").count("epoch_joined") == 1


async def test_nats_out_of_reach_under_load_costs_no_process_and_no_row(line: Line) -> None:
    writing = asyncio.create_task(line.insert(0, 60_000, "x" * 200))
    await asyncio.sleep(0.3)
    await line.nats.kill()
    await writing
    await asyncio.sleep(4)
    line.alive()
    await line.nats.start()
    await line.rows_delivered(60)
    line.alive()


@pytest.mark.parametrize("line", [{"max_payload": 28 << 20}], indirect=True)
async def test_a_row_larger_than_the_credit_waits_for_it(line: Line) -> None:
    """The bytes in flight never exceed the credit by more than a frame, even with parts."""
    consumed, flying, worst = 0, dict[int, int](), 0

    async def on_frame(message: Msg) -> None:
        nonlocal worst
        head = frame.decode_header(message.data)
        if head.kind in (FrameKind.DATA, FrameKind.PART):
            flying[head.seq] = len(message.data)
            worst = max(worst, sum(size for seq, size in flying.items() if seq > consumed))

    async def on_control(message: Msg) -> None:
        nonlocal consumed
        body = control.decode(message.data)
        if isinstance(body, control.Confirm):
            consumed = body.consumed_seq

    client = await nats.connect(line.nats.url)
    try:
        await client.subscribe(subjects.frames("headrace"), cb=on_frame)
        await client.subscribe(subjects.control("headrace"), cb=on_control)
        await client.flush()
        await line.insert(1, 1)
        await line.insert(2, 1, "y" * LARGE_BYTES)
        await line.insert(3, 1)
        found = await line.rows_delivered()
    finally:
        await client.close()
    assert [event.payload["data"]["id"] for event in found] == [1, 2, 3]
    credit = BusSettings().in_flight_bytes_max
    assert credit / 2 < worst < credit + 2 * BusSettings().frame_bytes_max < LARGE_BYTES
    assert line.suite.log("wal-reader").count("epoch_opened") == 1
    line.alive()


async def test_a_stream_deleted_while_running_is_made_again_and_filled_from_the_slot(
    line: Line,
) -> None:
    await line.insert(0, 10)
    await line.rows_delivered()
    await line.caught_up()
    client = await nats.connect(line.nats.url)
    await client.jetstream().delete_stream("CDC")
    await client.close()
    line.committed.clear()
    await line.insert(100, 1000)
    await line.rows_delivered()
    line.alive()
    gaps = [event for event in await stored(line.nats.url) if event.payload["operation"] == "GAP"]
    assert [event.payload["reason"] for event in gaps] == ["stream_tail_lost"]


async def test_a_stream_deleted_while_nothing_changes_is_reported_without_waiting_for_a_change(
    line: Line,
) -> None:
    await line.insert(0, 10)
    await line.rows_delivered()
    await line.caught_up()
    client = await nats.connect(line.nats.url)
    await client.jetstream().delete_stream("CDC")
    await client.close()
    await line.suite.logged("publisher", "stream_tail_lost")
    await line.suite.logged("publisher", "event=gap ")
    (gap,) = [one for one in await stored(line.nats.url) if one.payload["operation"] == "GAP"]
    assert gap.payload["reason"] == "stream_tail_lost"
    line.alive()


async def _progress_seq(state: KeyValue) -> int:
    entry = await state.get("progress.headrace")
    return int(msgpack.unpackb(entry.value or b"")["stream_seq"])


async def test_a_lost_tail_that_was_never_confirmed_comes_again_and_is_no_gap(line: Line) -> None:
    await line.insert(0, 10)
    await line.rows_delivered()
    await line.caught_up()
    await line.suite.kill("wal-reader")
    await line.slot_is_free()
    # From here on PostgreSQL hears of nothing that is stored.
    await line.suite.start("wal-reader", HEADRACE_STATUS_INTERVAL_S="600")
    await line.insert(10, 1)
    await line.rows_delivered()
    client = await nats.connect(line.nats.url)
    try:
        js = client.jetstream()
        last = (await js.stream_info("CDC")).state.last_seq
        state = await js.key_value("headrace_state")
        async with asyncio.timeout(15):
            while await _progress_seq(state) < last:  # noqa: ASYNC110  # read until it is written
                await asyncio.sleep(0.05)
        for service in ("publisher", "wal-reader"):
            await line.suite.kill(service)
        assert await js.delete_msg("CDC", last)
    finally:
        await client.close()
    await line.slot_is_free()
    for service in ("publisher", "wal-reader"):
        await line.suite.start(service)
    await line.rows_delivered()
    assert "stream_tail_lost" in line.suite.log("publisher"), "the loss was not noticed"
    assert not [
        event for event in await stored(line.nats.url) if event.payload["operation"] == "GAP"
    ]


async def test_a_standby_reader_that_looked_before_the_last_change_was_sent_sees_no_other_history(
    line: Line, tmp_path: Path
) -> None:
    (tmp_path / "standby").mkdir()
    async with Proxy(lambda: line.postgres.port) as address:
        # It knows where PostgreSQL's log ends, and is about to ask for the slot.
        address.hold_at = b"START_REPLICATION"
        environment = {**line.suite._environment, "PGPORT": str(address.port)}
        async with Suite(environment, tmp_path / "standby", services=("wal-reader",)) as standby:
            async with asyncio.timeout(30):
                await address.held.wait()
            await line.insert(0, 100)
            await line.rows_delivered()
            await line.suite.kill("wal-reader")
            await line.slot_is_free()
            address.restore()
            await standby.logged("wal-reader", "epoch_opened")
            await line.insert(100, 100)
            await line.rows_delivered()
            assert line.suite.running("publisher"), line.suite.log("publisher")[-3000:]
            assert not [
                event
                for event in await stored(line.nats.url)
                if event.payload["operation"] == "GAP"
            ]


async def test_one_walsender_is_enough_for_a_line(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    line = Line(await own_postgres(settings={"max_wal_senders": "1"}), await own_nats(), tmp_path)
    await line.prepare()
    async with line.suite:
        await line.suite.logged("publisher", "epoch_joined")
        await line.insert(0, 100)
        await line.rows_delivered()
        line.alive()
    await line.database.close()


@contextlib.asynccontextmanager
async def standing_by(line: Line, folder: Path) -> AsyncIterator[Suite]:
    """One more publisher, which waits for the lease."""
    folder.mkdir()  # noqa: ASYNC240  # quick
    async with Suite(line.suite._environment, folder, services=("publisher",)) as standby:
        await standby.logged("publisher", "standing by")
        yield standby


async def test_a_standby_publisher_outlives_a_restart_of_nats_and_takes_over(
    line: Line, tmp_path: Path
) -> None:
    async with standing_by(line, tmp_path / "standby") as standby:
        await line.nats.kill()
        await asyncio.sleep(3)
        await line.nats.start()
        await line.insert(0, 100)
        await line.rows_delivered()
        assert line.suite.running("wal-reader")
        assert standby.running("publisher"), standby.log("publisher")
        # After an outage longer than the lease either may be the first to take it; the other one
        # gives way.
        if line.suite.running("publisher"):
            await line.suite.kill("publisher")
        await line.insert(1000, 100)
        await line.rows_delivered()


async def test_progress_that_the_suite_did_not_write_is_refused_and_once_removed_found_in_the_stream(
    line: Line,
) -> None:
    await line.insert(0, 100)
    await line.rows_delivered()
    await line.suite.stop("publisher")
    client = await nats.connect(line.nats.url)
    state = await client.jetstream().key_value("headrace_state")
    # As an answer of the server that was sent astray would be.
    await state.put(
        "progress.headrace", b'{"type": "io.nats.jetstream.api.v1.stream_info_response"}'
    )
    await line.suite.start("publisher")
    assert await line.suite.exit_code("publisher", 30) == 1
    assert "ForeignStateError" in line.suite.log("publisher")
    await state.purge("progress.headrace")
    await client.close()
    await line.suite.start("publisher")
    await line.insert(100, 100)
    await line.rows_delivered()


async def test_two_publishers_started_at_once_agree(line: Line, tmp_path: Path) -> None:
    await line.suite.kill("publisher")
    (tmp_path / "other").mkdir()
    other = Suite(line.suite._environment, tmp_path / "other", services=("publisher",))
    async with other:
        await line.suite.start("publisher")
        await line.insert(0, 5000)
        await line.rows_delivered()
        line.alive()
        assert other.running("publisher")


async def test_a_publisher_that_slept_past_its_lease_leaves_the_heir_alone(
    line: Line, tmp_path: Path
) -> None:
    async with standing_by(line, tmp_path / "heir") as heir:
        writing = asyncio.create_task(line.insert(0, 40_000))
        await asyncio.sleep(0.2)
        sleeper = line.suite.pid("publisher")
        os.kill(sleeper, signal.SIGSTOP)
        await heir.logged("publisher", "epoch_joined")
        os.kill(sleeper, signal.SIGCONT)
        await writing
        await line.insert(100_000, 5000)
        # It ends on its own, at the latest at the deadline of a stop.
        assert await line.suite.exit_code("publisher", 25) in (1, 75)
        await line.rows_delivered()
        assert heir.running("publisher"), heir.log("publisher")


async def test_a_promoted_server_goes_on_and_one_that_forked_behind_the_stream_is_refused(
    line: Line,
) -> None:
    await line.insert(0, 10)
    await line.rows_delivered()
    await line.caught_up()
    await line.database.close()
    await line.postgres.stop("fast")
    await promoted(line.postgres)
    await line.insert(100, 10)
    await line.rows_delivered()
    line.alive()
    await refused_after_a_fork(line, "fast", 10)


async def test_a_fork_behind_what_was_delivered_is_refused_though_progress_was_not_written(
    line: Line,
) -> None:
    await line.suite.kill("publisher")
    await line.suite.start("publisher", HEADRACE_PROGRESS_INTERVAL_S="600")
    await line.insert(0, 10)
    await line.rows_delivered()
    # A server that stops in order asks for confirmation, which writes progress; it waits half a
    # minute for one that does not come.
    await refused_after_a_fork(line, "immediate", 40)


async def refused_after_a_fork(line: Line, stop: StopMode, delivered: int) -> None:
    """Continue with a promoted copy of the server that lacks rows which were delivered since."""
    await line.database.close()
    await line.postgres.stop(stop)
    lagging = line.postgres.pgdata.with_name("lagging")
    shutil.copytree(line.postgres.pgdata, lagging, symlinks=True)
    own(lagging, like=line.postgres.pgdata)
    await line.postgres.start()
    await line.insert(200, delivered)
    await line.rows_delivered()
    await line.database.close()
    await line.postgres.stop(stop)
    # The copy gives the place of these rows in the log to other changes.
    shutil.rmtree(line.postgres.pgdata)
    lagging.rename(line.postgres.pgdata)
    await promoted(line.postgres)
    # Further than the stream is: by their positions, some of these would be skipped and the
    # others delivered.
    await line.insert(500, 2000)
    assert await line.suite.exit_code("publisher", 30) == 1
    assert "SourceDivergedError" in line.suite.log("publisher")
    events = await stored(line.nats.url)
    assert (events[-1].subject, events[-1].payload["reason"]) == ("cdc._gap", "source_diverged")
    assert all(
        event.payload["data"]["id"] < 500
        for event in events
        if event.payload["operation"] == "INSERT"
    )


async def promoted(postgres: EmbeddedPostgres) -> None:
    """Start a stopped server as a standby of nobody, and promote it: a new timeline from where it
    ended.
    """
    signal_file = postgres.pgdata / "standby.signal"
    signal_file.touch()
    own(signal_file, like=postgres.pgdata)
    await postgres.start()
    database = Database(postgres, "postgres")
    assert await database.fetchval("SELECT pg_promote()")
    await database.close()


def own(path: Path, like: Path) -> None:
    """As root, PostgreSQL runs as another user, whose the files must be."""
    owner = like.stat()
    for one in (path, *path.rglob("*")):
        os.chown(one, owner.st_uid, owner.st_gid, follow_symlinks=False)
