"""`headrace doctor` examines sinks, the SQL server and backups: each problem has its remedy."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig
from pytest_asyncio import fixture as async_fixture

from headrace.cli.doctor.backup import _judge, _Kept
from headrace.cli.doctor.checks import Findings
from headrace.jetstream.object_store import ObjectStore
from headrace.lake.sqlite_catalog import SqliteCatalog
from headrace.testing.database import Database
from headrace.testing.names import Names
from headrace.testing.plugin import OwnNats
from headrace.testing.process import command, service
from tests.support.doctor import checks, states

DAY_S = 86_400
# Of a message.
SIZE = 200_000


@pytest.fixture
def settings(database: Database, names: Names) -> dict[str, str]:
    return {
        "PG_HOST": "127.0.0.1",
        "PG_PORT": str(database.server.port),
        "PG_DB": database.name,
        "POSTGRES_BRIDGE_USER": "headrace",
        "NATS_URL": "nats://127.0.0.1:1",
        **names.settings,
    }


async def test_nothing_is_examined_that_a_suite_does_not_have(settings: dict[str, str]) -> None:
    _, found = await checks(settings)
    assert {check["group"] for check in found.values()} & {"SQL", "Sinks", "Backups"} == set()


async def test_the_doctor_follows_a_backup_from_nothing_to_complete(
    settings: dict[str, str], database: Database, names: Names, tmp_path: Path
) -> None:
    slot = f"{names.slot}_log"
    settings |= {
        "HEADRACE_BACKUP_URL": (tmp_path / "store").as_uri(),
        "HEADRACE_BACKUP_SLOT": slot,
    }
    _, found = await checks(settings)
    assert (found["store"]["state"], "headrace backup init" in found["store"]["remedy"]) == (
        "fail",
        True,
    )
    assert (found["physical slot"]["state"], found["physical slot"]["remedy"]) == (
        "fail",
        "Run `headrace backup init`.",
    )
    assert found["wal_level"]["state"] == "ok"
    try:
        assert (await command(settings, "backup", "init")).code == 0
        _, found = await checks(settings)
        assert (found["store"]["state"], found["physical slot"]["state"]) == ("ok", "warn")
        assert "no wal-archiver is connected" in found["physical slot"]["found"]
        assert (found["base backup"]["state"], found["log"]["state"]) == ("fail", "warn")
        async with service(settings, "wal-archiver") as archiver:
            done = await command(settings, "backup", "now", timeout_s=150)
            assert done.code == 0, done.err
            async with asyncio.timeout(60):
                # It says how far the log is stored every few seconds.
                while set((await states(settings, "Backups")).values()) != {"ok"}:  # noqa: ASYNC110  # the store tells nobody
                    await asyncio.sleep(0.5)
            assert await archiver.stop() == 0
        identity = tmp_path / "store/backup.json"
        body = json.loads(identity.read_text())
        identity.write_text(json.dumps({**body, "system_id": "7"}))
        code, found = await checks(settings)
        assert (code, found["store"]["state"]) == (1, "fail")
        assert "is not of this cluster, but of 7" in found["store"]["found"]
    finally:
        await database.execute(
            f"SELECT pg_drop_replication_slot('{slot}') FROM pg_replication_slots "
            f"WHERE slot_name = '{slot}'"
        )


@pytest.mark.parametrize(
    ("kept", "state"),
    [
        (_Kept(0, 0, 3, ()), {"log": "ok", "base backup": "ok"}),
        (_Kept(120, 0, 3, ()), {"log": "warn", "base backup": "ok"}),
        (_Kept(0, 8 * DAY_S, 3, ()), {"log": "ok", "base backup": "warn"}),
        (_Kept(0, 0, 3, ("0/1 to 0/2",)), {"log": "ok", "holes": "warn", "base backup": "ok"}),
        (_Kept(None, None, 0, ()), {"log": "warn", "base backup": "fail"}),
    ],
)
def test_the_age_of_a_backup_is_judged(kept: _Kept, state: dict[str, str]) -> None:
    """The times are given as ages."""
    now = time.time()
    ages = (kept.log_time, kept.backup_time)
    log, backup = (None if age is None else now - age for age in ages)
    findings = Findings("Backups", [])
    _judge(_Kept(log, backup, kept.backups, kept.holes), findings)
    assert {check.name: check.state.value for check in findings.checks} == state
    assert all(check.remedy for check in findings.checks if check.state != "ok")


@pytest.fixture
def sql(settings: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The settings of a SQL server; its port is one that PostgreSQL answers on."""
    (tmp_path / "lake").mkdir()
    SqliteCatalog(tmp_path / "lake/catalog.db").prepare()
    return settings | {
        "HEADRACE_LAKE_URL": (tmp_path / "lake").as_uri(),
        "HEADRACE_SQL_FOLDER": str(tmp_path / "sql"),
        "HEADRACE_SQL_PORT": settings["PG_PORT"],
    }


async def test_the_doctor_examines_a_sql_server(sql: dict[str, str]) -> None:
    assert await states(sql, "SQL") == {
        "folder": "ok",
        "certificate": "ok",
        "lake": "warn",
        "port": "ok",
    }


@pytest.mark.parametrize(
    ("change", "check", "state", "told"),
    [
        ({"HEADRACE_LAKE_URL": ""}, "settings", "fail", "HEADRACE_LAKE_URL"),
        ({"HEADRACE_SQL_TLS_CERT": "/c.pem"}, "settings", "fail", "HEADRACE_SQL_TLS_KEY"),
        (
            {"HEADRACE_SQL_TLS_CERT": "/c.pem", "HEADRACE_SQL_TLS_KEY": "/k.pem"},
            "certificate",
            "fail",
            "/c.pem can't be used",
        ),
        ({"HEADRACE_SQL_HOST": "::"}, "certificate", "warn", "not encrypted"),
        ({"HEADRACE_SQL_FOLDER": "/proc/self/status"}, "folder", "fail", "not writable"),
        ({"HEADRACE_SQL_PORT": "1"}, "port", "warn", "nothing answers"),
        ({"HEADRACE_LAKE_URL": "file:///nowhere"}, "lake", "fail", "no lake"),
    ],
)
async def test_the_doctor_names_what_keeps_a_sql_server_from_its_clients(
    sql: dict[str, str], change: dict[str, str], check: str, state: str, told: str
) -> None:
    _, found = await checks(sql | change)
    assert (found[check]["state"], bool(found[check]["remedy"])) == (state, True)
    assert told in found[check]["found"] + found[check]["remedy"]


async def test_the_doctor_tells_a_sql_server_from_another_program(sql: dict[str, str]) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as other:
        port = str(other.sockets[0].getsockname()[1])
        _, found = await checks(sql | {"HEADRACE_SQL_PORT": port})
    assert found["port"]["state"] == "fail"
    assert "another program" in found["port"]["found"]


@async_fixture
async def stream(
    settings: dict[str, str], own_nats: OwnNats, tmp_path: Path
) -> AsyncIterator[Client]:
    """A NATS server of the suite, and a file with a sink."""
    server = await own_nats()
    settings |= {
        "NATS_URL": server.url,
        "HEADRACE_CONFIG": str(tmp_path / "headrace.toml"),
        "HEADRACE_CDC_BYTES_MAX": str(10 * SIZE),
    }
    described(tmp_path, f'to = "file://{tmp_path}/files"')
    assert (await command(settings, "init")).code == 0
    client = await nats.connect(server.url)
    yield client
    await client.close()


def described(folder: Path, keys: str) -> None:
    (folder / "headrace.toml").write_text(f'[[sink]]\nname = "orders"\n{keys}\n')


async def test_the_doctor_names_the_line_of_a_file_that_is_not_valid(
    settings: dict[str, str], tmp_path: Path
) -> None:
    described(tmp_path, 'to = "kafka://broker"\ntopics = "x"')
    code, found = await checks(settings | {"HEADRACE_CONFIG": str(tmp_path / "headrace.toml")})
    assert (code, found["file"]["state"]) == (1, "fail")
    assert "headrace.toml:4: sink.topics" in found["file"]["found"]
    assert found["file"]["remedy"]


@pytest.mark.parametrize("listens", [True, False])
async def test_the_doctor_reaches_a_target_without_writing_to_it(
    settings: dict[str, str], tmp_path: Path, listens: bool
) -> None:
    heard: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read())
        writer.close()

    async with await asyncio.start_server(hear, "127.0.0.1", 0) as target:
        port = target.sockets[0].getsockname()[1] if listens else 1
        described(tmp_path, f'to = "http://127.0.0.1:{port}/changes"')
        _, found = await checks(settings | {"HEADRACE_CONFIG": str(tmp_path / "headrace.toml")})
    assert found["orders: target"]["state"] == ("ok" if listens else "fail")
    assert b"".join(heard) == b""


async def test_the_doctor_examines_where_a_sink_is(
    settings: dict[str, str], stream: Client, names: Names, tmp_path: Path
) -> None:
    assert await states(settings, "Sinks") == {
        "file": "ok",
        "orders: target": "ok",
        "orders: position": "warn",
        "orders: parked": "ok",
    }
    js = stream.jetstream()
    durable = f"sink-{names.slot}-orders"
    await js.add_consumer("CDC", ConsumerConfig(durable_name=durable, ack_policy=AckPolicy.ALL))
    for _ in range(9):
        await js.publish("cdc.orders.insert", bytes(SIZE))
    (message,) = await (await js.pull_subscribe_bind(durable, "CDC")).fetch(1)
    await message.ack_sync()
    _, found = await checks(settings)
    assert found["orders: position"]["state"] == "ok"
    assert "8 messages behind" in found["orders: position"]["found"]
    # More than the stream keeps.
    for _ in range(9):
        await js.publish("cdc.orders.insert", bytes(SIZE))
    first = (await js.stream_info("CDC")).state.first_seq
    lost = first - message.metadata.sequence.stream - 1
    assert lost > 0
    _, found = await checks(settings)
    assert found["orders: position"]["state"] == "fail"
    assert f"has lost {lost} messages" in found["orders: position"]["found"]
    assert "headrace sinks reset orders" in found["orders: position"]["remedy"]
    described(tmp_path, f'to = "file://{tmp_path}/files"\nsnapshot = "initial"')
    _, found = await checks(settings)
    assert found["orders: position"]["state"] == "warn"
    described(tmp_path, f'to = "file://{tmp_path}/files"')
    _, found = await checks(settings | {"HEADRACE_ARCHIVE_URL": (tmp_path / "archive").as_uri()})
    assert "the archive has them" in found["orders: position"]["found"]


async def test_the_doctor_names_parked_records_and_a_paused_sink(
    settings: dict[str, str], stream: Client, names: Names
) -> None:
    await ObjectStore(stream.jetstream(), "headrace_parked").put(
        f"sink/{names.slot}/orders/1-orders-insert", b"x"
    )
    assert (await command(settings, "sinks", "pause", "orders")).code == 0
    _, found = await checks(settings)
    assert found["orders: parked"]["state"] == "warn"
    assert "headrace dead-letters ls orders" in found["orders: parked"]["remedy"]
    assert found["orders: paused"]["remedy"] == "headrace sinks resume orders"
