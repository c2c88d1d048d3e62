"""A table that a target can't store is parked with its reason, and the others continue. It is tried
again when that may help.

Snapshots are of empty tables, and the test answers the requests: no Spark.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgpack
import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from headrace.consumer import Watermark
from headrace.contract.events import REPLY_HEADER, encode
from headrace.contract.subjects_and_ids import meta_subject, schema_subject, table_token
from headrace.contract.values import Encoding
from headrace.jetstream.provisioning import ensure
from headrace.mirror import Mirror, opened
from headrace.mirror.table import Phase
from headrace.mirror.target import ReadableTarget, TargetError
from headrace.settings import StreamSettings
from headrace.testing.database import Database
from headrace.testing.mirror_process import MirrorProcess
from headrace.testing.plugin import OwnNats

PATIENCE_S = 60.0
SOUND = {"id": "integer", "t": "text"}


@pytest.fixture
async def client(own_nats: OwnNats) -> AsyncIterator[Client]:
    """Connected to a server where every snapshot is of an empty table."""
    server = await own_nats()
    connection = await nats.connect(server.url)
    js = connection.jetstream()
    await ensure(js, StreamSettings())
    # As a publisher writes it down that is past all of it: on a source at rest a table is shown by
    # that.
    bucket = await connection.jetstream().key_value(StreamSettings().state)
    await bucket.put("progress.s", msgpack.packb({"confirmed_lsn": 1 << 40, "stream_seq": 0}))

    async def answer(message: Msg) -> None:
        token = message.subject.rpartition(".")[2]
        snapshot_id = f"snap-{(await js.stream_info('INIT')).state.last_seq}"
        body = {
            "snapshot_id": snapshot_id,
            "lsn": "0/10",
            "batch_count": 0,
            "row_count": 0,
            "source": "s",
        }
        await js.publish(meta_subject(token), encode(body, Encoding.MSGPACK))
        inbox = (message.headers or {})[REPLY_HEADER]
        await connection.publish(
            inbox, encode({"snapshot_id": snapshot_id, "status": "accepted"}, Encoding.MSGPACK)
        )

    await connection.subscribe("snapshot.request.>", cb=answer)
    yield connection
    await connection.close()


def shape(schema: str, table: str, columns: dict[str, str], version: int) -> dict[str, Any]:
    return {
        "table": table,
        "columns": [{"name": name, "data_type": kind} for name, kind in columns.items()],
        "primary_key": [],
        "identity": [],
        "replica_identity": "n",
        "version": version,
        "source": "s",
        "schema": schema,
    }


async def publish_table(client: Client, schema: str, table: str, columns: dict[str, str]) -> None:
    bucket = await client.jetstream().key_value(StreamSettings().schemas)
    value = {**shape(schema, table, columns, 1), "schema": f"{schema}.{table}"}
    await bucket.put(table_token(schema, table), encode(value, Encoding.MSGPACK))


async def send_shape(
    client: Client, table: str, columns: dict[str, str], lsn: int, *, resync: bool = True
) -> None:
    tx = {"xid": 0, "lsn": lsn, "ts": None, "seq": 0, "last": False}
    body = shape("public", table, columns, 2)
    event = {**body, "operation": "SCHEMA", "changes": [], "resync": resync, "tx": tx}
    await client.jetstream().publish(schema_subject(table), encode(event, Encoding.MSGPACK))


async def insert(
    client: Client, table: str, lsn: int, data: dict[str, Any], *, seq: int = 0, last: bool = True
) -> None:
    tx = {"xid": lsn, "lsn": lsn, "ts": None, "seq": seq, "last": last}
    event = {
        "table": table,
        "schema": "public",
        "source": "s",
        "operation": "INSERT",
        "data": data,
        "tx": tx,
    }
    await client.jetstream().publish(f"cdc.{table}.insert", encode(event, Encoding.MSGPACK))


@contextlib.asynccontextmanager
async def mirroring(client: Client, target: ReadableTarget) -> AsyncIterator[Mirror]:
    mirror, stopping = Mirror(client, target), asyncio.Event()
    running = asyncio.create_task(mirror.run(stopping))
    try:
        yield mirror
    finally:
        stopping.set()
        async with asyncio.timeout(PATIENCE_S):
            await running


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not happened():  # noqa: ASYNC110  # a book and a file tell nobody
            await asyncio.sleep(0.05)


def applied(mirror: Mirror) -> int:
    """The LSN of the last transaction that is committed in the target."""
    if mirror.book.lock.locked():
        return -1
    return mirror.book.lanes.get("s", Watermark()).position.lsn


def phases(mirror: Mirror) -> dict[str, Phase]:
    """Of the tables, as the target says; none while something is written to it."""
    if mirror.book.lock.locked():
        return {}
    return {token: state.phase for token, state in mirror.book.tables.items()}


def follows(mirror: Mirror, *tokens: str) -> bool:
    """Whether these are the mirror's tables, and all of them are followed."""
    return phases(mirror) == dict.fromkeys(tokens, Phase.FOLLOWING)


async def test_columns_that_differ_by_case_alone_park_that_table_until_its_shape_changes(
    client: Client, tmp_path: Path
) -> None:
    await publish_table(client, "public", "twins", {"a": "integer", "A": "integer"})
    await publish_table(client, "public", "sound", SOUND)
    path = tmp_path / "m.db"

    def rows(table: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(path, timeout=30)) as file:
            return file.execute(f"SELECT * FROM {table}").fetchall()

    async with opened(f"sqlite:///{path}") as target, mirroring(client, target) as mirror:
        await until(lambda: phases(mirror) == {"twins": Phase.PARKED, "sound": Phase.FOLLOWING})
        assert "duplicate column name" in mirror.parked["twins"]
        assert mirror.is_whole
        await insert(client, "sound", 100, {"id": 1, "t": "x"})
        await until(lambda: rows("sound") == [(1, "x")])
        await mirror.look()
        assert mirror.stats.number("mirror_parked") == 1
        await send_shape(client, "twins", {"a": "integer", "b": "integer"}, 200)
        await until(lambda: phases(mirror).get("twins") is Phase.FOLLOWING)
        await insert(client, "twins", 300, {"a": 1, "b": 2})
        await until(lambda: rows("twins") == [(1, 2)])


async def test_a_mirror_that_parks_a_table_is_ready_and_names_it(
    client: Client, tmp_path: Path
) -> None:
    await publish_table(client, "app", "twins", {"a": "integer", "A": "integer"})
    await publish_table(client, "public", "sound", SOUND)
    assert client.connected_url is not None
    environment = {"NATS_URL": client.connected_url.geturl()}
    to = f"sqlite:///{tmp_path}/m.db"
    mirror = MirrorProcess(environment, tmp_path, "served", to, "--http", "0")
    await mirror.start()
    await mirror.logged("event=ready")
    (port,) = re.findall(r"http_listening .*port=(\d+)", mirror.log)
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/readyz") as got:
        status, body = got.status, await got.json()
    assert (status, body["status"], body["reasons"]) == (200, "ok", {})
    # Only the name: the target's message may contain a row's values.
    assert body["warnings"] == {
        "parked": "the target refuses app.twins; the log contains the reason (table_parked)"
    }
    assert await mirror.stop() == 0


async def test_what_the_mirror_keeps_for_itself_and_what_a_view_stands_on_are_parked(
    client: Client, database: Database
) -> None:
    await publish_table(client, "headrace_mirror", "marks", {"key": "text", "value": "text"})
    await publish_table(client, "public", "seen", SOUND)
    await publish_table(client, "public", "sound", SOUND)
    parked = {"headrace_mirror=2Fmarks": Phase.PARKED, "sound": Phase.FOLLOWING}
    async with opened(database.dsn) as target:
        async with mirroring(client, target) as mirror:
            await until(lambda: phases(mirror) == {**parked, "seen": Phase.FOLLOWING})
            await database.execute("CREATE MATERIALIZED VIEW looked_at AS SELECT * FROM seen")
            async with mirror.book.lock:
                mirror.book.want("public", "seen", "test")
                await mirror.book.commit()
            await until(lambda: phases(mirror) == {**parked, "seen": Phase.PARKED})
            assert "is reserved for the mirror" in mirror.parked["headrace_mirror=2Fmarks"]
            assert "seen" in mirror.parked["seen"]
        assert (
            await database.fetchval(
                "SELECT count(*) FROM headrace_mirror.marks WHERE key LIKE 'table %'"
            )
            == 3
        )
        # A start is a request to try again.
        await database.execute("DROP MATERIALIZED VIEW looked_at")
        async with mirroring(client, target) as mirror:
            await until(lambda: phases(mirror) == {**parked, "seen": Phase.FOLLOWING})


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_table_that_somebody_else_created_in_the_target_is_left_alone(
    client: Client, database: Database, tmp_path: Path, kind: str
) -> None:
    """A user who names the wrong database, or the source itself, loses nothing."""
    await publish_table(client, "public", "precious", SOUND)
    await publish_table(client, "public", "sound", SOUND)

    async def execute(sql: str) -> list[Any]:
        if kind == "postgresql":
            return [tuple(row) for row in await database.fetch(sql)]
        with contextlib.closing(sqlite3.connect(tmp_path / "m.db", timeout=30)) as file, file:
            return file.execute(sql).fetchall()

    await execute("CREATE TABLE precious (mine text)")
    await execute("INSERT INTO precious VALUES ('all of it')")
    to = database.dsn if kind == "postgresql" else f"sqlite:///{tmp_path}/m.db"
    async with opened(to) as target:
        async with mirroring(client, target) as mirror:
            await until(
                lambda: phases(mirror) == {"precious": Phase.PARKED, "sound": Phase.FOLLOWING}
            )
            assert "exists there already" in mirror.parked["precious"]
        assert await execute("SELECT * FROM precious") == [("all of it",)]
        await execute("ALTER TABLE precious RENAME TO kept")
        async with mirroring(client, target) as mirror:
            await until(lambda: set(phases(mirror).values()) == {Phase.FOLLOWING})
            await insert(client, "precious", 100, {"id": 1, "t": "x"})
            await until(lambda: applied(mirror) == 100)
    assert await execute("SELECT * FROM precious") == [(1, "x")]
    assert await execute("SELECT * FROM kept") == [("all of it",)]


async def test_a_change_that_the_target_refuses_parks_its_table_and_the_others_have_its_transaction_whole(
    client: Client, database: Database
) -> None:
    await publish_table(client, "public", "picky", SOUND)
    await publish_table(client, "public", "sound", SOUND)

    async def ids(table: str) -> list[int]:
        return [row["id"] for row in await database.fetch(f"SELECT id FROM {table} ORDER BY id")]

    async with opened(database.dsn) as target:
        async with mirroring(client, target) as mirror:
            await until(lambda: follows(mirror, "picky", "sound"))
            await database.execute("ALTER TABLE picky ADD CONSTRAINT small CHECK (id < 10)")
            for lsn in (100, 200):
                await insert(client, "picky", lsn, {"id": lsn // 100, "t": "x"})
            await until(lambda: applied(mirror) == 200)
            await insert(client, "sound", 300, {"id": 1, "t": "x"}, last=False)
            await insert(client, "picky", 300, {"id": 99, "t": "x"}, seq=1, last=False)
            await insert(client, "sound", 300, {"id": 2, "t": "x"}, seq=2)
            await insert(client, "picky", 400, {"id": 3, "t": "x"})
            await insert(client, "sound", 500, {"id": 3, "t": "x"})
            await until(lambda: phases(mirror) == {"picky": Phase.PARKED, "sound": Phase.FOLLOWING})
            await until(lambda: applied(mirror) == 500)
            assert "small" in mirror.parked["picky"]
            assert (await ids("sound"), await ids("picky")) == ([1, 2, 3], [1, 2])
            await mirror.look()
            assert mirror.stats.number("mirror_parked") == 1
        # A start copies it again. The copy would have the constraint, too.
        await database.execute("ALTER TABLE picky DROP CONSTRAINT small")
        async with mirroring(client, target) as mirror:
            await until(lambda: phases(mirror).get("picky") is Phase.FOLLOWING)
            await insert(client, "picky", 600, {"id": 99, "t": "x"})
            await until(lambda: applied(mirror) == 600)
            assert await ids("picky") == [99]


@contextlib.asynccontextmanager
async def beside_a_sound_one(
    client: Client, database: Database, name: str
) -> AsyncIterator[Mirror]:
    """A mirror in PostgreSQL that follows this table, and another one that nothing happens to."""
    for table in (name, "sound"):
        await publish_table(client, "public", table, SOUND)
    async with opened(database.dsn) as target, mirroring(client, target) as mirror:
        await until(lambda: follows(mirror, name, "sound"))
        yield mirror


async def test_a_deferred_constraint_that_refuses_the_commit_parks_its_table(
    client: Client, database: Database
) -> None:
    async with beside_a_sound_one(client, database, "picky") as mirror:
        await database.execute(
            "ALTER TABLE picky ADD CONSTRAINT once UNIQUE (t) DEFERRABLE INITIALLY DEFERRED"
        )
        await insert(client, "sound", 100, {"id": 1, "t": "x"}, last=False)
        await insert(client, "picky", 100, {"id": 1, "t": "x"}, seq=1, last=False)
        await insert(client, "picky", 100, {"id": 2, "t": "x"}, seq=2)
        await insert(client, "sound", 200, {"id": 2, "t": "x"})
        await until(lambda: phases(mirror) == {"picky": Phase.PARKED, "sound": Phase.FOLLOWING})
        await until(lambda: applied(mirror) == 200)
        assert "once" in mirror.parked["picky"]
        assert await database.fetchval("SELECT array_agg(id ORDER BY id) FROM sound") == [1, 2]
        assert await database.fetchval("SELECT count(*) FROM picky") == 0


async def test_a_commit_that_is_refused_for_no_table_is_tried_until_it_is_taken(
    client: Client, database: Database
) -> None:
    await publish_table(client, "public", "sound", SOUND)
    async with opened(database.dsn) as target, mirroring(client, target) as mirror:
        await until(lambda: follows(mirror, "sound"))
        await database.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN RAISE EXCEPTION 'not today'; END$$"
        )
        await database.execute(
            "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON sound DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
        await insert(client, "sound", 100, {"id": 1, "t": "x"})
        await until(lambda: "not today" in mirror.trouble)
        assert (mirror.trouble_with, mirror.parked) == ("target", {})
        assert await database.fetchval("SELECT count(*) FROM sound") == 0
        await database.execute("DROP TRIGGER late ON sound")
        async with asyncio.timeout(PATIENCE_S):
            while await database.fetchval("SELECT array_agg(id) FROM sound") != [1]:  # noqa: ASYNC110  # PostgreSQL gives no event
                await asyncio.sleep(0.05)


async def test_a_lock_that_somebody_holds_for_long_parks_nothing(
    client: Client, database: Database
) -> None:
    await publish_table(client, "public", "sound", SOUND)
    await publish_table(client, "public", "held", SOUND)
    await database.execute(f'ALTER DATABASE "{database.name}" SET lock_timeout = 50')
    async with opened(database.dsn) as target, mirroring(client, target) as mirror:
        await until(lambda: follows(mirror, "sound", "held"))
        holder = await database.connect()
        async with holder.transaction():
            await holder.execute("LOCK TABLE held IN EXCLUSIVE MODE")
            await insert(client, "held", 100, {"id": 1, "t": "x"})
            await until(lambda: "lock timeout" in mirror.trouble or bool(mirror.parked))
        await until(lambda: applied(mirror) == 100)
        assert mirror.parked == {}
        assert await database.fetchval("SELECT count(*) FROM held") == 1


async def test_a_change_of_shape_that_the_target_refuses_parks_its_table_and_the_others_go_on(
    client: Client, database: Database
) -> None:
    async with beside_a_sound_one(client, database, "seen") as mirror:
        await insert(client, "seen", 100, {"id": 1, "t": "x"})
        await until(lambda: applied(mirror) == 100)
        await database.execute("CREATE MATERIALIZED VIEW looked_at AS SELECT t FROM seen")
        await send_shape(client, "seen", {"id": "integer", "t": "bytea"}, 200, resync=False)
        await insert(client, "seen", 300, {"id": 2, "t": b"x"})
        await insert(client, "sound", 400, {"id": 1, "t": "x"})
        await until(lambda: applied(mirror) == 400)
        await until(lambda: phases(mirror) == {"seen": Phase.PARKED, "sound": Phase.FOLLOWING})
        # Its visible content stays, and other tables are not affected.
        assert await database.fetchval("SELECT string_agg(t, ',') FROM looked_at") == "x"
        assert await database.fetchval("SELECT count(*) FROM sound") == 1
        assert mirror.awaited == ""


async def test_a_target_that_takes_no_table_at_all_ends_the_mirror_with_its_reason(
    client: Client, tmp_path: Path
) -> None:
    await publish_table(client, "public", "twins", {"a": "integer", "A": "integer"})
    async with opened(f"sqlite:///{tmp_path}/m.db") as target, asyncio.timeout(PATIENCE_S):
        with pytest.raises(TargetError, match="duplicate column name"):
            await Mirror(client, target).run(asyncio.Event())
