"""The archiver removes its old files, and does not start a new archive if the files of the old one
are missing.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from headrace.archive import RowEntry, WalReader
from headrace.archive.layout import file_name
from headrace.archive.registry import register, unregister
from headrace.archive.store import Store
from headrace.testing.suite import Suite
from tests.support.archiving import (
    WITH_ARCHIVE,
    Archiving,
    archived,
    as_change,
)


async def left(url: str) -> list[int]:
    return [file_id for file_id, _ in await asyncio.to_thread(WalReader(url).list)]


async def test_the_archiver_collects_what_is_old_and_notices_when_all_is_gone(
    archiving: Archiving, tmp_path: Path
) -> None:
    database, oracle = archiving.database, archiving.oracle
    folder = tmp_path / "archive"
    url = archiving.url
    settings = archiving.environment(
        HEADRACE_ARCHIVE_REQUIRED="true", HEADRACE_ARCHIVE_KEEP_S="3600"
    )
    async with Suite(settings, tmp_path, WITH_ARCHIVE) as suite:
        await suite.logged("archiver", "epoch_joined", timeout_s=60)
        committed = []
        for number in range(4):
            await database.execute(f"INSERT INTO orders VALUES ({number}, 1, 'x')")
            committed += await oracle.changes()
            assert len(await archived(url, committed)) == len(committed)
        files = await left(url)
        assert len(files) >= 3
        register(Store(url), "lake", files[1])
        yesterday = time.time() - 86_400
        for file_id in files:
            os.utime(folder / file_name(file_id), (yesterday, yesterday))
        # The janitor looks at its start, and then by the minute.
        await suite.kill("archiver")
        await suite.start("archiver")
        await suite.logged("archiver", "files_kept_for_reader", timeout_s=60)
        assert (await left(url))[0] == files[1], "the reader's next file is kept"
        unregister(Store(url), "lake")
        await suite.kill("archiver")
        await suite.start("archiver")
        async with asyncio.timeout(60):
            while (await left(url))[0] == files[1]:  # noqa: ASYNC110  # a folder gives no event
                await asyncio.sleep(0.2)
        assert (await left(url))[0] <= files[-1], (
            "the last one is kept, from which the archiver continues"
        )

        # The volume is not mounted: the folder is empty, and must not be used as a new
        # archive.
        await suite.kill("archiver")
        folder.rename(tmp_path / "volume")
        await database.execute("INSERT INTO orders VALUES (100, 1, 'while it is away')")
        last = (await oracle.changes())[-1]
        await suite.start("archiver")
        await suite.logged("archiver", "and has no files now", timeout_s=60)
        assert not list(folder.glob("*.parquet"))
        folder.rename(tmp_path / "nothing")
        (tmp_path / "volume").rename(folder)
        async with asyncio.timeout(60):
            while as_change(tail(url)) != last:  # noqa: ASYNC110  # a folder gives no event
                await asyncio.sleep(0.2)


def tail(url: str) -> RowEntry:
    """The archive's last row."""
    return list(WalReader(url).follow(wait=False))[-1]
