"""`spark.read.format("headrace.table")`: the whole of a table, of one moment, in parallel."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.embedded.postgres import SUPERUSER
from headrace.spark.table_plan import TableOptions
from headrace.spark.table_source import SnapshotGoneError, TableReader
from headrace.testing.database import Database

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# In a separate process: a JVM stays until its Python ends.
PROBE = """
import os, sys, tempfile
from pathlib import Path
from headrace.settings import load
from headrace.spark.driver import _session
from headrace.spark.table_source import TableSource

with tempfile.TemporaryDirectory() as folder:
    spark = _session(load(os.environ), Path(folder))
    spark.dataSource.register(TableSource)
    read = lambda **options: spark.read.format("headrace.table").options(**options).load()
    whole = read(table="t")
    assert whole.dtypes == [("id", "bigint"), ("small", "smallint"), ("note", "string"), ("at", "string"),
                            ("raw", "binary"), ("f", "double"), ("yes", "boolean")], whole.dtypes
    assert whole.rdd.getNumPartitions() > 3
    rows = sorted(whole.collect())
    assert [row.id for row in rows] == list(range(1, 20001)), len(rows)
    assert rows[0].note is None and rows[1].note == "" and rows[2].note == 'a,"3'
    assert rows[2].at == "2025-12-12T00:00:03Z" and bytes(rows[2].raw) == b"\\x00\\xff"
    assert rows[2].f == 1.5 and rows[2].yes is True and rows[2].small == 3
    assert whole.agg({"id": "sum"}).collect()[0][0] == 200010000
    published = read(table="t", publication="p")
    assert published.columns == ["id", "note"]
    assert published.count() == 10000
    assert read(table="empty").count() == 0
    try:
        read(table="nothing").count()
    except Exception as error:
        assert "public.nothing is not a table" in str(error), error
    else:
        raise AssertionError("a table that is not there was read")
    spark.stop()
print("read")
"""


async def test_a_table_is_a_dataframe_of_one_moment(database: Database, tmp_path: Path) -> None:
    await database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, small int2, note text, at timestamptz, raw bytea, "
        "f float8, yes bool);"
        "CREATE TABLE empty (id int); CREATE PUBLICATION p FOR TABLE t (id, note) WHERE (id > "
        "10000)"
    )
    await database.execute(
        "INSERT INTO t SELECT g, g % 100, CASE g % 3 WHEN 1 THEN NULL WHEN 2 THEN '' ELSE 'a,\"' "
        "|| g END, "
        "'2025-12-12+00'::timestamptz + g * interval '1 s', '\\x00ff', g / 2.0, g % 3 = 0 "
        "FROM generate_series(1, 20000) g"
    )
    environment = {
        "PATH": "/usr/bin:/bin:/usr/local/bin",
        "HOME": str(tmp_path),
        "PG_HOST": "127.0.0.1",
        "PG_PORT": str(database.port),
        "PG_DB": database.name,
        "POSTGRES_BRIDGE_USER": SUPERUSER,
        "HEADRACE_SNAPSHOT_RANGE_BYTES": str(256 * 1024),
    }
    done = subprocess.run(  # noqa: ASYNC221  # nothing else runs in this test's loop
        [sys.executable, "-c", PROBE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["read"], done.stderr[-3000:]
    held = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
    for _ in range(100):
        if not await database.fetchval(held):
            break
        await database.execute("SELECT pg_sleep(0.1)")
    assert not await database.fetchval(held), "a snapshot is held though Spark is gone"


async def test_a_snapshot_that_is_held_no_longer_is_an_error_and_never_another_moment(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await database.execute("CREATE TABLE t (id int); INSERT INTO t VALUES (1)")
    for name, value in (("HOST", "127.0.0.1"), ("PORT", str(database.port)), ("DB", database.name)):
        monkeypatch.setenv(f"PG_{name}", value)
    monkeypatch.setenv("POSTGRES_BRIDGE_USER", SUPERUSER)
    reader = TableReader(TableOptions.parse({"table": "t", "hold_s": "2"}))
    partitions = await asyncio.to_thread(reader.partitions)
    batches = await asyncio.to_thread(lambda: list(reader.read(partitions[0])))
    assert [batch.to_pylist() for batch in batches] == [[{"id": 1}]]
    holders = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    async with asyncio.timeout(30):
        while await database.fetchval(holders):  # noqa: ASYNC110  # no event tells that another process has ended
            await asyncio.sleep(0.1)
    with pytest.raises(SnapshotGoneError, match="hold_s"):
        await asyncio.to_thread(lambda: list(reader.read(partitions[0])))
