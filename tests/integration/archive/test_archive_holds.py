"""A required archive holds up the slot, and every status reports it; the operator decides about its
files.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp

from headrace.archive import WalReader
from headrace.archive.layout import file_name
from headrace.embedded.ports import free_port
from headrace.testing.oracle import stored
from headrace.testing.process import command
from headrace.testing.suite import Suite
from tests.support.archiving import (
    Archiving,
    archived,
    changes,
)
from tests.support.slot import confirmed_lsn

ROWS = 50


async def reasons(port: int, until: str | None, timeout_s: float = 120.0) -> dict[str, str]:
    """Why wal-reader is not ready, once it names a part (or, with None, once nothing is)."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(timeout_s):
        while True:
            async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                found: dict[str, str] = (await answer.json())["reasons"]
            if (until in found) if until else not found:
                return found
            await asyncio.sleep(0.2)


async def archiver_check(settings: dict[str, str]) -> dict[str, Any]:
    outcome = await command(settings, "doctor", "--json", timeout_s=120)
    checks: list[dict[str, Any]] = json.loads(outcome.out)["checks"]
    return next(check for check in checks if check["name"] == "archiver")


async def published(nats_url: str, rows: int) -> None:
    async with asyncio.timeout(60):
        while (  # noqa: ASYNC110  # a stream's length gives no event
            sum(event.payload["operation"] == "INSERT" for event in await stored(nats_url)) < rows
        ):
            await asyncio.sleep(0.2)


async def test_a_required_archive_holds_the_slot_and_everybody_says_so(
    archiving: Archiving, tmp_path: Path
) -> None:
    database, oracle = archiving.database, archiving.oracle
    url, port = archiving.url, free_port()
    settings = archiving.environment(
        HEADRACE_ARCHIVE_REQUIRED="true", HEADRACE_ARCHIVE_PATIENCE_S="1"
    )
    slot = settings["HEADRACE_SLOT"]
    async with Suite(settings, tmp_path, ("publisher", "archiver")) as suite:
        await suite.start("wal-reader", HEADRACE_HTTP_PORT=str(port))
        await suite.logged("archiver", "epoch_joined", timeout_s=60)
        await suite.kill("archiver")
        await database.execute(
            f"INSERT INTO orders SELECT g, g, 'held' FROM generate_series(1, {ROWS}) g"
        )
        await published(archiving.nats.url, ROWS)
        held = await reasons(port, "confirm")
        assert "for archiver" in held["confirm"]
        committed = await oracle.changes()
        assert await confirmed_lsn(database, slot) <= committed[0].position.lsn, (
            "the archive has nothing of it"
        )
        check = await archiver_check(settings)
        assert check["state"] == "fail"
        assert "the slot retains all WAL" in check["found"]
        assert "headrace archiver" in check["remedy"]

        await suite.start("archiver")
        assert changes(await archived(url, committed)) == committed
        await reasons(port, None)
        async with asyncio.timeout(60):
            while await confirmed_lsn(database, slot) <= committed[-1].position.lsn:  # noqa: ASYNC110  # a slot gives no event
                await asyncio.sleep(0.2)
        assert (await archiver_check(settings))["state"] == "ok"
        gone = await command(settings, "teardown", "--yes", "--streams", timeout_s=120)
        assert "remove them yourself" in gone.out, gone
        assert len(changes(WalReader(url).follow(wait=False))) == ROWS


async def test_a_store_that_takes_no_more_files_is_on_the_wal_readers_readiness(
    archiving: Archiving, tmp_path: Path
) -> None:
    """The archiver begins again and again, and with it the epoch: the slot waits all the same."""
    database, oracle = archiving.database, archiving.oracle
    url, port = archiving.url, free_port()
    settings = archiving.environment(
        HEADRACE_ARCHIVE_REQUIRED="true", HEADRACE_ARCHIVE_PATIENCE_S="60"
    )
    async with Suite(settings, tmp_path, ("publisher", "archiver")) as suite:
        await suite.start("wal-reader", HEADRACE_HTTP_PORT=str(port))
        await suite.logged("archiver", "epoch_joined", timeout_s=60)
        await database.execute("INSERT INTO orders VALUES (1, 1, 'taken')")
        committed = await oracle.changes()
        assert len(await archived(url, committed)) == 1
        # Works for any user: no file can be created at the path of a folder.
        in_the_way = tmp_path / "archive" / file_name(2)
        in_the_way.mkdir()
        await database.execute("INSERT INTO orders VALUES (2, 1, 'held')")
        why = f"for archiver ({file_name(2)} was written by another process"
        async with asyncio.timeout(120):
            while why not in (await reasons(port, "confirm"))["confirm"]:  # noqa: ASYNC110  # polled
                await asyncio.sleep(0.2)
        in_the_way.rmdir()
        committed += await oracle.changes()
        assert changes(await archived(url, committed)) == committed
        await reasons(port, None)
