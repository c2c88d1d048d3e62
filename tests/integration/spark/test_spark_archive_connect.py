"""`headrace.archive` through a Spark Connect server: in batch, with filters, and as a stream that
continues exactly once.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing.spark_connect import connect_server
from tests.support.archive_maker import Maker
from tests.support.spark_classes import java_options

pytest.importorskip("grpc", reason="needs pyspark[connect]")
pytestmark = [pytest.mark.spark, pytest.mark.slow]

# In a separate process: pyspark keeps to one kind of session for as long as a process lives.
CLIENT = """
import sys
from pyspark.sql import SparkSession
from headrace.spark.archive_source import ArchiveSource
from headrace.spark.archive_state import current_state

remote, url, folder, due = *sys.argv[1:4], int(sys.argv[4])
spark = SparkSession.builder.remote(remote).getOrCreate()
assert "connect" in type(spark).__module__
spark.dataSource.register(ArchiveSource)
if due == 80:
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    read = lambda **options: spark.read.format("headrace.archive").options(**options).load(url)
    assert read(columns="commit_lsn,table").where("commit_lsn > 200 AND `table` = 'items'").count() == 30
    assert current_state(read(tables="public.orders"), "id bigint, note string").count() == 40
stream = spark.readStream.format("headrace.archive").load(url)
sink = stream.writeStream.format("parquet").option("checkpointLocation", folder + "/checkpoint")
sink.trigger(availableNow=True).start(folder + "/out").awaitTermination()
keys = sorted(row.key for row in spark.read.parquet(folder + "/out").select("key").collect())
assert keys == sorted('{"id":%d}' % n for n in range(due)), len(keys)
spark.stop()
print("read")
"""


@pytest.mark.timeout(900)
def test_the_archive_is_read_and_followed_through_a_connect_server(tmp_path: Path) -> None:
    made = Maker(f"file://{tmp_path}/archive")
    made.write(40)
    made.write(40)
    with connect_server(tmp_path, {}, java_options()) as remote:
        for due in (80, 120):
            client = [sys.executable, "-c", CLIENT, remote, made.url, str(tmp_path), str(due)]
            done = subprocess.run(client, capture_output=True, text=True, timeout=400, check=False)
            assert done.stdout.strip().endswith("read"), done.stderr[-6000:]
            made.write(40)
