"""The trail's `primary_key` is that of the change: of the table as it was when the row was written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import nats
from pytest_asyncio import fixture as async_fixture

from headrace.testing.database import Database
from headrace.testing.line import Line, running_line
from headrace.testing.plugin import OwnNats

AUDIT = "audit-writer"


@async_fixture
async def line(own_nats: OwnNats, database: Database, tmp_path: Path) -> AsyncIterator[Line]:
    """A line whose publication has the audit's own tables too."""
    nats_server = await own_nats()
    async with running_line(
        database, nats_server, tmp_path, {}, "FOR TABLES IN SCHEMA public"
    ) as running:
        yield running


async def keys(line: Line, table: str, count: int) -> list[str | None]:
    """The keys of so many changes of a table, waited for."""
    trail = (
        f"SELECT primary_key FROM changes WHERE \"table\" = '{table}' ORDER BY position, ordinal"
    )
    async with asyncio.timeout(60):
        while True:
            if await line.database.fetchval("SELECT to_regclass('changes')") is not None:
                found = await line.database.fetch(trail)
                if len(found) >= count:
                    assert len(found) == count
                    return [row["primary_key"] for row in found]
            assert line.suite.running(AUDIT), line.suite.log(AUDIT)[-3000:]
            await asyncio.sleep(0.05)


async def test_a_trail_that_is_behind_has_the_keys_that_the_rows_had(line: Line) -> None:
    """The key moves, tables are dropped: also while the publisher is away, so that the catalog is
    ahead of it.
    """
    await line.execute(
        "CREATE TABLE moved (a int PRIMARY KEY, b int NOT NULL, note text)",
        "CREATE TABLE dropped (id int PRIMARY KEY); INSERT INTO dropped VALUES (1)",
    )
    await line.suite.stop("publisher")
    await line.execute(
        "INSERT INTO moved VALUES (1, 100); UPDATE moved SET note = 'x'; INSERT INTO dropped "
        "VALUES (2)",
        "ALTER TABLE moved DROP CONSTRAINT moved_pkey, ADD PRIMARY KEY (b)",
        "INSERT INTO moved VALUES (2, 200); DELETE FROM moved WHERE a = 1; DROP TABLE dropped",
        "CREATE TABLE quick (n int, id int PRIMARY KEY); INSERT INTO quick VALUES (1, 7); DELETE "
        "FROM quick;"
        "DROP TABLE quick",
    )
    await line.suite.start("publisher")
    await line.take(timeout_s=60)
    await line.suite.start(AUDIT)
    assert await keys(line, "moved", 4) == ["1", "1", "200", "100"]
    assert await keys(line, "dropped", 2) == ["1", "2"]
    assert await keys(line, "quick", 2) == ["7", "7"]


async def test_a_composite_keys_text_is_what_sql_makes_of_its_columns_in_the_keys_order(
    line: Line,
) -> None:
    await line.execute(
        "CREATE TABLE pairs (note text, a text, b int, PRIMARY KEY (b, a) INCLUDE (note))"
    )
    texts = ["k", 'a "quoted" \\ one', "tab\t line\n", "é\U0001f600", "\x01\x1f\x7f", "/", ""]
    connection = await line.database.connect()
    for number, text in enumerate(texts):
        await connection.execute("INSERT INTO pairs VALUES ('note', $1, $2)", text, number)
    await line.suite.start(AUDIT)
    await keys(line, "pairs", len(texts))
    matching = "primary_key = array_to_json(ARRAY[after ->> 'b', after ->> 'a'])::text"
    assert await line.database.fetchval(f"SELECT count(*) FROM changes WHERE {matching}") == len(
        texts
    )


async def test_of_a_stream_that_lost_its_descriptions_each_change_still_says_its_key(
    line: Line,
) -> None:
    await line.execute(
        "CREATE TABLE moved (a int PRIMARY KEY, b int NOT NULL)",
        "INSERT INTO moved VALUES (1, 100)",
        "ALTER TABLE moved DROP CONSTRAINT moved_pkey, ADD PRIMARY KEY (b)",
        "INSERT INTO moved VALUES (2, 200)",
    )
    await line.take()
    client = await nats.connect(line.nats_url)
    await client.jetstream().purge_stream("CDC", subject="cdc.moved.schema")
    await client.close()
    await line.suite.start(AUDIT)
    assert await keys(line, "moved", 2) == ["1", "200"]
