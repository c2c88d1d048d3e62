"""OpenSearch has the source's rows despite kills of the sink and of the server: those of the first
copy, which is taken while rows are written, large values that updates do not contain, rows with
changed keys, and a table that is truncated and altered meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from headrace.testing.opensearch import OpenSearchServer
from headrace.testing.suite import Suite
from tests.support.opensearch_reading import Reader
from tests.support.sink_kills import POINTS, SinkLine

OPENSEARCH_POINTS = (*POINTS, "sink.half_written", "sink.half_committed")
WAIT_S = 240.0
# More than PostgreSQL keeps in the row itself, and not to be compressed.
LARGE = "(SELECT string_agg(md5(g::text || s::text), '') FROM generate_series(1, 120) s)"
# One of them after each kill.
STATEMENTS = (
    "UPDATE notes SET n = n + 1",
    "UPDATE notes SET id = id + 1000 WHERE id % 7 = 0 AND id < 7000",
    "DELETE FROM notes WHERE id % 11 = 3; UPDATE notes SET n = n + 1 WHERE id % 2 = 0",
    "TRUNCATE brief; INSERT INTO brief SELECT g, 'again' FROM generate_series(1, 50) g",
    "UPDATE notes SET large = large || 'x', n = n + 1 WHERE id % 5 = 0; UPDATE notes SET n = 0",
    "ALTER TABLE brief RENAME word TO term; UPDATE brief SET term = term || id WHERE id % 2 = 0",
)


def plan(server: OpenSearchServer) -> dict[str, Any]:
    return {
        "name": "shop",
        "to": f"opensearch://127.0.0.1:{server.port}",
        "snapshot": "initial",
        "options": {"replicas": 0},
    }


def values(found: Iterable[Any]) -> set[tuple[Any, ...]]:
    return {tuple(row) for row in found}


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_documents_are_the_sources_rows_after_kills_of_sink_and_server(
    line: SinkLine, own_opensearch: OpenSearchServer, tmp_path: Path
) -> None:
    await line.database.execute(
        "CREATE TABLE notes (id int PRIMARY KEY, n int, large text);"
        "ALTER TABLE notes ALTER large SET STORAGE EXTERNAL;"
        "CREATE TABLE brief (id int PRIMARY KEY, word text);"
        f"INSERT INTO notes SELECT g, 0, {LARGE} FROM generate_series(1, 300) g;"
        "INSERT INTO brief SELECT g, 'first' FROM generate_series(1, 400) g;"
        "INSERT INTO orders SELECT g, 0, 'n' FROM generate_series(1, 900) g"
    )
    services = ("schema-publisher", "snapshot-responder")
    # Several chunks for a table.
    settings = {**line.environment, "HEADRACE_CHUNK_ROWS_MAX": "150"}
    async with Suite(settings, tmp_path, services) as suite:
        for table in ("orders", "items", "notes", "brief"):
            await suite.logged("schema-publisher", f"table=public.{table} ")
        await killed_and_compared(line, own_opensearch)


async def killed_and_compared(line: SinkLine, own_opensearch: OpenSearchServer) -> None:
    database, reader = line.database, Reader(own_opensearch)
    chosen = plan(own_opensearch)
    changing = asyncio.create_task(changes(line), name="changes")
    # There is only one first copy.
    await line.killed_while_writing(chosen, OPENSEARCH_POINTS, once=("sink.chunk_copied",))
    await changing
    async with line.sink(chosen) as process:
        for _ in range(2):
            await own_opensearch.kill()
            await database.execute("UPDATE notes SET n = n + 1; DELETE FROM orders WHERE id < 5")
            await own_opensearch.start()
        queries = {
            "orders": "SELECT id, n, note FROM orders",
            "items": "SELECT a, b FROM items",
            "notes": "SELECT id, n, large FROM notes",
            "brief": "SELECT id, term FROM brief",
        }
        wanted = {name: values(await database.fetch(query)) for name, query in queries.items()}
        try:
            async with asyncio.timeout(WAIT_S):
                for name, rows in wanted.items():
                    while await found(reader, name) != rows:  # noqa: ASYNC110  # another process
                        await asyncio.sleep(0.3)
        except TimeoutError:
            there, sent = await found(reader, name), wanted[name]
            sample = sorted(there ^ sent, key=str)[:6]
            pytest.fail(f"{name}: {len(there)} of {len(sent)}, {sample}: {line.output()}")
        assert process.returncode is None, line.output()


async def changes(line: SinkLine) -> None:
    for statement in STATEMENTS:
        await line.database.execute(statement)
        await asyncio.sleep(1.5)


async def found(reader: Reader, table: str) -> set[tuple[Any, ...]]:
    """The rows of an index, by the columns' names in the order of the query."""
    columns = {
        "orders": ("id", "n", "note"),
        "items": ("a", "b"),
        "notes": ("id", "n", "large"),
        "brief": ("id", "term"),
    }[table]
    rows = await asyncio.to_thread(reader.every, f"public.{table}")
    return {tuple(row.get(column) for column in columns) for row in rows}
