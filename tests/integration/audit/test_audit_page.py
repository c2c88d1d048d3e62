"""The trail in a browser: a search shows the matching changes, with the rows before and after, and
never as markup.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from headrace.testing.browser import browser, chromium
from headrace.testing.database import Database
from headrace.testing.line import running_line
from headrace.testing.plugin import OwnNats

SETTINGS = {"HEADRACE_MESSAGE_PREFIXES": "_bemi"}
SCRIPT = "<img src=x onerror=document.title=1>"
CHANGES = f"""
INSERT INTO users VALUES (42, 'Ann'), (43, '{SCRIPT}');
SELECT pg_logical_emit_message(true, '_bemi', '{{"user_id": 7}}');
"""
TYPED = "document.querySelector('[name={name}]').value = '{value}'; document.querySelector('form').requestSubmit()"

SHOWN = "document.querySelectorAll('tr.change').length"


async def until(seen: Callable[[], Awaitable[int]], count: int) -> None:
    """Wait until there are so many."""
    deadline = time.monotonic() + 60
    while await seen() != count:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="Chromium is not installed")
async def test_a_search_shows_the_change_and_what_it_changed(
    own_nats: OwnNats, database: Database, tmp_path: Path
) -> None:
    server = await own_nats()
    async with running_line(
        database, server, tmp_path, SETTINGS, "FOR TABLES IN SCHEMA public"
    ) as line:
        await line.execute("CREATE TABLE users (id bigint PRIMARY KEY, name text)")
        await line.execute("ALTER TABLE users REPLICA IDENTITY FULL")
        await line.suite.start("audit-writer")
        await line.suite.logged("audit-writer", "audit_follows", 60)
        await line.execute(CHANGES)
        await line.execute("UPDATE users SET name = 'Anna' WHERE id = 42")
        await until(lambda: database.fetchval("SELECT count(*) FROM changes"), 3)
        found = re.search(
            r"http_listening host=127.0.0.1 port=(\d+)", line.suite.log("audit-writer")
        )
        assert found is not None
        url = f"http://127.0.0.1:{found[1]}/audit"
        async with browser(tmp_path / "profile", url) as page:
            await page.shows("UPDATE")
            await page.shows("43")
            await page.evaluate(TYPED.format(name="key", value="42"))
            await until(lambda: page.evaluate(SHOWN), 2)
            await page.evaluate("document.querySelector('tr.change').click()")
            assert await page.text(".was") == '"Ann"'
            assert await page.text(".now") == '"Anna"'
            await page.evaluate(TYPED.format(name="key", value="43"))
            await until(lambda: page.evaluate(SHOWN), 1)
            await page.evaluate("document.querySelector('tr.change').click()")
            await page.shows(SCRIPT)
            await page.shows('{"user_id":7}')
            assert await page.evaluate("document.title") == "Headrace: the audit trail"
        async with aiohttp.ClientSession() as http:
            # Another name that leads to this machine, as a page elsewhere might have, sees nothing.
            async with http.get(f"{url}/changes", headers={"Host": "evil.example"}) as answer:
                assert (answer.status, "Ann" in await answer.text()) == (401, False)
            async with http.get(
                f"{url}/changes", params={"context": "user_id=7", "table": "users"}
            ) as answer:
                assert len((await answer.json())["changes"]) == 2
            async with http.get(f"{url}/changes", params={"since": "yesterday"}) as answer:
                assert answer.status == 400
