"""A consumer that was written only from the PG→NATS bridge's README reads `--compat bridge`.

It knows the bridge's subjects, keys, IDs, bucket, paths and lines. Anything unexpected is an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgpack
import nats
import pytest
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig

from headrace.embedded.ports import free_port
from headrace.testing.database import Database
from headrace.testing.line import SETTINGS
from headrace.testing.plugin import OwnNats
from headrace.testing.suite import Suite
from tests.support.telemetry_answers import BRIDGE_METRICS, BRIDGE_STATUS

TABLE = "test_types"
CREATE = f"""CREATE TABLE {TABLE} (
    id serial PRIMARY KEY, uid uuid, age integer, temperature double precision, price numeric(10,4), is_active boolean,
    some_text text, tags text[], matrix integer[][], metadata jsonb, created_at timestamptz)"""
ROW = """('00000000-0000-4000-8000-000000000001', 30, 36.6, 123.45, true, 'a text', '{tag1,"tag 2"}', '{{1,2},{3,4}}',
    '{"key_1": "value_1", "key_2": [[1,2],[3,4]], "key_3": {"key_4": null}}', '2025-12-12 12:00:34.338547+00')"""
COLUMNS = "uid, age, temperature, price, is_active, some_text, tags, matrix, metadata, created_at"
DATA = {
    "uid": "00000000-0000-4000-8000-000000000001",
    "age": 30,
    "temperature": 36.6,
    "price": "123.4500",
    "is_active": True,
    "some_text": "a text",
    "tags": '{tag1,"tag 2"}',
    "matrix": "{{1,2},{3,4}}",
    "metadata": {"key_1": "value_1", "key_2": [[1, 2], [3, 4]], "key_3": {"key_4": None}},
    "created_at": "2025-12-12T12:00:34.338547Z",
}
TEXTS = {
    "uid": "00000000-0000-4000-8000-000000000001",
    "age": "30",
    "temperature": "36.6",
    "price": "123.4500",
    "is_active": "t",
    "some_text": "a text",
    "tags": '{tag1,"tag 2"}',
    "matrix": "{{1,2},{3,4}}",
    "metadata": '{"key_1": "value_1", "key_2": [[1, 2], [3, 4]], "key_3": {"key_4": null}}',
    "created_at": "2025-12-12 12:00:34.338547+00",
}
KEYS = {"data", "msg_id", "operation", "relation_id", "subject", "table"}
# Keys that its consumer example reads, from an earlier form of rows.
OLDER_KEYS = {"columns"}


@dataclass
class BridgeConsumer:
    """Schemas from the bucket, rows from INIT, changes from CDC by a durable consumer; an id is
    applied once.
    """

    client: Client
    decode: Any = msgpack.unpackb
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)

    async def schema(self, table: str) -> dict[str, Any]:
        bucket = await self.client.jetstream().key_value("schemas")
        found: dict[str, Any] = self.decode((await bucket.get(table)).value)
        return found

    async def follow(self, changes: int, durable: str = "elixir") -> None:
        config = ConsumerConfig(
            durable_name=durable, ack_policy=AckPolicy.EXPLICIT, ack_wait=60, max_deliver=3
        )
        pull = await self.client.jetstream().pull_subscribe(
            "cdc.>", durable=durable, stream="CDC", config=config
        )
        async with asyncio.timeout(120):
            while len(self.events) < changes:
                # nats-py raises its own one, or the built-in one that it derives from.
                with contextlib.suppress(TimeoutError):
                    for message in await pull.fetch(100, timeout=1):
                        self.apply(
                            message.subject, (message.headers or {})["Nats-Msg-Id"], message.data
                        )
                        await message.ack()
        await pull.unsubscribe()

    def apply(self, subject: str, msg_id: str, data: bytes) -> None:
        event = self.decode(data)
        assert set(event) == KEYS | OLDER_KEYS
        _, table, operation = subject.split(".")
        assert (event["subject"], event["table"]) == (subject, table)
        assert event["operation"] == operation.upper()
        assert event["msg_id"] == msg_id
        assert re.fullmatch(rf"[0-9a-f]+-{table}-{operation}(-\d+)?", msg_id)
        assert isinstance(event["relation_id"], int)
        assert {column["name"]: column["value"] for column in event["columns"]} == event["data"]
        if msg_id in self._seen:
            return
        self._seen.add(msg_id)
        self.events.append(event)
        row = event["data"]
        match event["operation"]:
            case "INSERT" | "UPDATE":
                self.rows[row["id"]] = row
            case "DELETE":
                del self.rows[row["id"]]
            case other:
                raise AssertionError(f"the bridge has no operation {other}")


class Bridge:
    """The suite, started as the bridge is: its options and its variables."""

    def __init__(self, database: Database, server_url: str, suite: Suite, port: int) -> None:
        self.database = database
        self.url = server_url
        self.suite = suite
        self.port = port

    @contextlib.asynccontextmanager
    async def consumer(self, decode: Any = msgpack.unpackb) -> AsyncIterator[BridgeConsumer]:
        client = await nats.connect(self.url)
        try:
            yield BridgeConsumer(client, decode)
        finally:
            await client.close()

    async def get(self, path: str) -> str:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.port}{path}") as answer,
        ):
            assert answer.status == 200
            return await answer.text()


@contextlib.asynccontextmanager
async def bridge(
    database: Database, own_nats: OwnNats, folder: Path, *services: str, **settings: str
) -> AsyncIterator[Bridge]:
    server, port = await own_nats(), free_port()
    await database.execute(f"{CREATE}; CREATE PUBLICATION cdc_pub FOR ALL TABLES")
    environment = {
        **SETTINGS,
        "PG_HOST": "127.0.0.1",
        "PG_PORT": str(database.port),
        "PG_DB": database.name,
        "POSTGRES_BRIDGE_USER": database.user,
        "NATS_HOST": server.url.removeprefix("nats://"),
        "HEADRACE_SLOT": f"slot_{database.name}",
        "HEADRACE_PUB": "cdc_pub",
        "HEADRACE_COMPAT": "bridge",
        "HEADRACE_CATALOG_INTERVAL_S": "0.3",
        "HEADRACE_STATS_INTERVAL_S": "0.1",
        "HEADRACE_METRICS_INTERVAL_S": "0.3",
        "HEADRACE_MESSAGE_PREFIXES": "note",
        **settings,
    }
    async with Suite(environment, folder, services=("wal-reader", "publisher")) as suite:
        for service in services:
            await suite.start(
                service, HEADRACE_HTTP_PORT=str(port) if service == "telemetry" else "0"
            )
        await suite.logged("publisher", "epoch_joined")
        yield Bridge(database, server.url, suite, port)


@contextlib.asynccontextmanager
async def consumed(
    database: Database, own_nats: OwnNats, folder: Path, *services: str
) -> AsyncIterator[tuple[Bridge, BridgeConsumer]]:
    async with (
        bridge(database, own_nats, folder, *services) as running,
        running.consumer() as consumer,
    ):
        yield running, consumer


async def test_a_bridges_consumer_reads_inserts_updates_and_deletes(
    database: Database, own_nats: OwnNats, tmp_path: Path
) -> None:
    async with consumed(database, own_nats, tmp_path) as (_, consumer):
        await database.execute(f"INSERT INTO {TABLE} ({COLUMNS}) VALUES {ROW}, {ROW}")
        await database.execute(f"UPDATE {TABLE} SET age = 31 WHERE id = 1")
        await database.execute(f"DELETE FROM {TABLE} WHERE id = 2")
        await consumer.follow(4)
        subjects = [
            f"cdc.{TABLE}.{operation}" for operation in ("insert", "insert", "update", "delete")
        ]
        assert [event["subject"] for event in consumer.events] == subjects
        assert consumer.events[0]["data"] == {"id": 1, **DATA}
        assert consumer.events[2]["data"] == {"id": 1, **DATA, "age": 31}
        assert consumer.events[3]["data"] == {"id": 2, **dict.fromkeys(DATA)}
        assert consumer.rows == {1: {"id": 1, **DATA, "age": 31}}


async def test_json_has_the_same_structure(
    database: Database, own_nats: OwnNats, tmp_path: Path
) -> None:
    settings = {"HEADRACE_ENCODING": "json"}
    async with (
        bridge(database, own_nats, tmp_path, **settings) as running,
        running.consumer(json.loads) as consumer,
    ):
        await database.execute(f"INSERT INTO {TABLE} ({COLUMNS}) VALUES {ROW}")
        await consumer.follow(1)
        assert consumer.rows == {1: {"id": 1, **DATA}}


async def test_what_the_bridge_has_no_message_for_is_not_in_the_stream(
    database: Database, own_nats: OwnNats, tmp_path: Path
) -> None:
    async with consumed(database, own_nats, tmp_path) as (_, consumer):
        await database.execute(f"INSERT INTO {TABLE} (age) VALUES (1)")
        await database.execute("SELECT pg_logical_emit_message(true, 'note', 'x')")
        await database.execute(
            "SELECT pg_logical_emit_message(false, 'note', 'x'); SELECT pg_switch_wal()"
        )
        await database.execute(f"TRUNCATE {TABLE}")
        await database.execute(f"ALTER TABLE {TABLE} ADD note text")
        await database.execute("CREATE TABLE other (id int PRIMARY KEY); DROP TABLE other")
        await asyncio.sleep(1)
        await database.execute(f"INSERT INTO {TABLE} (age, note) VALUES (2, 'new')")
        await consumer.follow(2)
        info = await consumer.client.jetstream().stream_info("CDC", subjects_filter=">")
        assert info.state.subjects == {f"cdc.{TABLE}.insert": 2}
        assert consumer.rows[2]["note"] == "new"


async def test_nothing_is_lost_doubled_or_out_of_order_over_kills(
    database: Database, own_nats: OwnNats, tmp_path: Path
) -> None:
    async with consumed(database, own_nats, tmp_path) as (running, consumer):
        for first in range(0, 3000, 500):
            await database.execute(
                f"INSERT INTO {TABLE} (age) SELECT generate_series({first}, {first + 499})"
            )
            if first % 1000:
                await running.suite.kill("publisher")
                await running.suite.start("publisher")
        await consumer.follow(3000)
        assert [event["data"]["age"] for event in consumer.events] == list(range(3000))
        # The stream itself has no doubles for the consumer to sort out: its duplicate window is at
        # its minimum.
        info = await consumer.client.jetstream().stream_info("CDC")
        assert info.state.messages == 3000


async def test_schemas_are_in_the_bucket_at_the_start_and_on_a_change(
    database: Database, own_nats: OwnNats, tmp_path: Path
) -> None:
    async with consumed(database, own_nats, tmp_path, "schema-publisher") as (_, consumer):
        schema = await schema_with(consumer, 11)
        assert (schema["table"], schema["schema"]) == (TABLE, f"public.{TABLE}")
        assert isinstance(schema["timestamp"], int)
        assert schema["columns"][0] == {
            "name": "id",
            "position": 1,
            "data_type": "integer",
            "is_nullable": False,
            "column_default": f"nextval('{TABLE}_id_seq'::regclass)",
        }
        await database.execute(f"ALTER TABLE {TABLE} ADD note text")
        assert (await schema_with(consumer, 12))["columns"][11]["name"] == "note"


async def schema_with(consumer: BridgeConsumer, columns: int) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(nats.js.errors.Error):
                schema = await consumer.schema(TABLE)
                if len(schema["columns"]) == columns:
                    return schema
            await asyncio.sleep(0.1)


async def test_the_operators_paths_names_and_lines_are_the_bridges(
    database: Database, own_nats: OwnNats, tmp_path: Path
) -> None:
    async with consumed(database, own_nats, tmp_path, "telemetry") as (running, consumer):
        await database.execute(f"INSERT INTO {TABLE} (age) SELECT generate_series(1, 7)")
        await consumer.follow(7)
        async with asyncio.timeout(15):
            while not published(status := await status_of(running)):  # noqa: ASYNC110  # a port gives no event
                await asyncio.sleep(0.1)
        assert json.loads(await running.get("/health")) == {"status": "ok"}
        assert list(status)[:12] == BRIDGE_STATUS
        assert (status["status"], status["is_connected"], status["slot_active"]) == (
            "connected",
            True,
            True,
        )
        assert re.fullmatch(r"[0-9a-f]+/[0-9a-f]+", status["current_lsn"])
        samples = {
            line.split(" ")[0]
            for line in (await running.get("/metrics")).splitlines()
            if line[:1] != "#"
        }
        assert samples >= set(BRIDGE_METRICS)
        assert json.loads(await running.get("/streams/info?stream=CDC"))["config"]["name"] == "CDC"
        # Its Loki example's expression.
        loki = r"METRICS uptime=(?P<uptime>\d+) wal_messages=(?P<wal_msgs>\d+) cdc_events=(?P<cdc_events>\d+)"
        whole = loki + (
            r" lsn=[0-9a-f]+/[0-9a-f]+ connected=1 reconnects=\d+ nats_reconnects=\d+ lag_bytes=\d+ slot_active=1$"
        )
        async with asyncio.timeout(10):
            while not re.findall(whole, running.suite.log("telemetry"), re.MULTILINE):  # noqa: ASYNC110  # nor has a file
                await asyncio.sleep(0.1)


def published(status: dict[str, Any]) -> bool:
    return status["cdc_events_published"] == 7 and bool(status["slot_active"])


async def status_of(running: Bridge) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await running.get("/status"))
    return found


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)
async def test_a_snapshot_has_copys_texts_in_the_bridges_chunks(
    database: Database, own_nats: OwnNats, tmp_path: Path
) -> None:
    async with consumed(database, own_nats, tmp_path, "snapshot-responder") as (running, consumer):
        await database.execute(
            f"INSERT INTO {TABLE} ({COLUMNS}) VALUES {ROW}; INSERT INTO {TABLE} DEFAULT VALUES"
        )
        await running.suite.logged("snapshot-responder", "nats_connected")
        js = consumer.client.jetstream()
        await requests_taken(consumer.client)
        # As the README has it: a request is an empty message, without a reply subject.
        await consumer.client.publish(f"snapshot.request.{TABLE}", b"")
        await consumer.client.publish("snapshot.request.nosuch", b"")
        metas = await js.subscribe(f"init.meta.{TABLE}", ordered_consumer=True)
        meta = msgpack.unpackb((await metas.next_msg(timeout=120)).data)
        assert list(meta) == [
            "snapshot_id",
            "lsn",
            "timestamp",
            "batch_count",
            "row_count",
            "table",
        ]
        assert re.fullmatch(r"[0-9A-F]+/[0-9A-F]+", meta["lsn"])
        assert isinstance(meta["timestamp"], int)
        assert (meta["batch_count"], meta["row_count"], meta["table"]) == (1, 2, TABLE)
        chunks = await js.subscribe(
            f"init.snap.{TABLE}.{meta['snapshot_id']}.0", ordered_consumer=True
        )
        chunk = msgpack.unpackb((await chunks.next_msg(timeout=10)).data)
        assert list(chunk) == ["table", "operation", "snapshot_id", "chunk", "lsn", "data"]
        assert {**chunk, "data": None} == {
            "table": TABLE,
            "operation": "snapshot",
            "snapshot_id": meta["snapshot_id"],
            "chunk": 0,
            "lsn": meta["lsn"],
            "data": None,
        }
        first, second = sorted(chunk["data"], key=lambda row: str(row["id"]))
        assert first == {"id": "1", **TEXTS}
        assert second == {"id": "2", **dict.fromkeys(TEXTS)}
        errors = await js.subscribe("init.error.nosuch", ordered_consumer=True)
        error = msgpack.unpackb((await errors.next_msg(timeout=10)).data)
        assert error == {
            "error": "table_not_in_publication",
            "table": "nosuch",
            "available_tables": [TABLE],
        }


async def requests_taken(client: Client) -> None:
    """Wait until the work queue of requests exists."""
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(nats.js.errors.Error):
                await client.jetstream().stream_info("SNAPSHOT_REQUESTS")
                return
            await asyncio.sleep(0.1)
