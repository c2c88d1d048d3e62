"""The console's searches in the audit trail find no value that they don't show."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import quote

import asyncpg
import pytest

from headrace.embedded.nats import EmbeddedNats
from headrace.testing.database import Database
from headrace.testing.line import running_line
from tests.support.console_api import Console, running_console

WAIT_S = 60.0
HIDDEN = "ada@example.org"


async def test_a_redacted_key_is_never_found(
    database: Database, nats_server: EmbeddedNats, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("line")
    async with running_line(database, nats_server, folder, {"HEADRACE_AUDIT": "true"}) as line:
        await line.suite.start("audit-writer")
        await line.suite.logged("audit-writer", "audit_follows", timeout_s=WAIT_S)
        await line.execute(
            "CREATE TABLE people (mail text PRIMARY KEY, name text)",
            f"INSERT INTO people VALUES ('{HIDDEN}', 'Ada')",
            "CREATE TABLE shown (mail text PRIMARY KEY, name text)",
            f"INSERT INTO shown VALUES ('{HIDDEN}', 'Ada')",
        )
        async with running_console(line.suite, HEADRACE_CONSOLE_REDACT="people.mail") as console:
            trail = "/audit/transactions"
            async with asyncio.timeout(WAIT_S):
                while len((await console.good(f"{trail}?table=shown"))["items"]) < 1:  # noqa: ASYNC110  # a table gives no event
                    await asyncio.sleep(0.1)
            # Both were changed, and one of them may be searched.
            assert len((await console.good(f"{trail}?table=people"))["items"]) == 1
            found = await console.good(f"{trail}?table=shown&key={quote(HIDDEN)}")
            assert len(found["items"]) == 1
            key = quote(json.dumps({"mail": HIDDEN}))
            history = "/rows/{token}/history"
            found = await console.good(f"/rows/shown/history?key={key}", history)
            assert len(found["items"]) == 1
            for guess in (HIDDEN, "nobody@example.org"):
                status, body = await console.get(f"{trail}?table=people&key={quote(guess)}")
                assert (status, body["code"]) == (403, "values")
                key = quote(json.dumps({"mail": guess}))
                status, body = await console.get(f"/rows/people/history?key={key}", history)
                assert (status, body["code"]) == (403, "values")
            key = quote(json.dumps({"mail": HIDDEN}))
            assert await _connections_of(console, database, f"/rows/shown/history?key={key}") == 4


async def _connections_of(console: Console, database: Database, path: str) -> int:
    """How many connections to the trail a burst of requests takes, while all of them wait."""
    locked = await asyncpg.connect(database.dsn)
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'headrace console' AND wait_event_type = 'Lock'"
    try:
        transaction = locked.transaction()
        await transaction.start()
        await locked.execute("LOCK TABLE headrace_audit_tables IN ACCESS EXCLUSIVE MODE")
        before = await _requests(console)
        burst = [asyncio.create_task(console.get(path, "/rows/{token}/history")) for _ in range(20)]
        async with asyncio.timeout(WAIT_S):
            # All of them have arrived, and as many as may wait for the table.
            # Each look is a request, too.
            arrived = before + len(burst) + 1
            while await _requests(console) < arrived:
                arrived += 1
            while (found := await database.fetchval(count)) < 4:
                pass
        await transaction.rollback()
        answers = await asyncio.gather(*burst)
        assert {status for status, _ in answers} == {200}
        return int(found)
    finally:
        await locked.close()


async def _requests(console: Console) -> int:
    """How many requests of the API the console has taken."""
    async with console.http.get(f"{console.base}/metrics") as answer:
        text = await answer.text()
    line = next(one for one in text.splitlines() if one.startswith("headrace_console_requests"))
    return int(float(line.rpartition(" ")[2]))
