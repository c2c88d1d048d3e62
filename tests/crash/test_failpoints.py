"""The matrix: every service is killed at every step between two durable effects, under load.

Afterwards, the stream contains every committed change exactly once, in commit order, as PostgreSQL
records it. The duplicate window is at its minimum, so that it hides nothing. Failpoints of a single
service are tested with that service; a test here ensures that each failpoint is tested.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import signal
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import nats
import pytest
from nats.aio.client import Client
from nats.js.errors import KeyNotFoundError

from headrace.contract.events import decode
from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.testing.database import Database, fresh_database
from headrace.testing.oracle import Oracle, stored
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.responder import RESULT_TIMEOUT_S, Consumer, Responder
from headrace.testing.suite import LINE, Suite
from tests.support.exactly_once import (
    environment,
    everything_delivered,
    mirror_of,
    prepare,
    source_rows,
)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
HIT_S = 60.0
LARGE_BYTES = 1_200_000

READER = (
    ("wal-reader", "wal_reader.after_open:1"),
    ("wal-reader", "wal_reader.before_frame:4"),
    ("wal-reader", "wal_reader.after_frame:7"),
    ("wal-reader", "wal_reader.before_status:3"),
    ("wal-reader", "wal_reader.after_status:3"),
)
PROGRESS = (
    ("publisher", "publisher.before_progress:2"),
    ("publisher", "publisher.after_progress_before_confirm:2"),
    ("publisher", "publisher.after_confirm:3"),
)
PUBLISH = (("publisher", "publisher.before_publish:9"), ("publisher", "publisher.after_publish:9"))
OTHERS = (
    ("publisher", "publisher.after_shape_before_event:1"),
    ("publisher", "publisher.after_large_before_event:1"),
)
ATOMIC = (
    ("publisher", "publisher.before_atomic:5"),
    ("publisher", "publisher.inside_atomic:5"),
    ("publisher", "publisher.after_atomic:5"),
)


@dataclass(eq=False)
class Rig:
    postgres: EmbeddedPostgres
    nats: EmbeddedNats
    database: Database
    oracle: Oracle
    suite: Suite

    async def killed_at(self, service: str, point: str, **settings: str) -> None:
        """Start a service that dies at a point, wait until it did, start it without."""
        await self.dead_at(service, point, **settings)
        await self.suite.start(service, **settings)

    async def killed_at_each(self, points: Iterable[tuple[str, str]], **settings: str) -> None:
        """The same one after another; what died of one point recovers on its way to the next."""
        for service, point in points:
            for other in LINE:
                if other != service and not self.suite.running(other):
                    await self.suite.start(other, **settings)
            await self.dead_at(service, point, **settings)
        await self.suite.start(service, **settings)

    async def dead_at(self, service: str, point: str, **settings: str) -> None:
        """Start a service that dies at a point, and wait until it did."""
        if self.suite.running(service):
            await self.suite.kill(service)
        await self.suite.start(service, HEADRACE_FAILPOINT=point, **settings)
        try:
            code = await self.suite.exit_code(service, HIT_S)
        except TimeoutError:
            raise AssertionError(
                f"{point} was never reached:\n{self.suite.log(service)[-3000:]}"
            ) from None
        assert code == -signal.SIGKILL, (point, self.suite.log(service)[-3000:])

    async def restart(self, **settings: str) -> None:
        for service in ("publisher", "wal-reader"):
            if self.suite.running(service):
                await self.suite.kill(service)
            await self.suite.start(service, **settings)

    @contextlib.asynccontextmanager
    async def load(self, seed: int) -> AsyncIterator[None]:
        """Ordinary transactions, new shapes and large rows while the block runs."""
        enough = asyncio.Event()
        writer = asyncio.create_task(self._write(seed, enough))
        stirring = asyncio.create_task(self._stir(seed, enough))
        try:
            yield
        finally:
            enough.set()
            await asyncio.gather(writer, stirring)

    async def _write(self, seed: int, enough: asyncio.Event) -> None:
        """Some hundred rows a second: what is behind is soon caught up, on a slow machine too."""
        chance, first = random.Random(seed), seed * 10_000_000
        connection = await asyncpg.connect(self.postgres.dsn())
        try:
            while not enough.is_set():
                count = chance.choice([1, 1, 1, 2, 5, 20, 100])
                async with connection.transaction():
                    await connection.execute(
                        (
                            "INSERT INTO orders SELECT g, g % 7, 'note ' || g FROM "
                            "generate_series($1::int8, $2::int8) g"
                        ),
                        first,
                        first + count - 1,
                    )
                    await connection.execute("UPDATE orders SET n = n + 1 WHERE id = $1", first)
                    if chance.random() < 0.2:
                        await connection.execute("DELETE FROM orders WHERE id = $1", first)
                first += count
                await asyncio.sleep(0.05)
        finally:
            await connection.close()

    async def _stir(self, seed: int, enough: asyncio.Event) -> None:
        connection = await asyncpg.connect(self.postgres.dsn())
        try:
            number = 0
            while not enough.is_set():
                number += 1
                await connection.execute(
                    f"ALTER TABLE items ADD COLUMN IF NOT EXISTS c{seed}_{number % 40} int"
                )
                await connection.execute(
                    "INSERT INTO items (a, b) VALUES ($1, $2)", seed * 100_000 + number, "small"
                )
                if number % 4 == 0:
                    row = f"{number}" + "y" * LARGE_BYTES
                    await connection.execute(
                        "INSERT INTO blobs VALUES ($1, $2)", seed * 100_000 + number, row
                    )
                await asyncio.sleep(0.5)
        finally:
            await connection.close()


@pytest.fixture
async def rig(own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path) -> AsyncIterator[Rig]:
    """Both servers, and a suite of which nothing runs yet."""
    postgres, server = await own_postgres(), await own_nats()
    database, oracle = await prepare(postgres)
    await database.execute("CREATE TABLE blobs (id bigint PRIMARY KEY, body text)")
    await database.execute("ALTER TABLE blobs ALTER body SET STORAGE EXTERNAL")
    suite = Suite(environment(postgres, server, "event"), tmp_path, services=())
    async with suite:
        yield Rig(postgres, server, database, oracle, suite)
    await database.close()


async def test_death_at_every_point_of_the_line_loses_and_doubles_nothing(rig: Rig) -> None:
    """One stream through all of it: from one way of ingest and delivery to the next, too."""
    await rig.suite.start("publisher")
    await rig.killed_at("wal-reader", "wal_reader.after_slot_created:1")
    await rig.suite.logged("publisher", "epoch_joined", timeout_s=HIT_S)
    async with rig.load(1):
        await rig.killed_at_each((*READER, *PUBLISH, *PROGRESS, *OTHERS))
    chain = {"HEADRACE_INGEST": "chain"}
    await rig.restart(**chain)
    async with rig.load(2):
        await rig.killed_at_each((*PUBLISH, *PROGRESS[:1]), **chain)
    # From here on, the server knows no ID.
    own = {"HEADRACE_MSG_ID_HEADER": "Headrace-Msg-Id"}
    await rig.restart(**own)
    async with rig.load(3):
        await rig.killed_at_each((*PUBLISH, *PROGRESS[:1]), **own)
    atomic = {"HEADRACE_DELIVERY": "transaction", **own}
    await rig.restart(**atomic)
    async with rig.load(4):
        await rig.killed_at_each((*ATOMIC, *PROGRESS, *OTHERS), **atomic)
    found = await everything_delivered(rig.oracle, rig.nats, timeout_s=120)
    assert mirror_of(found) == await source_rows(rig.database)
    await _a_gap_is_told_once(rig)


async def _a_gap_is_told_once(rig: Rig) -> None:
    """A slot that was moved on over WAL without changes: reported, the process killed before that is
    noted, reported once.
    """
    for service in ("wal-reader", "publisher"):
        await rig.suite.stop(service)
    await rig.database.execute(
        "SELECT pg_logical_emit_message(false, 'nobody', 'x'); SELECT pg_switch_wal()"
    )
    await rig.database.execute(
        "SELECT pg_replication_slot_advance('headrace', pg_current_wal_lsn())"
    )
    await rig.suite.start("wal-reader")
    await rig.killed_at("publisher", "publisher.after_gap_before_progress:1")
    await rig.database.execute("INSERT INTO orders VALUES (-1, 0, 'behind the gap')")
    client = await nats.connect(rig.nats.url)
    try:
        async with asyncio.timeout(HIT_S):
            while (await _last_row(client)).get("id") != -1:  # noqa: ASYNC110  # a stream gives no event
                await asyncio.sleep(0.1)
        info = await client.jetstream().stream_info("CDC", subjects_filter="cdc._gap")
        assert info.state.subjects == {"cdc._gap": 1}
    finally:
        await client.close()


async def _last_row(client: Client) -> dict[str, object]:
    message = await client.jetstream().get_last_msg("CDC", "cdc.orders.insert")
    row: dict[str, object] = decode(message.data or b"")["data"]
    return row


async def test_death_at_every_point_loses_and_doubles_nothing_in_batches(rig: Rig) -> None:
    batch = {"HEADRACE_DELIVERY": "batch"}
    await rig.restart(**batch)
    await rig.suite.logged("publisher", "epoch_joined", timeout_s=HIT_S)
    async with rig.load(1):
        await rig.killed_at_each((*PUBLISH, *PROGRESS, *OTHERS), **batch)
    await everything_delivered(rig.oracle, rig.nats, timeout_s=120, delivery="batch")


async def test_death_after_a_change_was_put_aside_puts_it_aside_once(rig: Rig) -> None:
    options = "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
    async with fresh_database(rig.postgres, "ascii", options) as database:
        await database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION headrace FOR TABLE t"
        )
        park = {"HEADRACE_POISON": "park", "PG_DB": "ascii"}
        await rig.restart(**park)
        await rig.suite.logged("publisher", "epoch_joined", timeout_s=HIT_S)
        await database.execute("INSERT INTO t VALUES (1, 'a')")
        await database.execute(r"INSERT INTO t VALUES (2, E'\xff\xfe')")
        await database.execute("INSERT INTO t VALUES (3, 'c')")
        await rig.killed_at("publisher", "publisher.after_parking:1", **park)
        async with asyncio.timeout(HIT_S):
            while (  # noqa: ASYNC110
                len(
                    rows := [
                        e for e in await stored(rig.nats.url) if e.payload["operation"] == "INSERT"
                    ]
                )
                < 2
            ):
                await asyncio.sleep(0.1)
        assert [row.payload["data"]["id"] for row in rows] == [1, 3]
        client = await nats.connect(rig.nats.url)
        store = await client.jetstream().object_store("headrace_parked")
        assert len(await store.list()) == 1
        await client.close()
        for service in ("wal-reader", "publisher"):
            await rig.suite.kill(service)


async def test_death_between_catalog_and_bucket_leaves_the_schemas_right(rig: Rig) -> None:
    quick = {"HEADRACE_CATALOG_INTERVAL_S": "0.1"}
    await rig.restart(**quick)
    await rig.suite.logged("publisher", "epoch_joined", timeout_s=HIT_S)
    for point, table, statement in (
        ("before_schema", "early", "CREATE TABLE early (id int PRIMARY KEY)"),
        ("after_schema", "early", "ALTER TABLE early ADD COLUMN n int"),
        ("before_deletion", "early", "DROP TABLE early; CREATE TABLE late (id int PRIMARY KEY)"),
        ("after_deletion", "late", "DROP TABLE late"),
    ):
        if rig.suite.running("schema-publisher"):
            # The table that the next step changes must be in the bucket first.
            await _has_schema(rig, table)
            await rig.suite.kill("schema-publisher")
        await rig.database.execute(statement)
        await rig.killed_at("schema-publisher", f"schema_publisher.{point}:1", **quick)
    client = await nats.connect(rig.nats.url)
    try:
        bucket = await client.jetstream().key_value("schemas")
        async with asyncio.timeout(HIT_S):
            while sorted(await bucket.keys()) != ["blobs", "items", "orders"]:  # noqa: ASYNC110  # or until the time-out
                await asyncio.sleep(0.1)
    finally:
        await client.close()


async def _has_schema(rig: Rig, table: str) -> None:
    client = await nats.connect(rig.nats.url)
    try:
        bucket = await client.jetstream().key_value("schemas")
        async with asyncio.timeout(HIT_S):
            while True:
                with contextlib.suppress(KeyNotFoundError):
                    await bucket.get(table)
                    return
                await asyncio.sleep(0.1)
    finally:
        await client.close()


SNAPSHOT_POINTS = ("noted", "told_interrupted", "holding", "before_meta", "after_meta")


async def test_a_request_outlives_a_death_at_every_point_of_its_snapshot(
    responder: Responder, consumer: Consumer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a table without a row: every step is the same, and no JVM has to start for each of them."""
    await consumer.publish("(id int)", "persistent")
    monkeypatch.setenv("HEADRACE_SNAPSHOT_ATTEMPTS_MAX", "20")
    await _die_at(responder, "responder.noted", monkeypatch, first=True)
    assert (await consumer.ask("persistent"))["status"] == "accepted"
    await _dead(responder)
    for point in SNAPSHOT_POINTS[1:]:
        await _die_at(responder, f"responder.{point}", monkeypatch)
        await _dead(responder)
    monkeypatch.delenv("HEADRACE_FAILPOINT")
    await _started(responder)
    assert await _one_snapshot(consumer) == []
    async with asyncio.timeout(RESULT_TIMEOUT_S):
        while (await consumer.client.jetstream().stream_info("SNAPSHOT_REQUESTS")).state.messages:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    kinds = []
    while not consumer.results.empty():
        kinds.append(consumer.results.get_nowait()[0])
    assert "meta" not in kinds


async def _one_snapshot(consumer: Consumer) -> list[dict[str, int]]:
    async with asyncio.timeout(RESULT_TIMEOUT_S):
        while True:
            kind, body = await consumer.results.get()
            if kind == "meta":
                return (await consumer.read(body)).rows


async def _die_at(
    responder: Responder, point: str, monkeypatch: pytest.MonkeyPatch, *, first: bool = False
) -> None:
    if first:
        responder.stop()
    monkeypatch.setenv("HEADRACE_FAILPOINT", point)
    if first:
        await _started(responder)
    else:
        responder.start()


async def _started(responder: Responder) -> None:
    """Start it, and wait until it takes requests, and signals."""
    ready = responder.log.read_bytes().count(b"event=ready")
    responder.start()
    async with asyncio.timeout(HIT_S):
        while responder.log.read_bytes().count(b"event=ready") == ready:  # noqa: ASYNC110  # a file gives no event
            await asyncio.sleep(0.05)


async def _dead(responder: Responder) -> None:
    assert responder.process is not None
    assert await asyncio.to_thread(responder.process.wait, RESULT_TIMEOUT_S) == -signal.SIGKILL


@pytest.mark.spark
@pytest.mark.parametrize("point", ["snapshot_task.before_chunk:2", "snapshot_task.after_chunk:2"])
async def test_a_task_that_dies_between_chunks_is_run_again_and_doubles_none(
    responder: Responder,
    consumer: Consumer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    table = f"mortal_{'before' if 'before' in point else 'after'}"
    await consumer.publish("(id int, pad text)", table)
    await consumer.sql.execute(
        f"INSERT INTO {table} SELECT g, repeat('x', 300) FROM generate_series(1, 50000) g"
    )
    once = tmp_path / "killed"
    monkeypatch.setenv("HEADRACE_FAILPOINT", point)
    monkeypatch.setenv("HEADRACE_FAILPOINT_ONCE", str(once))
    responder.stop()
    await _started(responder)
    try:
        snapshot = await consumer.snapshot(table)
        assert sorted(row["id"] for row in snapshot.rows) == list(range(1, 50001))
        assert once.exists(), "no task was killed"
    finally:
        monkeypatch.undo()
        responder.stop()
        await _started(responder)


async def test_a_request_that_was_done_is_not_done_again_by_whoever_comes_after(
    responder: Responder, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await consumer.publish("(id int)", "done_once")
    await _die_at(responder, "responder.acknowledged", monkeypatch, first=True)
    answer = await consumer.ask("done_once")
    await consumer.result(answer["snapshot_id"])
    await _dead(responder)
    monkeypatch.delenv("HEADRACE_FAILPOINT")
    await _started(responder)
    await consumer.publish("(id int)", "done_next")
    await consumer.snapshot("done_next")
    assert consumer.results.empty()


def test_every_failpoint_is_tried_somewhere() -> None:
    named = re.compile(r"failpoint\(\s*\"([a-z_.]+)\"")
    there = {
        name
        for root in ("libs", "services")
        for path in (ROOT / root).rglob("*.py")
        for name in named.findall(path.read_text())
    }
    tried = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert (
        sorted(name for name in there if name not in tried and name.partition(".")[2] not in tried)
        == []
    )
