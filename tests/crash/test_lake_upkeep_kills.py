"""A lake-writer that is killed during a compaction leaves only files that nothing refers to, and
cleanup finds exactly these.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from headrace.lake.cleanup import unused_files
from headrace.lake.files import LakeFiles
from headrace.testing.suite import Suite
from tests.oracle.lake import ForeignLake
from tests.support.archiving import Archiving
from tests.support.lake import SERVICES, became_same, eventually, lake_environment
from tests.support.lake_load import SumReader, create_accounts, running, transfers

DEATH_S = 60.0
LATER_S = 60.0


def reachable(locations: list[str]) -> set[str]:
    """The files that PyIceberg finds from the catalog's pointers."""
    found = set(locations)
    for location in locations:
        table = StaticTable.from_metadata(location)
        found.update(entry.metadata_file for entry in table.metadata.metadata_log)
        found.update(each.manifest_list for each in table.metadata.snapshots)
        found.update(map(str, table.inspect.all_manifests()["path"].to_pylist()))
        found.update(map(str, table.inspect.all_files()["file_path"].to_pylist()))
    return found


@pytest.mark.parametrize(
    "step", ["lake.before_compaction:2", "lake.after_compaction:2", "lake.before_commit:12"]
)
async def test_a_killed_compaction_leaves_only_files_that_nothing_refers_to(
    archiving: Archiving, tmp_path: Path, step: str
) -> None:
    database = archiving.database
    await create_accounts(database)
    lake = ForeignLake(tmp_path / "lake")
    reader = SumReader(ForeignLake(tmp_path / "lake"))
    environment = lake_environment(
        archiving, tmp_path, HEADRACE_LAKE_COMPACT_FILES_MIN="2", HEADRACE_LAKE_KEEP_CUTS="3"
    )
    async with Suite(environment, tmp_path, SERVICES[:-1]) as suite:
        await suite.start("lake-writer", HEADRACE_FAILPOINT=step)
        async with running(transfers(database, 1), reader.read()):
            assert await suite.exit_code("lake-writer", DEATH_S) != 0
            await suite.start("lake-writer")
            await eventually(lambda: "event=compacted" in suite.log("lake-writer"))
        assert not (wrong := await became_same(lake, database, suite)), wrong
    assert not reader.wrong
    locations = list(lake.locations().values())
    files = LakeFiles(f"file://{tmp_path}/lake")
    on_disk = {name for name, _, _ in files.walk(files.location("public"))}
    kept = reachable(locations)
    assert kept <= on_disk
    later = time.time() + LATER_S
    unused = {each.location for at in locations for each in unused_files(files, at, later)}
    assert unused == on_disk - kept
    files.delete(sorted(unused))
    assert not reader.wrong
    total = sum(sum(money for (money,) in lake.rows(name, "money")) for name in lake.locations())
    assert total == sum(
        [
            (await database.fetchval(f"SELECT coalesce(sum(money), 0) FROM {name}"))
            for name in lake.locations()
        ]
    )
