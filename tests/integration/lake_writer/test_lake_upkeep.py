"""Compaction, cleanup and operators' commands next to a lake-writer under load lose nothing: a
foreign reader adds up the same sum in every cut.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from headrace.cli.lake import copy_again, upkeep
from headrace.cli.lake.selection import Lake, opened
from headrace.testing.s3 import S3Server
from headrace.testing.suite import Suite
from tests.oracle.lake import ForeignLake, QueriedBucket
from tests.support.archiving import Archiving
from tests.support.lake import SERVICES, became_same, eventually, lake_environment
from tests.support.lake_load import SumReader, create_accounts, running, transfers

BUSY = {
    "HEADRACE_LAKE_COMPACT_FILES_MIN": "3",
    "HEADRACE_LAKE_KEEP_CUTS": "4",
    "HEADRACE_LAKE_CLEANUP_INTERVAL_S": "1",
    # Longer than the reader takes for a cut.
    "HEADRACE_LAKE_GRACE_S": "6",
}


def files_of(folder: Path) -> int:
    return sum(1 for path in folder.rglob("*") if path.is_file())


async def test_compaction_and_cleanup_under_load_lose_nothing(
    archiving: Archiving, tmp_path: Path
) -> None:
    database = archiving.database
    await create_accounts(database)
    lake = ForeignLake(tmp_path / "lake")
    reader = SumReader(ForeignLake(tmp_path / "lake"))
    environment = lake_environment(archiving, tmp_path, **BUSY)
    async with Suite(environment, tmp_path, SERVICES) as suite:
        async with running(transfers(database, 1), reader.read()):
            await eventually(lambda: suite.log("lake-writer").count("event=compacted") >= 5)
            await eventually(lambda: suite.log("lake-writer").count("event=files_removed") >= 10)
        assert not (wrong := await became_same(lake, database, suite)), wrong
    assert not reader.wrong
    assert len(reader.cuts) > 5


@pytest.mark.parametrize("place", ["folder", "bucket"])
async def test_compaction_and_cleanup_with_a_catalog_in_postgresql_lose_nothing(
    archiving: Archiving,
    s3: S3Server,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    place: str,
) -> None:
    database = archiving.database
    await create_accounts(database)
    await database.execute("CREATE DATABASE lake")
    catalog = database.server.dsn("lake")
    places = {"folder": f"file://{tmp_path}/lake", "bucket": s3.url("lake")}
    environment = lake_environment(
        archiving,
        tmp_path,
        **BUSY,
        **s3.environment(),
        HEADRACE_LAKE_URL=places[place],
        HEADRACE_LAKE_CATALOG=catalog,
    )
    lake, read = (QueriedBucket(catalog, s3.options()) for _ in range(2))
    request.addfinalizer(lake.close)
    request.addfinalizer(read.close)
    reader = SumReader(read)
    async with Suite(environment, tmp_path, SERVICES) as suite:
        async with running(transfers(database, 4), reader.read()):
            await eventually(lambda: suite.log("lake-writer").count("event=compacted") >= 3)
            await eventually(lambda: suite.log("lake-writer").count("event=files_removed") >= 5)
        assert not (wrong := await became_same(lake, database, suite)), wrong
    assert not reader.wrong
    assert len(reader.cuts) > 3


async def test_upkeep_by_hand_beside_a_busy_lake_writer_loses_nothing(
    archiving: Archiving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = archiving.database
    await create_accounts(database)
    environment = lake_environment(archiving, tmp_path, **BUSY)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert os.environ["HEADRACE_SLOT"]
    foreign = ForeignLake(tmp_path / "lake")
    reader = SumReader(ForeignLake(tmp_path / "lake"))

    def by_hand(lake: Lake) -> None:
        copy_again.copy_again(lake, "account_3", 60, wait=True, as_json=True)
        upkeep.compact_all(lake, as_json=True)
        upkeep.expire(lake, 2, None, as_json=True)
        upkeep.orphans(lake, None, remove=True, as_json=True)

    def commands() -> None:
        with opened(None, None) as lake:
            by_hand(lake)

    async with Suite(environment, tmp_path, SERVICES) as suite:
        async with running(transfers(database, 2), reader.read()):
            await eventually(lambda: len(reader.cuts) > 2)
            for _ in range(2):
                await asyncio.to_thread(commands)
            seen = len(reader.cuts)
            await eventually(lambda: len(reader.cuts) >= seen + 3)
        # A writer that a command by hand outran starts again, and so does its copy.
        assert suite.log("lake-writer").count('reason="it was requested"') >= 2
        assert not (wrong := await became_same(foreign, database, suite)), wrong
    assert not reader.wrong
