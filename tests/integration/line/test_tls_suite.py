"""The whole suite over TLS only: PostgreSQL with verify-full and a client certificate, NATS with
mutual TLS.

Both servers refuse all other connections, so every change that arrives used TLS, including those of
Spark's tasks, the archiver, the audit-writer and a mirror.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from pathlib import Path

import asyncpg
import pytest

from headrace.archive import WalReader
from headrace.testing.certificates import Authority, Pair
from headrace.testing.database import Database
from headrace.testing.line import SETTINGS
from headrace.testing.mirror_process import MirrorProcess
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.process import service
from headrace.testing.suite import Suite
from headrace.testing.tls_front import TlsFront

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

SERVICES = (
    "wal-reader",
    "publisher",
    "schema-publisher",
    "snapshot-responder",
    "archiver",
    "audit-writer",
)
ROWS = 20_000
# Long enough for a JVM's start on a slow machine.
WAIT_S = 300.0


def context(pair: Pair, clients: Authority) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(pair.certificate, pair.key)
    made.load_verify_locations(clients.certificate)
    made.verify_mode = ssl.CERT_REQUIRED
    return made


async def test_every_part_of_the_suite_works_over_verified_and_mutual_tls_alone(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    pair, shown = authority.server(), authority.client("headrace")
    tls = {
        "cert_file": str(pair.certificate),
        "key_file": str(pair.key),
        "ca_file": str(authority.certificate),
    }
    postgres, server = (
        await own_postgres(),
        await own_nats(config={"tls": {**tls, "verify": True, "timeout": 30}}),
    )
    database, archive = Database(postgres, "postgres"), tmp_path / "archive"
    await database.execute("CREATE DATABASE mirrored")
    await database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    await database.execute(
        f"INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series(1, {ROWS}) g"
    )
    await database.execute("CREATE PUBLICATION headrace FOR TABLES IN SCHEMA public")
    async with TlsFront(lambda: postgres.port, context(pair, authority)) as front:
        environment = {
            **SETTINGS,
            **postgres.environment(),
            "HOME": str(tmp_path),
            "PG_DB": "postgres",
            "PGPORT": str(front.port),
            "PGSSLMODE": "verify-full",
            "PGSSLROOTCERT": str(authority.certificate),
            "PGSSLCERT": str(shown.certificate),
            "PGSSLKEY": str(shown.key),
            "NATS_URL": f"tls://127.0.0.1:{server.port}",
            "NATS_TLS_CA": str(authority.certificate),
            "NATS_TLS_CERT": str(shown.certificate),
            "NATS_TLS_KEY": str(shown.key),
            "HEADRACE_ARCHIVE_URL": archive.as_uri(),
            "HEADRACE_ARCHIVE_FILE_AGE_MAX_S": "0.2",
            "HEADRACE_SNAPSHOT_RANGE_BYTES": str(256 * 1024),
            "HEADRACE_SPARK_START_TIMEOUT_S": "300",
        }
        target = f"postgresql://headrace@127.0.0.1:{front.port}/mirrored"
        mirror = MirrorProcess(environment, tmp_path, "mirror", target, "--table", "t")
        async with (
            Suite(environment, tmp_path, SERVICES) as suite,
            service(environment, "telemetry") as telemetry,
        ):
            await suite.logged("publisher", "epoch_joined", timeout_s=WAIT_S)
            await mirror.start()
            await mirror.logged("event=bootstrap_done", timeout_s=WAIT_S)
            await database.execute("INSERT INTO t VALUES (0, 'last'); DELETE FROM t WHERE id = 1")
            code, (verdict,) = await mirror.verified("--wait", "120")
            assert (code, verdict["rows"]) == (0, ROWS)
            await _trail(database)
            await _archived(archive.as_uri())
            await _all_known(json.loads((await telemetry.get("/status"))[1]), suite)
            assert await mirror.stop() == 0, mirror.log[-3000:]
    await database.close()
    # The mirror's, verifier's and Spark's tasks' among them.
    assert front.plain == 0
    assert front.proved == {"headrace"}
    assert front.encrypted > len(SERVICES)


async def _trail(database: Database) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(asyncpg.UndefinedTableError):
                if (
                    await database.fetchval("SELECT count(*) FROM changes WHERE \"table\" = 't'")
                    == 2
                ):
                    return
            await asyncio.sleep(0.1)


async def _archived(url: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            found = [
                entry.operation for entry in WalReader(url).follow(wait=False) if entry.table == "t"
            ]
            if {"insert", "delete"} <= set(found):
                return
            await asyncio.sleep(0.2)


async def _all_known(status: dict[str, object], suite: Suite) -> None:
    known = status["services"]
    assert isinstance(known, dict)
    assert set(SERVICES) <= set(known), status
    for name in SERVICES:
        assert suite.running(name), suite.log(name)[-3000:]
