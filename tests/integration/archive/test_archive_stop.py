"""A stop while the archiver reads a changed table from the catalog: after a restart, the archive
contains each row in the shape that it was written in.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
from pathlib import Path
from typing import Any

from headrace.testing.database import Database
from headrace.testing.proxy import Proxy
from headrace.testing.suite import LINE, Suite
from tests.support.archiving import Archiving, archived, changes

# Each uses a different type, by which the test recognizes the query of the archiver.
TYPES = "CREATE TYPE kind_1 AS ENUM ('1'); CREATE TYPE kind_2 AS ENUM ('1')"
ALTERATIONS = (
    "ALTER TABLE orders ADD COLUMN more kind_1 DEFAULT '1'",
    # The number of columns stays: nothing in a row's message shows which shape it has.
    (
        "ALTER TABLE orders RENAME COLUMN note TO remark; "
        "ALTER TABLE orders ALTER COLUMN n TYPE kind_2 USING n::text::kind_2"
    ),
)
# A transaction of twice as many rows is cut before its end.
FILE_ROWS_MAX = 50


async def altered(database: Database, alteration: str, first: int) -> list[dict[str, Any]]:
    """Rows before and after the alteration in one transaction, in PostgreSQL's own words."""
    connection = await database.connect()
    rows = []
    async with connection.transaction():
        for ids in (range(first, first + 5), range(first + 5, first + 400)):
            await connection.execute(
                "INSERT INTO orders VALUES " + ", ".join(f"({number}, '1', 'x')" for number in ids)
            )
            rows += await connection.fetch(
                "SELECT row_to_json(orders)::text AS row FROM orders WHERE id >= $1 ORDER BY id",
                ids[0],
            )
            if ids[0] == first:
                await connection.execute(alteration)
    return [json.loads(row["row"]) for row in rows]


async def stopped_in_the_reading(suite: Suite, line: Proxy, stops: int) -> int:
    """SIGTERM while the catalog doesn't answer, and then is out of reach; the exit code."""
    async with asyncio.timeout(60):
        await line.held.wait()
        os.kill(suite.pid("archiver"), signal.SIGTERM)
        while suite.log("archiver").count("stop_requested") < stops:  # noqa: ASYNC110  # a file gives no event
            await asyncio.sleep(0.02)
    line.refuse()
    return await suite.exit_code("archiver", 60)


async def test_rows_behind_a_table_that_a_stop_left_unread_are_archived_in_their_own_shape(
    archiving: Archiving, tmp_path: Path
) -> None:
    database, oracle = archiving.database, archiving.oracle
    await database.execute(TYPES)
    url = archiving.url
    settings = archiving.environment(
        HEADRACE_ARCHIVE_REQUIRED="true", HEADRACE_ARCHIVE_FILE_ROWS_MAX=str(FILE_ROWS_MAX)
    )
    expected, committed = [{"id": 0, "n": 1, "note": "x"}], []
    async with (
        Proxy(lambda: database.server.port) as line,
        Suite(settings, tmp_path, LINE) as suite,
    ):
        await suite.start("archiver", PGPORT=str(line.port))
        await suite.logged("archiver", "epoch_joined", timeout_s=60)
        await database.execute("INSERT INTO orders VALUES (0, 1, 'x')")
        for stops, alteration in enumerate(ALTERATIONS, 1):
            committed += await oracle.changes()
            assert changes(await archived(url, committed)) == committed
            oid = await database.fetchval("SELECT $1::text::regtype::oid::bigint", f"kind_{stops}")
            # As PostgreSQL's protocol writes it in a statement's parameters.
            line.hold_at = struct.pack(">I", oid)
            expected += await altered(database, alteration, 1000 * stops)
            assert await stopped_in_the_reading(suite, line, stops) == 0
            line.restore()
            line.held.clear()
            await suite.start("archiver", PGPORT=str(line.port))
        committed += await oracle.changes()
        found = await archived(url, committed)
    assert changes(found) == committed
    assert [entry.after for entry in found] == expected
