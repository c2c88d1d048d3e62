"""The archiver's memory depends on the rows in progress, and not on the size of a file."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from headrace.archive import WalReader
from headrace.archive.columns import GROUP_ROWS
from headrace.testing.suite import Suite
from tests.support.archiving import (
    WITH_ARCHIVE,
    Archiving,
)

ALTER_SQL = "ALTER TABLE orders ADD amount numeric, ADD at timestamptz"
INSERT_SQL = """
INSERT INTO orders SELECT g, g % 1000, 'note of row ' || g, g * 1.25, timestamptz '2026-01-01' + g * interval '1 s'
FROM generate_series({first}, {last}) g
"""
ROWS, STEP = 320_000, 20_000
# While a file's rows were kept until it was written, it was 205 MiB. More than half of this is
# pyarrow and numpy.
HELD_MIB_MAX = 170


def held_mib_max(pid: int) -> float:
    """The most memory that the process held so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 1024


def rows_of(url: str) -> int:
    return sum(file.info.rows for file in WalReader(url).files())


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells of memory")
async def test_the_archiver_holds_a_few_row_groups_and_not_the_file_that_they_make(
    archiving: Archiving, tmp_path: Path
) -> None:
    database, url = archiving.database, archiving.url
    await database.execute(ALTER_SQL)
    # Nothing closes a file before it is as large as it gets by default.
    settings = archiving.environment(
        HEADRACE_ARCHIVE_REQUIRED="true", HEADRACE_ARCHIVE_FILE_AGE_MAX_S="600"
    )
    async with Suite(settings, tmp_path, WITH_ARCHIVE) as suite:
        await suite.logged("archiver", "epoch_joined")
        for first in range(1, ROWS, STEP):
            await database.execute(INSERT_SQL.format(first=first, last=first + STEP - 1))
        async with asyncio.timeout(120):
            while not await asyncio.to_thread(rows_of, url):  # noqa: ASYNC110  # the archive gives no event
                await asyncio.sleep(0.3)
        held = held_mib_max(suite.pid("archiver"))
    assert rows_of(url) > 2 * GROUP_ROWS
    assert held < HELD_MIB_MAX, f"{held:.0f} MiB"
