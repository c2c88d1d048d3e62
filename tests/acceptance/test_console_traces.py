"""The console's traces of past rows, compared with what the stream, a sink's files and the archive
have when they are read directly.

HEADRACE_CONSOLE_TRACES is the number of rows. With HEADRACE_CONSOLE_SECONDS, on a quiet machine, a
trace has to come within 200 ms in the median, and within a second at worst.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import nats
import pyarrow.parquet
import pytest
import pytest_asyncio
import zstandard

from headrace.testing.line import Line
from headrace.testing.servers import SessionServers
from tests.support.console_api import Console, running_console
from tests.support.console_line import described_line

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]
ROWS = 2_000
TRANSACTION_ROWS = 40
MEDIAN_S = 0.2
WORST_S = 1.0
WAIT_S = 120
SINK = """[[sink]]
name = "files"
to = "{files}"
batch = {{wait_ms = 50}}
"""
# A row's place: the LSN of its commit, and its ordinal in the transaction.
Place = tuple[int, int]


@dataclass(frozen=True)
class World:
    line: Line
    console: Console
    files: Path
    archive: Path

    async def stored(self) -> dict[Place, int]:
        """The stream sequence of each row, read from NATS."""
        client = await nats.connect(self.line.nats_url)
        js = client.jetstream()
        found: dict[Place, int] = {}
        try:
            following = await js.subscribe("cdc.traced.insert", ordered_consumer=True)
            last = await js.get_last_msg("CDC", "cdc.traced.insert")
            while True:
                message = await following.next_msg(timeout=WAIT_S)
                tx = msgpack.unpackb(message.data)["tx"]
                sequence = message.metadata.sequence.stream
                found[(tx["lsn"], tx["seq"])] = sequence
                if sequence == last.seq:
                    return found
        finally:
            await client.close()

    def delivered(self) -> set[Place]:
        """The rows in the sink's files."""
        found = set()
        for file in self.files.glob("*.ndjson.zst"):
            raw = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(file.read_bytes())).read()
            for event in map(json.loads, raw.splitlines()):
                if (event["table"], event["operation"]) == ("traced", "INSERT"):
                    found.add((event["tx"]["lsn"], event["tx"]["seq"]))
        return found

    def archived(self) -> set[Place]:
        """The rows in the archive's files."""
        found = set()
        for file in self.archive.glob("*.parquet"):
            columns = ["commit_lsn", "ordinal", "table", "operation"]
            for row in pyarrow.parquet.read_table(file, columns=columns).to_pylist():
                if (row["table"], row["operation"]) == ("traced", "insert"):
                    found.add((int(row["commit_lsn"]), int(row["ordinal"])))
        return found

    async def trace(self, place: Place) -> dict[str, Any]:
        """The stations of a row, by kind."""
        lsn, ordinal = place
        path = f"/events/{lsn >> 32:X}-{lsn & 0xFFFFFFFF:X}-{ordinal}/trace"
        body = await self.console.good(path, "/events/{position}/trace")
        return {one["kind"]: one for one in body["stations"]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(
    session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("line")
    files, archive, config = (folder / name for name in ("files", "archive", "headrace.toml"))
    files.mkdir()
    config.write_text(SINK.format(files=files.as_uri()))
    settings = {
        "HEADRACE_CONFIG": str(config),
        "HEADRACE_ARCHIVE_URL": archive.as_uri(),
        "HEADRACE_ARCHIVE_FILE_AGE_MAX_S": "1",
    }
    async with described_line(session_servers, folder, settings) as line:
        await line.suite.start("archiver")
        # The archive begins with what is confirmed then.
        await line.suite.logged("archiver", "epoch_joined")
        await line.suite.start("sink", "files")
        async with running_console(line.suite) as console:
            yield World(line, console, files, archive)


async def in_time(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            while not await holds():  # noqa: ASYNC110  # other processes tell nobody
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(what) from None


async def insert(world: World, first: int, last: int) -> None:
    """The rows in many transactions."""
    await world.line.execute(
        *(
            f"INSERT INTO traced SELECT generate_series({n}, {n + TRANSACTION_ROWS - 1})"
            for n in range(first, last, TRANSACTION_ROWS)
        )
    )


async def test_traces_of_random_past_rows_agree_with_what_every_part_has(world: World) -> None:
    await world.line.execute("CREATE TABLE traced (id int PRIMARY KEY)")
    await insert(world, 0, ROWS // 2)

    async def is_delivered() -> bool:
        return len(await asyncio.to_thread(world.delivered)) == ROWS // 2

    await in_time(is_delivered, "the first half is delivered")
    half = max(world.delivered())

    async def is_reported() -> bool:
        # Before its first report the sink is no station.
        station = (await world.trace(half)).get("sink")
        return station is not None and bool(station["reached"] == "yes")

    await in_time(is_reported, "the sink has reported the first half")
    # The sink is away while the second half comes.
    await world.line.suite.kill("sink")
    await insert(world, ROWS // 2, ROWS)

    async def is_archived() -> bool:
        return len(await asyncio.to_thread(world.archived)) == ROWS

    await in_time(is_archived, "all rows are archived")
    stored = await world.stored()
    assert len(stored) == ROWS
    newest = max(stored)

    async def is_settled() -> bool:
        # A later change moves everything beyond the newest row.
        await world.line.execute("UPDATE line_marker SET n = 0")
        stations = await world.trace(newest)
        reached = [stations[kind]["reached"] for kind in ("wal", "publisher", "archive")]
        # A part that does not report has no word on what it lacks.
        return reached == ["yes"] * 3 and stations["sink"]["reached"] == "unknown"

    await in_time(is_settled, "the newest row is everywhere but in the sink")
    delivered, archived = world.delivered(), world.archived()
    number = int(os.environ.get("HEADRACE_CONSOLE_TRACES", "60"))
    times = []
    for place in random.Random(7).choices(sorted(stored), k=number):
        began = time.monotonic()
        stations = await world.trace(place)
        times.append(time.monotonic() - began)
        assert stations["stream"]["facts"]["sequence"] == str(stored[place])
        assert (stations["sink"]["reached"] == "yes") == (place in delivered), stations["sink"]
        assert (stations["archive"]["reached"] == "yes") == (place in archived)
    median, worst = statistics.median(times), max(times)
    print(f"{number} traces: median {median * 1000:.1f} ms, worst {worst * 1000:.1f} ms")
    if "HEADRACE_CONSOLE_SECONDS" in os.environ:
        assert median <= MEDIAN_S
        assert worst <= WORST_S
