"""Measures how fast the archive is written in parallel with the publisher, and read: `python -m
tests.bench.archive`.

Publisher and archiver drain one backlog in one run, on the same cores: the archive's speed is
compared with the publisher's. Then a blocking `WalReader` and Spark, in a separate process, read
the archive.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import nats
from nats.errors import Error as NatsError
from rich.console import Console

from headrace.archive import WalReader
from headrace.archive.store import Store
from headrace.archiver.resume_point import last_info
from headrace.testing.suite import Suite
from tests.bench import result
from tests.bench.machine import Machine, cpu_s, machine, rss_max_mib
from tests.bench.result import Figure, against, beside

SLOT = "bench_archive"
PUBLICATION_SQL = "CREATE PUBLICATION bench FOR ALL TABLES"
TABLE_SQL = "CREATE TABLE bench_rows (id bigint PRIMARY KEY, n int, name text, amount numeric, at timestamptz)"
INSERT_SQL = """
INSERT INTO bench_rows
SELECT g, g % 1000, 'name of row ' || g, g * 1.25, timestamptz '2026-01-01' + g * interval '1 second'
FROM generate_series($1::bigint, $2::bigint) g
"""
TRANSACTION_ROWS = 1000
TIMEOUT_S = 540.0
SPARK_READER = ", Spark's Parquet reader"


async def _backlog(servers: Machine, rows: int) -> None:
    for statement in (
        TABLE_SQL,
        PUBLICATION_SQL,
        f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')",
    ):
        await servers.database.execute(statement)
    for first in range(1, rows + 1, TRANSACTION_ROWS):
        await servers.database.execute(INSERT_SQL, first, first + TRANSACTION_ROWS - 1)


async def _published(url: str, rows: int) -> None:
    client = await nats.connect(url)
    try:
        while True:
            try:
                # The rows, and one schema event.
                if (await client.jetstream().stream_info("CDC")).state.messages > rows:
                    return
            except (NatsError, TimeoutError):
                pass
            await asyncio.sleep(0.1)
    finally:
        await client.close()


async def _archived(url: str, rows: int) -> None:
    store = Store(url)
    while True:
        info = await asyncio.to_thread(last_info, store)
        if info is not None:
            files = WalReader(url).files()
            if sum(file.info.rows for file in files) >= rows:
                return
        await asyncio.sleep(0.2)


async def _until(work: object) -> float:
    async with asyncio.timeout(TIMEOUT_S):
        await work  # type: ignore[misc]  # one of the coroutines above
    return time.monotonic()


async def _drain(servers: Machine, url: str, rows: int) -> list[Figure]:
    """Both services on one backlog; the archive is required, so that neither runs away from the
    other.
    """
    more = {
        "HEADRACE_ARCHIVE_URL": url,
        "HEADRACE_ARCHIVE_REQUIRED": "true",
        "HEADRACE_CDC_BYTES_MAX": str(1 << 32),
    }
    confirmers = ("publisher", "archiver")
    async with Suite(servers.environment(SLOT, **more), servers.folder, confirmers) as suite:
        for name in confirmers:
            await suite.logged(name, "lease_acquired")
        before = {name: cpu_s(suite.pid(name)) for name in confirmers}
        await suite.start("wal-reader")
        await suite.logged("wal-reader", "epoch_opened")
        began = time.monotonic()
        ended = await asyncio.gather(
            _until(_published(servers.nats.url, rows)), _until(_archived(url, rows))
        )
        cpu = {name: (cpu_s(suite.pid(name)) - before[name]) / rows * 1e6 for name in confirmers}
        rss = {name: rss_max_mib(suite.pid(name)) for name in confirmers}
    published, archived = (rows / (at - began) for at in ended)
    figure = against("archive", archived, "changes/s", published, "publisher, same run", 0.8)
    return [replace(figure, cpu_us=cpu, rss_mib=rss)]


def _read(url: str) -> Figure:
    """The best of some rounds, the first of which loads what reading needs."""
    figures = []
    for _ in range(4):
        began, cpu = time.monotonic(), time.process_time()
        count = sum(1 for _ in WalReader(url).follow(wait=False))
        rate = count / (time.monotonic() - began)
        figure = Figure("WalReader", rate, "rows/s", target="≥ 500,000", met=rate >= 500_000)
        figures.append(
            replace(figure, cpu_us={"reader": (time.process_time() - cpu) / count * 1e6})
        )
    return max(figures, key=lambda figure: figure.value)


async def _spark(url: str) -> list[Figure]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.bench.archive_spark",
        url,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    said, _ = await process.communicate()
    rates: dict[str, float] = json.loads(said.decode().splitlines()[-1])
    figures = []
    for name, rate in rates.items():
        if not name.endswith(SPARK_READER):
            limit = rates[name + SPARK_READER]
            figure = beside(f"Spark, {name}", rate, "rows/s", limit, "its Parquet reader, same run")
            figures.append(replace(figure, target="≥ 500,000", met=rate >= 500_000))
    return figures


async def _measure(rows: int, *, spark: bool) -> list[Figure]:
    async with machine() as servers:
        url = f"file://{Path(servers.folder)}/archive"
        await _backlog(servers, rows)
        figures = await _drain(servers, url, rows)
        figures.append(_read(url))
        if spark:
            figures += await _spark(url)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="./taskw bench:archive --", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="a multiple of 1,000")
    parser.add_argument("--no-spark", action="store_true")
    arguments = parser.parse_args()
    figures = asyncio.run(_measure(arguments.rows, spark=not arguments.no_spark))
    title = f"{arguments.rows:,} rows; {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}"
    result.show(figures, title, Console(width=150))


if __name__ == "__main__":
    main()
