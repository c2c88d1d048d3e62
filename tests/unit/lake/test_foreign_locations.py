"""Java's engines write local locations as `file:/`: what they wrote is the lake's like any other."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from headrace.lake.cleanup import unused_files, unused_folders
from tests.oracle.lake import ForeignLake
from tests.support.local_lake import NUMBERS, SLOT, LocalLake

LATER_S = 10.0


def commit_as_java(lake: LocalLake) -> None:
    """The current metadata again, in a new file, with locations as Hadoop writes them."""
    before = lake.catalog.tables()[NUMBERS]
    path = Path(before.removeprefix("file://"))
    metadata = json.loads(path.read_text())
    metadata["metadata-log"].append({"metadata-file": before, "timestamp-ms": 1})
    metadata["metadata-log"] = [
        {**each, "metadata-file": java(each["metadata-file"])} for each in metadata["metadata-log"]
    ]
    for snapshot in metadata["snapshots"]:
        snapshot["manifest-list"] = java(snapshot["manifest-list"])
    after = path.with_name("09999-java.metadata.json")
    after.write_text(json.dumps(metadata))
    with closing(sqlite3.connect(lake.folder / "catalog.db")) as database, database:
        database.execute(
            "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ?",
            (f"file:{after}", before),
        )


def java(location: str) -> str:
    return location.replace("file://", "file:")


def ids(lake: LocalLake) -> list[int]:
    return sorted(row[0] for row in ForeignLake(lake.folder).rows("public.numbers", "id"))


def test_a_table_that_java_has_rewritten_is_still_the_lakes(tmp_path: Path) -> None:
    lake = LocalLake(tmp_path)
    lake.create(rows=3)
    commit_as_java(lake)
    following = LocalLake(tmp_path)
    assert NUMBERS in following.writer.tables
    following.insert([10])
    following.delete([1])
    following.cut()
    assert ids(following) == [0, 2, 10]


def test_nothing_of_a_table_that_java_has_rewritten_is_unused(tmp_path: Path) -> None:
    lake = LocalLake(tmp_path)
    lake.create(rows=3)
    lake.insert([10])
    lake.cut()
    commit_as_java(lake)
    until = time.time() + LATER_S
    assert unused_files(lake.files, lake.catalog.tables()[NUMBERS], until) == []
    assert unused_folders(lake.files, lake.catalog, SLOT, until) == []
