"""The console's searches in the audit trail find no value that they don't show."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import quote

import pytest

from headrace.embedded.nats import EmbeddedNats
from headrace.testing.database import Database
from headrace.testing.line import running_line
from tests.support.console_api import running_console

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
