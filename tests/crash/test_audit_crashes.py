"""The trail contains exactly what PostgreSQL committed, even if any process is killed and the
destination fails.

The oracle is a second audit in plain SQL, by triggers. Context is checked too: each row names its
own context.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.embedded.postgres import EmbeddedPostgres
from headrace.testing.audit import AuditOracle
from headrace.testing.database import Database
from headrace.testing.line import SETTINGS
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.proxy import Proxy
from headrace.testing.scrape import figures_when
from headrace.testing.suite import Suite

AUDIT = "audit-writer"
FAILPOINTS = ("audit_writer.before_copy", "audit_writer.before_commit", "audit_writer.after_commit")
SMALL = {
    "HEADRACE_MESSAGE_PREFIXES": "_bemi",
    # Transactions of more rows than this come in parts.
    "HEADRACE_AUDIT_WHOLE_ROWS_MAX": "40",
    "HEADRACE_AUDIT_BATCH_ROWS_MAX": "150",
}


@dataclass
class Audited:
    """A line with an audit-writer, whose destination is a separate server."""

    source: Database
    destination: Database
    server: EmbeddedPostgres
    suite: Suite
    oracle: AuditOracle

    async def settled(self) -> list[Any]:
        """The trail, once it is as long as what was committed: the same, each row with its own
        context.
        """
        trail = await self.oracle.settled()
        wrong = await self.destination.fetchval(
            "SELECT count(*) FROM changes WHERE operation = 'CREATE'"
            " AND context ->> 'who' IS DISTINCT FROM after ->> 'who'"
        )
        assert wrong == 0, f"{wrong} rows have another's context"
        return trail


@async_fixture
async def audited(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> AsyncIterator[Audited]:
    postgres, other, nats_server = await own_postgres(), await own_postgres(), await own_nats()
    source, destination = Database(postgres, "postgres"), Database(other, "postgres")
    await source.execute("CREATE TABLE users (id bigint PRIMARY KEY, who text, note text)")
    oracle = AuditOracle(source, destination)
    await oracle.begin("users")
    await source.execute("CREATE PUBLICATION headrace FOR TABLES IN SCHEMA public")
    environment = {
        **SETTINGS,
        **source.environment(nats_server.url),
        **SMALL,
    }
    environment |= {"DEST_DB_HOST": "127.0.0.1", "DEST_DB_PORT": str(other.port)}
    async with Suite(environment, tmp_path) as suite:
        await suite.logged("publisher", "epoch_joined")
        yield Audited(source, destination, other, suite, oracle)
    await source.close()
    await destination.close()


async def write(source: Database, enough: asyncio.Event, seed: int) -> int:
    """Transactions of 1 to 200 rows with their context before, between or after them, or without;
    how many.
    """
    chance, made, row = random.Random(seed), 0, 0
    connection = await source.connect()
    while not enough.is_set():
        rows = chance.choice([1, 1, 1, 3, 10, 45, 120, 200])
        who = f"u{made}" if chance.random() < 0.7 else None
        said = chance.randint(0, rows)
        async with connection.transaction():
            await insert(connection, row, row + said, who)
            if who:
                message = json.dumps({"who": who, "why": "O'Brien \\ \""})
                await connection.execute(
                    "SELECT pg_logical_emit_message(true, '_bemi', $1)", message
                )
            await insert(connection, row + said, row + rows, who)
            if chance.random() < 0.2:
                await connection.execute("UPDATE users SET note = 'again' WHERE id = $1", row)
            if chance.random() < 0.1:
                await connection.execute("DELETE FROM users WHERE id = $1", row + rows - 1)
        made, row = made + 1, row + rows
        await asyncio.sleep(chance.random() / 10)
    return made


async def insert(connection: Any, first: int, end: int, who: str | None) -> None:
    await connection.execute(
        (
            "INSERT INTO users SELECT g, $3, 'note ' || g FROM generate_series($1::bigint, "
            "$2::bigint - 1) g"
        ),
        first,
        end,
        who,
    )


@pytest.mark.slow
async def test_the_trail_is_exact_with_the_writer_killed_at_every_failpoint(
    audited: Audited,
) -> None:
    chance = random.Random(11)
    enough = asyncio.Event()
    writer = asyncio.create_task(write(audited.source, enough, seed=2))
    for point in FAILPOINTS * 2:
        await audited.suite.start(AUDIT, HEADRACE_FAILPOINT=f"{point}:{chance.randint(1, 12)}")
        assert await audited.suite.exit_code(AUDIT, 60) == -9
    await audited.suite.start(AUDIT)
    for service in ("publisher", AUDIT, "wal-reader"):
        await asyncio.sleep(chance.random())
        await audited.suite.kill(service)
        await audited.suite.start(service)
    enough.set()
    assert await writer > 20
    trail = await audited.settled()
    assert len(trail) > 100


async def not_ready(audited: Audited, words: str, since: int) -> None:
    """Wait until the audit-writer says that it can't work, for this reason."""
    deadline = time.monotonic() + 60
    while True:
        log = audited.suite.log(AUDIT)[since:]
        if any("not_ready" in line and words in line for line in log.splitlines()):
            return
        assert time.monotonic() < deadline, log[-3000:]
        await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_the_trail_is_exact_after_the_destination_was_down_renamed_and_forbidden(
    audited: Audited,
) -> None:
    await audited.suite.start(AUDIT)
    await audited.suite.logged(AUDIT, "audit_follows", 60)
    enough = asyncio.Event()
    writer = asyncio.create_task(write(audited.source, enough, seed=3))
    await until_rows(audited, 1)

    since = len(audited.suite.log(AUDIT))
    await audited.destination.close()
    await audited.server.stop("immediate")
    await not_ready(audited, "is not available now", since)
    # Writers continue: the metrics show that the trail falls behind, although nothing reads for it.
    log = audited.suite.log(AUDIT)
    await figures_when(
        log,
        lambda now: (
            now["headrace_audit_behind_messages"] > 0 < now["headrace_audit_behind_seconds"]
        ),
    )
    await audited.server.start()

    since = len(audited.suite.log(AUDIT))
    await audited.destination.execute("ALTER TABLE changes RENAME TO elsewhere")
    await not_ready(audited, "no longer exists", since)
    # Nobody makes an empty one meanwhile.
    assert await audited.destination.fetchval("SELECT to_regclass('changes')") is None
    await audited.destination.execute("ALTER TABLE elsewhere RENAME TO changes")

    enough.set()
    await writer
    await audited.settled()
    await figures_when(
        log,
        lambda now: (
            now["headrace_audit_behind_messages"] == 0 == now["headrace_audit_behind_seconds"]
        ),
    )
    assert audited.suite.running(AUDIT)


@pytest.mark.slow
async def test_a_role_without_rights_is_told_what_to_grant_and_the_trail_is_exact_afterwards(
    audited: Audited,
) -> None:
    await audited.destination.execute("CREATE ROLE auditor LOGIN PASSWORD 'auditor'")
    role = {"DEST_DB_USER": "auditor", "DEST_DB_PASSWORD": "auditor"}
    await audited.source.execute("INSERT INTO users VALUES (1, NULL, 'early')")
    await audited.suite.start(AUDIT, **role)
    assert await audited.suite.exit_code(AUDIT, 60) == 1
    assert "headrace audit sql" in audited.suite.log(AUDIT)
    await audited.destination.execute("GRANT CREATE, USAGE ON SCHEMA public TO auditor")
    await audited.suite.start(AUDIT, **role)
    await until_rows(audited, 1)
    since = len(audited.suite.log(AUDIT))
    await audited.destination.execute("ALTER TABLE changes OWNER TO CURRENT_USER")
    await audited.source.execute("INSERT INTO users VALUES (2, NULL, 'refused')")
    await not_ready(audited, "permission denied", since)
    await audited.destination.execute("GRANT INSERT, SELECT, UPDATE ON changes TO auditor")
    await audited.settled()


async def until_rows(audited: Audited, rows: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(Exception):
            if await audited.destination.fetchval("SELECT count(*) FROM changes") >= rows:
                return
        assert time.monotonic() < deadline, audited.suite.log(AUDIT)[-3000:]
        await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_the_trail_is_exact_after_the_destination_fell_silent_in_the_middle_of_a_commit(
    audited: Audited,
) -> None:
    async with Proxy(lambda: audited.server.port) as proxy:
        silent = {"DEST_DB_PORT": str(proxy.port), "HEADRACE_AUDIT_COMMIT_TIMEOUT_S": "2"}
        await audited.suite.start(AUDIT, **silent)
        enough = asyncio.Event()
        writer = asyncio.create_task(write(audited.source, enough, seed=4))
        await until_rows(audited, 1)
        for _ in range(2):
            since = len(audited.suite.log(AUDIT))
            # The transaction is committed, but the answer is lost.
            proxy.lose(from_server=True)
            await not_ready(audited, "did not answer in time", since)
            proxy.restore()
            held = await audited.destination.fetchval("SELECT count(*) FROM changes")
            await until_rows(audited, held + 1)
        enough.set()
        await writer
        await audited.settled()
        assert audited.suite.running(AUDIT)


async def test_a_huge_transaction_with_ddl_inside_and_its_context_at_the_end_is_exact(
    audited: Audited,
) -> None:
    await audited.suite.start(AUDIT)
    connection = await audited.source.connect()
    async with connection.transaction():
        await insert(connection, 0, 20_000, "late")
        await connection.execute("ALTER TABLE users ADD COLUMN more int DEFAULT 5")
        await insert(connection, 20_000, 30_000, "late")
        await connection.execute(
            "ALTER TABLE users DROP COLUMN note; CREATE TABLE fresh (id int PRIMARY KEY)"
        )
        await connection.execute(
            "SELECT pg_logical_emit_message(true, '_bemi', '{\"who\": \"late\"}')"
        )
        await connection.execute("UPDATE users SET more = 6 WHERE id < 1000")
    trail = await audited.settled()
    assert len(trail) == 31_000
    said = await audited.destination.fetchval(
        "SELECT count(*) FROM changes WHERE context ->> 'who' = 'late'"
    )
    assert said == 31_000
