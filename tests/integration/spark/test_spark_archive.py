"""`headrace.archive` in Spark: every row once, in batch and as a stream through a hard kill; a
table folded from it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from headrace.archive import file_format
from headrace.archive.columns import SCHEMA
from headrace.archive.layout import file_name
from headrace.archive.metadata import WalFileInfo
from headrace.archive.store import Store
from headrace.lsn import Position
from tests.support.archive_maker import Maker

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SESSION = """
import os, sys, tempfile
from pathlib import Path
from headrace.settings import load
from headrace.spark.driver import _session
from headrace.spark.archive_source import ArchiveSource
from headrace.spark.archive_state import current_state

url, folder = sys.argv[1:3]
spark = _session(load(os.environ), Path(tempfile.mkdtemp(prefix="hr")))
spark.conf.set("spark.sql.shuffle.partitions", "2")
spark.dataSource.register(ArchiveSource)
source = lambda of, /, **options: of.format("headrace.archive").options(**options)
def start(**trigger):
    stream = source(spark.readStream, maxFilesPerTrigger="1", tables="public.orders", reader="lake").load(url)
    sink = stream.writeStream.format("parquet").option("checkpointLocation", folder + "/checkpoint")
    return sink.trigger(**trigger).start(folder + "/out")
"""
STREAM = (
    SESSION
    + """
start(processingTime="0 seconds").awaitTermination()
"""
)
FINISH = (
    SESSION
    + """
start(availableNow=True).awaitTermination()
out = spark.read.parquet(folder + "/out")
keys = sorted(row.key for row in out.select("key").collect())
due = sorted('{"id":%d}' % n for n in range(600) if n // 10 % 2 == 0)
assert keys == due, (len(keys), len(due))

whole = source(spark.read).load(url)
assert whole.count() == 600
assert source(spark.read, fromId="3", toId="5").load(url).count() == 200
assert source(spark.read, fromLsn="5100").load(url).count() == 100
assert source(spark.read, tables="public.items", fromTime="1970-02-20").load(url).count() == 50
first = whole.orderBy("commit_lsn", "ordinal").first()
assert (first.table, first.operation, first.after) == ("orders", "insert", '{"id":0,"note":"row 0"}'), first
assert first.commit_time.year == 1970 and first.unchanged is None
two = source(spark.read, columns="after,commit_lsn").load(url)
assert two.columns == ["after", "commit_lsn"] and two.count() == 600
assert two.orderBy("commit_lsn").first().after.startswith('{"id":')
assert source(spark.read, tasks="3").load(url).rdd.getNumPartitions() == 1, "too little for more than one task"

# What Spark filters by is not read; the answers are those without pushdown.
asked = "`table` = 'items' AND commit_lsn > 4000 AND commit_lsn <= 5000 AND commit_time < timestamp'1970-02-18'"
due = sorted(map(tuple, whole.where(asked).select("commit_lsn", "key").collect()))
whole_counts = {"commit_lsn > 5000": 100, "commit_lsn <= 1000": 100, "commit_lsn = 1000": 10}
whole_counts["commit_time >= timestamp'1970-02-20'"] = 100
spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
found = source(spark.read).load(url).where(asked)
assert sorted(map(tuple, found.select("commit_lsn", "key").collect())) == due and len(due) == 40, due
spoiled = Path(url.removeprefix("file://")) / ("%020d.parquet" % 3)
data = spoiled.read_bytes()
spoiled.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
for unread in ("commit_lsn > 5000", "commit_lsn <= 1000", "commit_time >= timestamp'1970-02-20'", "commit_lsn = 1000"):
    assert source(spark.read).load(url).where(unread).count() == whole_counts[unread], unread
spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
try:
    source(spark.read).load(url).where("commit_lsn > 5000").count()
except Exception as error:
    assert "WalFileCorruptError" in str(error), error
else:
    raise AssertionError("without pushdown all is read")
spoiled.write_bytes(data)

shape = "id bigint, note string, big string, doc string, b binary"
rows = current_state(source(spark.read).load(url + "_state"), shape)
found = sorted(tuple(row) for row in rows.collect())
assert found == [
    (1, "changed", "kept", '{"a": [1.50]}', b"hello"),
    (6, "again", "long", None, None),
    (9, None, "full", None, None),
    (21, "b", "second", None, None),
    (22, "c", "first", None, None),
], found
maps = current_state(source(spark.read).load(url + "_state")).collect()
assert sorted((row.key["id"], row.row["big"], len(row.unknown)) for row in maps) == [
    ("1", "kept", 0), ("21", "second", 0), ("22", "first", 0), ("6", "long", 0), ("9", "full", 0)
], maps
spark.stop()
print("read")
"""
)


def change(
    seq: int,
    operation: str,
    key: object,
    before: object = None,
    after: object = None,
    unchanged: list[str] | None = None,
    exact: str | None = None,
) -> dict[str, object]:
    texts = {
        name: None
        if value is None
        else (value if isinstance(value, str) else orjson.dumps(value).decode())
        for name, value in (("key", key), ("before", before), ("after", after))
    }
    place = {
        "commit_lsn": 100 + seq // 3,
        "ordinal": seq % 3,
        "lsn": 90,
        "xid": 1,
        "commit_time": 0,
        "schema": "public",
    }
    return {
        **place,
        "table": "t",
        "operation": operation,
        **texts,
        "unchanged": unchanged,
        "schema_version": 1,
        "exact": exact,
    }


CHANGES = (
    change(0, "insert", {"id": 7}, after={"id": 7, "note": "before the truncate", "big": "x"}),
    change(1, "truncate", None),
    change(2, "insert", {"id": 1}, after='{"id":1,"note":"new","big":"kept","doc":{"a": [1.50]}}'),
    change(
        3,
        "update",
        {"id": 1},
        after='{"id":1,"note":"changed","doc":{"a": [1.50]},"b":"aGVsbG8="}',
        unchanged=["big"],
        exact='{"after":{"doc":"{\\"a\\": [1.50]}"}}',
    ),
    change(4, "insert", {"id": 2}, after={"id": 2, "note": "to go", "big": "b"}),
    change(5, "insert", {"id": 3}, after={"id": 3, "note": "to move", "big": "long"}),
    change(6, "delete", {"id": 2}, before={"id": 2}),
    change(
        7, "update", {"id": 5}, before={"id": 3}, after={"id": 5, "note": "moved", "big": "long"}
    ),
    change(8, "insert", {"id": 9}, after={"id": 9, "note": "n", "big": "full"}),
    change(
        9,
        "update",
        {"id": 9},
        {"id": 9, "note": "n", "big": "full"},
        {"id": 9, "note": None},
        ["big"],
    ),
    # Rows that move, once and again, with a value that PostgreSQL does not send; another row takes
    # the key they left.
    change(10, "update", {"id": 6}, {"id": 5}, {"id": 6, "note": "again"}, ["big"]),
    change(11, "insert", {"id": 20}, after={"id": 20, "note": "a", "big": "first"}),
    change(12, "update", {"id": 21}, {"id": 20}, {"id": 21, "note": "a"}, ["big"]),
    change(13, "insert", {"id": 20}, after={"id": 20, "note": "b", "big": "second"}),
    change(14, "update", {"id": 22}, {"id": 21}, {"id": 22, "note": "a"}, ["big"]),
    change(15, "update", {"id": 21}, {"id": 20}, {"id": 21, "note": "b"}, ["big"]),
    change(16, "update", {"id": 22}, None, {"id": 22, "note": "c"}, ["big"]),
)


def write_state(url: str) -> None:
    """One file of changes that a table is folded from."""
    rows = pa.Table.from_pylist(list(CHANGES), pa.schema(SCHEMA))
    last = Position(100 + (len(CHANGES) - 1) // 3, (len(CHANGES) - 1) % 3)
    info = WalFileInfo(
        1, "s", 1, "w", "headrace", "db", "1", 1, 1, 200, len(CHANGES), Position(100, 0), last
    )
    data, _ = file_format.encode(rows, info)
    Store(url).put_new(file_name(1), data)


def run(script: str, url: str, folder: Path) -> subprocess.Popen[str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PG", "NATS", "HEADRACE"))
    }
    return subprocess.Popen(
        [sys.executable, "-c", script, url, str(folder)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.timeout(900)
def test_spark_reads_every_change_once_through_a_hard_kill(tmp_path: Path) -> None:
    made = Maker(f"file://{tmp_path}/archive")
    for _ in range(6):
        made.write(100)
    write_state(f"{made.url}_state")
    stream = run(STREAM, made.url, tmp_path)
    out = tmp_path / "out/_spark_metadata"
    deadline = time.monotonic() + 400
    while len(list(out.glob("[0-9]*"))) < 2:
        assert stream.poll() is None, stream.stdout.read() if stream.stdout else ""
        assert time.monotonic() < deadline, "the stream stands still"
        time.sleep(0.05)
    os.killpg(stream.pid, signal.SIGKILL)
    stream.communicate()
    assert len(list(out.glob("[0-9]*"))) < 6, "the kill came too late to tell anything"
    # On a machine that is very busy, Spark gives its Python workers up. The checkpoint is what a
    # next run is for.
    for _ in range(3):
        finished = run(FINISH, made.url, tmp_path)
        said, _ = finished.communicate(timeout=450)
        if "Python worker failed to connect back" not in said:
            break
    assert finished.returncode == 0, said[-6000:]
    assert said.strip().endswith("read")
