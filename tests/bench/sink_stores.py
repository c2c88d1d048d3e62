"""MariaDB and OpenSearch compared with their clients without a sink, on the same server, in turns:
the rows of a copy with LOAD DATA, documents with plain bulk requests.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pymysql

from headrace.mirror import Column, CreateTable, InsertRows, Table, TruncateTable, opened
from headrace.sinks.opensearch import OpenSearchSink
from headrace.sinks.port import SinkOptions
from headrace.sinks.routing import Router
from headrace.testing.mariadb import MariadbServer
from headrace.testing.opensearch import OpenSearchServer
from tests.bench.in_turns import ROUNDS, Batches, beside, events_in, through
from tests.bench.result import Figure, against, plain
from tests.support.sink_records import inserts

# Of a copy's chunk, and of a session's commit.
CHUNK_ROWS, COMMIT_EVENTS = 10_000, 2000
# Of a PostgreSQL transaction.
ROWS = 10
NOTE = "x" * 40
TABLE = Table(
    "public",
    "bench",
    (
        Column("id", "bigint"),
        Column("n", "integer"),
        Column("price", "numeric(9,2)"),
        Column("at", "timestamp with time zone"),
        Column("note", "text"),
    ),
    ("id",),
    ("id",),
)
DATABASE, INDEX = "bench", "bench"


async def measure(rows: int) -> list[Figure]:
    """Both, with this many rows in each round, and a fifth of it as documents."""
    with tempfile.TemporaryDirectory() as folder:
        async with MariadbServer(Path(folder) / "mariadb") as mariadb:
            found = await _mariadb(mariadb, rows, Path(folder))
        async with OpenSearchServer(Path(folder) / "opensearch") as opensearch:
            found += await _opensearch(opensearch, rows // 5)
    return found


def _chunks(rows: int) -> list[list[dict[str, Any]]]:
    """Rows as events have them."""
    made = [
        {"id": n, "n": n % 97, "price": "19.90", "at": "2026-01-01T10:00:00Z", "note": NOTE}
        for n in range(rows)
    ]
    return [made[first : first + CHUNK_ROWS] for first in range(0, rows, CHUNK_ROWS)]


async def _mariadb(server: MariadbServer, rows: int, folder: Path) -> list[Figure]:
    server.asked(f"CREATE DATABASE {DATABASE}; SET GLOBAL local_infile = 1")
    chunks = _chunks(rows)
    files = []
    for number, chunk in enumerate(chunks):
        file = folder / f"{number}.tsv"
        moment = "2026-01-01 10:00:00"
        lines = (f"{r['id']}\t{r['n']}\t{r['price']}\t{moment}\t{r['note']}\n" for r in chunk)
        file.write_text("".join(lines))
        files.append(file)
    async with opened(server.url(DATABASE)) as target:
        await target.load()
        await target.write([CreateTable(TABLE)])
        await target.commit({})
        server.asked("CREATE TABLE bare LIKE bench", DATABASE)

        async def copied() -> None:
            await target.write([TruncateTable(TABLE)])
            for chunk in chunks:
                await target.write([InsertRows(TABLE, chunk)])
                await target.commit({})

        async def loaded() -> None:
            await asyncio.to_thread(_load_data, server.port, files)

        rate, limit, cpu_us = await beside(copied, loaded, rows)
    return [
        against("MariaDB sink, rows of a copy", rate, "rows/s", limit, "LOAD DATA", 0.7),
        plain("MariaDB sink, CPU for each row", cpu_us, "µs"),
    ]


def _load_data(port: int, files: Sequence[Path]) -> None:
    client = pymysql.connect(
        host="127.0.0.1", port=port, user="root", database=DATABASE, local_infile=True
    )
    with client, client.cursor() as cursor:
        cursor.execute("DELETE FROM bare")
        for file in files:
            cursor.execute(f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE bare")
            client.commit()


async def _opensearch(server: OpenSearchServer, rows: int) -> list[Figure]:
    async def describe(_schema: str, _table: str) -> Mapping[str, Any]:
        columns = [("id", "bigint"), ("note", "text")]
        return {"columns": [{"name": name, "data_type": kind} for name, kind in columns]}

    to = f"opensearch://127.0.0.1:{server.port}"
    sink = OpenSearchSink(SinkOptions("bench", to, "", {"replicas": 0}, describe))
    await sink.open()
    rounds = iter([_batches(rows, number) for number in range(ROUNDS + 1)])
    # Creates the index.
    await through(sink, next(rounds)[:1])
    requests = list(_bulk_requests(rows))
    async with aiohttp.ClientSession(server.url) as client:
        async with client.get(f"/{INDEX}") as answer:
            ((_, made),) = (await answer.json()).items()
        body = {"mappings": made["mappings"], "settings": {"index.number_of_replicas": 0}}
        async with client.put("/bare", json=body) as answer:
            assert answer.status == 200, await answer.text()

        async def bare() -> None:
            for data in requests:
                kind = {"Content-Type": "application/x-ndjson"}
                async with client.post("/bare/_bulk", data=data, headers=kind) as answer:
                    assert not (await answer.json())["errors"]

        async def ours() -> None:
            await through(sink, next(rounds))

        rate, limit, cpu_us = await beside(ours, bare, rows)
    await sink.close()
    return [
        against("OpenSearch sink", rate, "events/s", limit, "bare bulk requests", 0.7),
        plain("OpenSearch sink, CPU for each event", cpu_us, "µs"),
    ]


def _batches(rows: int, number: int) -> Batches:
    """Every row once, at later positions in each round."""
    router = Router(destination=lambda _: INDEX)
    count = rows // ROWS
    made = [
        inserts(
            (number * count + place + 1) * 8,
            *range(place * ROWS, place * ROWS + ROWS),
            note=NOTE,
            router=router,
        )
        for place in range(count)
    ]
    size = COMMIT_EVENTS // ROWS
    found = [made[first : first + size] for first in range(0, count, size)]
    assert events_in(found) == rows
    return found


def _bulk_requests(rows: int) -> Iterator[bytes]:
    for first in range(0, rows, COMMIT_EVENTS):
        lines = []
        for row in range(first, min(rows, first + COMMIT_EVENTS)):
            lines.append(orjson.dumps({"index": {"_id": str(row)}}))
            lines.append(orjson.dumps({"id": row, "note": NOTE}))
        yield b"\n".join(lines) + b"\n"
