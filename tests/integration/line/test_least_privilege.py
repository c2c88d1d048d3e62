"""The suite runs with exactly the roles and permissions that deploy/ ships, and a consumer's
credentials do no harm.

Everything here is as compose.yaml has it: who the services are in PostgreSQL and NATS, and what
those users may do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import psycopg
import pytest
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from pytest_asyncio import fixture as async_fixture
from zstandard import ZstdDecompressor

from headrace.bus import subjects
from headrace.cli.sql.users import add as add_user
from headrace.consumer import MemoryWatermarks, Start, Subscription, follow
from headrace.contract.events import decode
from headrace.jetstream.object_store import ObjectStore
from headrace.settings import load
from headrace.testing.process import command
from headrace.testing.servers import SessionServers
from tests.chart.deployment import SUITE, Deployment, deployed
from tests.oracle.lake import ForeignLake

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

SLOT = "headrace"
ALL = (
    *SUITE,
    *("archiver", "audit-writer", "lake-writer"),
    *("sql-server", "wal-archiver", "sink"),
)
INBOX = "_INBOX_consumer"
PATIENCE_S = 60.0
INTERNAL = ("frames", "control", "stop", "stats.publisher", "doctor", "snapshot.x")


@async_fixture(scope="module", loop_scope="module")
async def suite(
    session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Deployment]:
    """All services except the mirror, ready, on a table of one row."""
    (archive := tmp_path_factory.mktemp("archive")).chmod(0o777)
    (lake := tmp_path_factory.mktemp("lake")).chmod(0o777)
    (mirror := tmp_path_factory.mktemp("mirror")).chmod(0o777)
    (backup := tmp_path_factory.mktemp("backup")).chmod(0o777)
    places = {
        "HEADRACE_LAKE_URL": lake.as_uri(),
        # As in the image of the lake, which has no Spark.
        "HEADRACE_LAKE_ENGINE": "inline",
        "HEADRACE_ARCHIVE_URL": archive.as_uri(),
        "HEADRACE_BACKUP_URL": backup.as_uri(),
        "HEADRACE_MIRROR_TO": f"sqlite:///{mirror}/mirror.db",
    }
    async with deployed(
        session_servers, tmp_path_factory.mktemp("deployed"), **places
    ) as deployment:
        await execute(deployment, "CREATE TABLE orders (id int PRIMARY KEY, what text)")
        await execute(deployment, "INSERT INTO orders VALUES (0, 'before')")
        await deployment.set_up()
        await deployment.run("backup-init")
        for name in ALL:
            await deployment.start(name)
        await deployment.ready(*ALL)
        yield deployment


async def execute(suite: Deployment, sql: str) -> Any:
    session = await asyncpg.connect(suite.postgres.dsn("headrace"))
    try:
        return await session.fetch(sql)
    finally:
        await session.close()


@async_fixture(loop_scope="module")
async def consumer(suite: Deployment) -> AsyncIterator[Client]:
    client = await suite.connect("consumer", inbox_prefix=INBOX)
    yield client
    await client.close()


class Complaints:
    """A consumer's connection, and what the server refuses it."""

    def __init__(self) -> None:
        self.client: Client
        self._errors: asyncio.Queue[str] = asyncio.Queue()

    async def note(self, error: Exception) -> None:
        if "permissions violation" in str(error).lower():
            self._errors.put_nowait(str(error).lower())

    async def refused(self, subject: str) -> None:
        """Wait until the server has refused this."""
        async with asyncio.timeout(PATIENCE_S):
            while f'"{subject.lower()}"' not in await self._errors.get():
                pass


@async_fixture(loop_scope="module")
async def complaints(suite: Deployment) -> AsyncIterator[Complaints]:
    heard = Complaints()
    heard.client = await suite.connect("consumer", inbox_prefix=INBOX, error_cb=heard.note)
    yield heard
    await heard.client.close()


async def test_a_consumer_follows_changes_with_its_own_rights(
    suite: Deployment, consumer: Client
) -> None:
    subscription = Subscription(durable="billing", start=Start.ALL)
    async with (
        asyncio.timeout(PATIENCE_S),
        follow(consumer, subscription, MemoryWatermarks()) as changes,
    ):
        await execute(suite, "INSERT INTO orders VALUES (1, 'one')")
        async for event in changes:
            await changes.done(event)
            if event.payload["operation"] == "INSERT" and event.payload["data"]["id"] == 1:
                break


async def test_a_consumer_bootstraps_with_its_own_rights(
    suite: Deployment, consumer: Client
) -> None:
    """Schema, snapshot, chunks, and an event too large for a message."""
    schemas = await consumer.jetstream().key_value("schemas")
    assert decode((await schemas.get("orders")).value or b"")["table"] == "orders"
    results = await consumer.jetstream().subscribe("init.*.orders", stream="INIT")
    answer = decode((await consumer.request("snapshot.request.orders", b"", timeout=10)).data)
    assert answer["status"] == "accepted"
    meta = decode((await results.next_msg(timeout=240)).data)
    assert meta.get("error") is None
    assert meta["snapshot_id"] == answer["snapshot_id"]
    chunks = await consumer.jetstream().subscribe(
        f"init.snap.orders.{meta['snapshot_id']}.>", stream="INIT"
    )
    assert decode((await chunks.next_msg(timeout=10)).data)["data"][0]["what"] == "before"


async def test_a_table_that_is_not_delivered_is_refused_at_once(
    suite: Deployment, consumer: Client
) -> None:
    """The responder may look whether the table is another suite's."""
    answer = decode(
        (await consumer.request("snapshot.request.headrace_audit=2Fchanges", b"", timeout=20)).data
    )
    assert answer["status"] == "rejected"


async def test_the_commands_of_a_consumer_work_with_its_own_rights_and_say_which_setting_is_missing(
    suite: Deployment,
) -> None:
    environment = {
        "NATS_URL": suite.nats_server.url,
        "NATS_BRIDGE_USER": "consumer",
        "NATS_BRIDGE_PASSWORD": suite.secrets["NATS_CONSUMER_PASSWORD"],
    }
    for words in (["snapshot", "nobody"], ["tail"]):
        deaf = await command(environment, *words)
        assert (deaf.code, "Traceback" in deaf.err) == (1, False), deaf.err
        assert "NATS_INBOX_PREFIX" in " ".join(deaf.err.split()), words
    heard = await command({**environment, "NATS_INBOX_PREFIX": INBOX}, "snapshot", "nobody")
    assert heard.code == 1
    assert "Request a table of the publication" in " ".join(heard.err.split())


async def test_the_trail_is_written_with_its_own_rights_and_is_not_in_the_stream(
    suite: Deployment,
) -> None:
    context = "SELECT pg_logical_emit_message(true, '_bemi', '{\"user\": 7}')"
    await execute(
        suite, f"WITH context AS ({context}) INSERT INTO orders SELECT 70, 'x' FROM context"
    )
    query = (
        "SELECT context->>'user' AS user_id FROM headrace_audit.changes WHERE after->>'id' = '70'"
    )
    async with asyncio.timeout(PATIENCE_S):
        while not (found := await execute(suite, query)):  # noqa: ASYNC110  # another process writes it
            await asyncio.sleep(0.1)
    assert [row["user_id"] for row in found] == ["7"]
    admin = await suite.connect("admin")
    subjects = (
        await admin.jetstream().stream_info("CDC", subjects_filter="cdc.>")
    ).state.subjects or {}
    await admin.close()
    assert [subject for subject in subjects if "headrace_audit" in subject] == []


async def test_a_mirror_bootstraps_and_follows_with_its_own_rights(suite: Deployment) -> None:
    await suite.start("mirror")
    # Its snapshots need the JVM, which the first one starts.
    await suite.ready("mirror", timeout_s=240)
    await execute(suite, "INSERT INTO orders VALUES (71, 'copied')")
    place = next(
        word for word in suite.composed["mirror"].command if word.startswith("sqlite")
    ).removeprefix("sqlite://")
    async with asyncio.timeout(PATIENCE_S):
        while copied(place) != ("copied",):  # noqa: ASYNC110  # another process writes it
            await asyncio.sleep(0.1)


def copied(place: str) -> Any:
    with contextlib.closing(sqlite3.connect(place, timeout=30)) as mirror:
        return mirror.execute("SELECT what FROM orders WHERE id = 71").fetchone()


async def test_an_event_too_large_for_a_message_is_kept_and_read(
    suite: Deployment, consumer: Client
) -> None:
    events = await consumer.jetstream().subscribe(
        "cdc.orders.insert", stream="CDC", deliver_policy=DeliverPolicy.NEW
    )
    await execute(
        suite,
        (
            "INSERT INTO orders VALUES (2, (SELECT string_agg(md5(g::text), '') FROM "
            "generate_series(1, 40000) g))"
        ),
    )
    event = decode((await events.next_msg(timeout=PATIENCE_S)).data)
    large = ObjectStore(consumer.jetstream(), "headrace_large")
    assert len(decode(await large.get(event["msg_id"]))["data"]["what"]) == 40000 * 32


async def test_the_archiver_archives_with_its_own_rights(suite: Deployment) -> None:
    await execute(suite, "INSERT INTO orders VALUES (3, 'for the archive')")
    folder = Path(suite.more["HEADRACE_ARCHIVE_URL"].removeprefix("file://"))
    async with asyncio.timeout(PATIENCE_S):
        while not any(path.is_file() and path.stat().st_size for path in folder.rglob("*")):  # noqa: ASYNC110, ASYNC240  # files give no event
            await asyncio.sleep(0.2)


async def test_base_snapshots_are_taken_with_the_rights_of_a_snapshot(suite: Deployment) -> None:
    await execute(suite, "INSERT INTO orders VALUES (35, 'in the base')")
    assert "public.orders at" in await suite.run("archive-base")


async def test_the_lake_is_written_with_its_own_rights(suite: Deployment) -> None:
    lake = ForeignLake(Path(suite.more["HEADRACE_LAKE_URL"].removeprefix("file://")))
    await execute(suite, "INSERT INTO orders VALUES (31, 'in the lake')")
    async with asyncio.timeout(PATIENCE_S):
        while not await asyncio.to_thread(in_the_lake, lake):  # noqa: ASYNC110  # a file tells nobody
            await asyncio.sleep(0.3)


def in_the_lake(lake: ForeignLake) -> bool:
    return lake.cut() is not None and (31, "in the lake") in lake.rows("public.orders", "id, what")


async def test_the_sql_server_answers_with_its_own_rights(suite: Deployment) -> None:
    """Its NATS user may only report: the rows come from the lake."""
    await execute(suite, "INSERT INTO orders VALUES (32, 'in SQL')")
    reader = await asyncio.to_thread(a_reader_of_the_lake, suite)
    async with asyncio.timeout(PATIENCE_S):
        while not await asyncio.to_thread(answered, reader):  # noqa: ASYNC110  # a cut tells nobody
            await asyncio.sleep(0.3)


def a_reader_of_the_lake(suite: Deployment) -> str:
    settings = load(suite.environment("sql-server")).sql
    password = add_user(settings, "ann", None, all_tables=True)
    port = suite.port("sql-server", "sql_listening")
    return f"host=127.0.0.1 port={port} dbname=lake user=ann password={password}"


def answered(reader: str) -> bool:
    with psycopg.connect(reader) as session:
        try:
            rows = session.execute("SELECT what FROM orders WHERE id = 32").fetchall()
        except psycopg.errors.UndefinedTable:
            return False
    return rows == [("in SQL",)]


async def test_the_log_and_a_backup_are_stored_with_their_own_rights(suite: Deployment) -> None:
    await execute(suite, "INSERT INTO orders VALUES (33, 'in the backup')")
    out = await suite.run("base-backup")
    folder = Path(suite.more["HEADRACE_BACKUP_URL"].removeprefix("file://"))
    stored = await asyncio.to_thread(lambda: [path.name for path in folder.rglob("*")])
    assert "backup.json" in stored, out
    assert any(re.fullmatch(r"[0-9A-F]{24}\..*zst", name) for name in stored), stored


async def test_a_sink_delivers_with_its_own_rights(suite: Deployment) -> None:
    await execute(suite, "INSERT INTO orders VALUES (34, 'in the sink')")
    async with asyncio.timeout(PATIENCE_S):
        while b"in the sink" not in await asyncio.to_thread(sunk, suite):  # noqa: ASYNC110  # files give no event
            await asyncio.sleep(0.3)


def sunk(suite: Deployment) -> bytes:
    """The sink's files, read by another program."""
    files = sorted((suite.folder / "sinks").rglob("*.ndjson.zst"))
    return b"".join(ZstdDecompressor().decompressobj().decompress(f.read_bytes()) for f in files)


async def test_telemetry_hears_every_service(suite: Deployment) -> None:
    """Also those whose rights are only for that."""
    wanted = {name for name in ALL if name != "sink"} | {"sink-files"}
    port = suite.port("telemetry")
    async with aiohttp.ClientSession() as http, asyncio.timeout(PATIENCE_S):
        while True:
            async with http.get(f"http://127.0.0.1:{port}/status") as answer:
                services = (await answer.json())["services"]
            if {name for name, one in services.items() if one["state"] == "ready"} >= wanted:
                return
            await asyncio.sleep(0.3)


@pytest.mark.parametrize(
    ("user", "subject"),
    [
        ("sql-server", "headrace.headrace.stats.publisher"),
        ("sql-server", "$JS.API.STREAM.INFO.CDC"),
        ("sql-server", "cdc.orders.insert"),
        ("wal-archiver", "headrace.headrace.control"),
        ("wal-archiver", "$JS.API.DIRECT.GET.CDC"),
        ("wal-archiver", "$KV.headrace_state.progress.headrace"),
        ("sink", "cdc.orders.insert"),
        ("sink", "headrace.headrace.stats.publisher"),
        ("sink", "headrace.headrace.stop"),
        ("sink", "$KV.headrace_state.progress.headrace"),
        ("sink", "$KV.schemas.orders"),
        ("sink", "$JS.API.STREAM.DELETE.CDC"),
        ("sink", "$JS.API.STREAM.PURGE.CDC"),
        ("sink", "$JS.API.DIRECT.GET.KV_headrace_state.$KV.headrace_state.shape.headrace.orders"),
    ],
)
async def test_a_service_may_publish_only_what_is_its_own(
    suite: Deployment, user: str, subject: str
) -> None:
    heard = Complaints()
    heard.client = await suite.connect(user, error_cb=heard.note)
    await heard.client.publish(subject, b"")
    await heard.refused(subject)
    await heard.client.close()


@pytest.mark.parametrize("user", ["sql-server", "wal-archiver", "sink"])
@pytest.mark.parametrize("subject", ["headrace.headrace.frames", "cdc.>", "$KV.headrace_state.>"])
async def test_a_service_hears_only_what_is_for_it(
    suite: Deployment, user: str, subject: str
) -> None:
    heard = Complaints()
    heard.client = await suite.connect(user, error_cb=heard.note)
    await heard.client.subscribe(subject)
    await heard.refused(subject)
    await heard.client.close()


async def test_every_health_check_of_compose_passes(suite: Deployment) -> None:
    for name in ALL:
        # Compose asks again too: a publisher is not ready for as long as an interruption is not
        # repaired.
        async with asyncio.timeout(PATIENCE_S):
            while await suite.probed(name):  # noqa: ASYNC110  # a probe tells nobody
                await asyncio.sleep(0.5)


async def test_no_service_asks_for_more_than_it_may(suite: Deployment) -> None:
    denials = ("ermissions violation", "permission denied")
    said = [
        line
        for name in suite.running
        for line in suite.log(name).splitlines()
        if any(denial in line for denial in denials)
    ]
    assert said == []


async def test_no_log_holds_a_password(suite: Deployment) -> None:
    logs = "".join(suite.log(name) for name in suite.running)
    assert logs
    assert [name for name, secret in suite.secrets.items() if secret in logs] == []


@pytest.mark.parametrize(
    "subject",
    [
        "cdc.orders.insert",
        "cdc._gap",
        "init.meta.orders",
        "$KV.schemas.orders",
        "$O.headrace_large.M.x",
    ],
)
async def test_a_consumer_can_not_publish_what_only_the_suite_says(
    complaints: Complaints, subject: str
) -> None:
    await complaints.client.publish(subject, b"forged")
    await complaints.refused(subject)


@pytest.mark.parametrize("name", INTERNAL)
async def test_a_consumer_neither_reads_nor_writes_the_internal_bus(
    complaints: Complaints, name: str
) -> None:
    subject = f"headrace.{SLOT}.{name}"
    await complaints.client.publish(subject, b"")
    await complaints.refused(subject)
    await complaints.client.subscribe(subject)
    await complaints.refused(subject)


@pytest.mark.parametrize(
    "subject", [">", "headrace.>", "_INBOX.>", "$KV.headrace_state.>", "$JS.API.>", "$SYS.>"]
)
async def test_a_consumer_hears_nothing_that_is_not_for_it(
    complaints: Complaints, subject: str
) -> None:
    await complaints.client.subscribe(subject)
    await complaints.refused(subject)


@pytest.mark.parametrize(
    "subject",
    [
        "$JS.API.STREAM.DELETE.CDC",
        "$JS.API.STREAM.PURGE.CDC",
        "$JS.API.STREAM.UPDATE.CDC",
        "$JS.API.STREAM.MSG.DELETE.CDC",
        "$JS.API.STREAM.CREATE.mine",
        "$JS.API.STREAM.MSG.GET.KV_headrace_state",
        "$JS.API.DIRECT.GET.KV_headrace_state",
        "$JS.API.CONSUMER.CREATE.KV_headrace_state.x",
        "$JS.API.CONSUMER.DELETE.SNAPSHOT_REQUESTS.headrace-snapshot-responder",
        "$JS.API.CONSUMER.MSG.NEXT.SNAPSHOT_REQUESTS.headrace-snapshot-responder",
    ],
)
async def test_a_consumer_administers_nothing(complaints: Complaints, subject: str) -> None:
    await complaints.client.publish(subject, b"{}")
    await complaints.refused(subject)


async def test_nobody_stops_the_suite_by_an_answer_sent_astray(
    suite: Deployment, consumer: Client
) -> None:
    """A request may name any subject for its answer, and the server checks no right there: nor may
    it matter.
    """
    stop = subjects.stop(SLOT)
    watcher = await suite.connect("admin")
    heard = await watcher.subscribe(stop)
    await watcher.flush()
    await consumer.publish("$JS.API.STREAM.INFO.CDC", b"", reply=stop)
    await consumer.publish("snapshot.request.orders", b"", reply=stop)
    pull = ConsumerConfig(durable_name="astray", ack_policy=AckPolicy.NONE)
    await consumer.jetstream().add_consumer("CDC", pull)
    await consumer.publish("$JS.API.CONSUMER.MSG.NEXT.CDC.astray", b"1", reply=stop)
    push = {
        "stream_name": "CDC",
        "config": {"deliver_subject": stop, "ack_policy": "none", "deliver_policy": "all"},
    }
    await consumer.publish("$JS.API.CONSUMER.CREATE.CDC", json.dumps(push).encode(), reply=stop)
    await consumer.flush()
    async with asyncio.timeout(PATIENCE_S):
        await heard.next_msg(timeout=PATIENCE_S)
    await watcher.close()
    await execute(suite, "INSERT INTO orders VALUES (7, 'still here')")
    await suite.ready(*ALL)
    assert {name for name in ALL if suite.running[name].returncode is not None} == set()
    assert {name for name in ALL if "stop_requested" in suite.log(name)} == set()


@pytest.mark.parametrize(
    "role", ["headrace_reader", "headrace_catalog", "headrace_snapshot", "headrace_backup"]
)
async def test_no_role_owns_or_writes_anything(suite: Deployment, role: str) -> None:
    rights = await execute(
        suite,
        (
            "SELECT rolsuper, rolcreaterole, rolcreatedb, rolbypassrls FROM pg_roles WHERE "
            f"rolname = '{role}'"
        ),
    )
    assert [tuple(row) for row in rights] == [(False, False, False, False)]
    assert await execute(suite, f"SELECT 1 FROM pg_class WHERE relowner = '{role}'::regrole") == []
    for right in ("INSERT", "UPDATE", "DELETE", "TRUNCATE"):
        assert (await execute(suite, f"SELECT has_table_privilege('{role}', 'orders', '{right}')"))[
            0
        ][0] is False


async def test_only_who_copies_tables_can_read_them(suite: Deployment) -> None:
    readable = {
        role: (await execute(suite, f"SELECT has_table_privilege('{role}', 'orders', 'SELECT')"))[
            0
        ][0]
        for role in ("headrace_reader", "headrace_catalog", "headrace_snapshot", "headrace_backup")
    }
    assert readable == {
        "headrace_reader": False,
        "headrace_catalog": False,
        "headrace_snapshot": True,
        # Through SQL. Its base backups have all rows.
        "headrace_backup": False,
    }


async def test_the_suite_stops_in_order(suite: Deployment) -> None:
    """Last of all: with its own rights, by a signal as for a container."""
    ended = await suite.stop()
    assert set(ALL) <= set(ended)
    assert ended == dict.fromkeys(ended, 0)
