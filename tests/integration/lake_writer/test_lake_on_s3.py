"""A lake in a bucket with its catalog in PostgreSQL, read by PyIceberg over S3."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from headrace.embedded.ports import free_port
from headrace.testing.s3 import S3Server
from headrace.testing.suite import Suite
from tests.oracle.lake import BucketLake
from tests.support.archiving import SCRIPT, Archiving
from tests.support.lake import SERVICES, became_same, reached

TYPES = """
CREATE TABLE kinds (id uuid PRIMARY KEY, flag boolean, small smallint, price numeric(12, 3),
  loose numeric, ratio double precision, day date, local timestamp, body jsonb);
INSERT INTO kinds VALUES
  ('00000000-0000-0000-0000-000000000001', true, 1, 1.500, 7.25, 0.5, '2024-02-29',
   '1999-12-31 23:59:59', '{"a": 1}'),
  ('00000000-0000-0000-0000-000000000002', false, NULL, -0.001, 'NaN', -2.25, 'infinity',
   '-infinity', 'null');
"""


@dataclass(frozen=True)
class Bucket:
    """The place of a lake, and how its service and PyIceberg reach it."""

    environment: dict[str, str]
    lake: BucketLake


@pytest.fixture
async def bucket(archiving: Archiving, s3: S3Server) -> AsyncIterator[Bucket]:
    """A bucket and an empty database for a lake and its catalog."""
    await archiving.database.execute("CREATE DATABASE lake")
    catalog = archiving.database.server.dsn("lake")
    environment = archiving.environment(
        **s3.environment(),
        HEADRACE_ARCHIVE_URL=s3.url("log"),
        HEADRACE_ARCHIVE_REQUIRED="true",
        HEADRACE_LAKE_URL=s3.url("lake"),
        HEADRACE_LAKE_CATALOG=catalog,
        HEADRACE_LAKE_FLUSH_INTERVAL_S="0.3",
        HEADRACE_LAKE_ENGINE="inline",
    )
    options = s3.options()
    properties = {
        "s3.endpoint": options["endpoint"],
        "s3.access-key-id": options["access_key_id"],
        "s3.secret-access-key": options["secret_access_key"],
        "s3.region": options["region"],
        "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
    }
    lake = BucketLake(catalog, properties)
    yield Bucket(environment, lake)
    lake.close()


async def test_pyiceberg_reads_a_lake_in_a_bucket(
    archiving: Archiving, bucket: Bucket, tmp_path: Path
) -> None:
    database = archiving.database
    await database.execute(TYPES)
    await database.execute("INSERT INTO orders SELECT -g, g, 'old' FROM generate_series(1, 500) g")
    async with Suite(bucket.environment, tmp_path, SERVICES) as suite:
        assert not (wrong := await became_same(bucket.lake, database, suite)), ("copies", wrong)
        for statement in SCRIPT:
            await database.execute(statement)
            assert not (wrong := await became_same(bucket.lake, database, suite)), (
                statement,
                wrong,
            )
        port = re.search(r"event=http_listening .*port=(\d+)", suite.log("lake-writer"))
        assert port is not None
        uri = f"http://127.0.0.1:{port[1]}/iceberg"
        served = await asyncio.to_thread(lambda: RestCatalog("headrace", uri=uri))
        table = await asyncio.to_thread(served.load_table, "public.kinds")
        assert table.metadata_location == bucket.lake.locations()["public.kinds"]


async def test_a_foreign_table_is_left_alone_and_others_go_on(
    archiving: Archiving, bucket: Bucket, tmp_path: Path
) -> None:
    database = archiving.database
    await database.execute("INSERT INTO orders VALUES (1, 1, 'one')")
    foreign = pa.table({"whose": ["another program's"]})
    bucket.lake.create("public.items", "s3://archive/elsewhere", foreign)
    async with Suite(bucket.environment, tmp_path, SERVICES) as suite:
        await suite.logged("lake-writer", "table_parked")
        assert "the lake has a table public.items that this suite did not make" in suite.log(
            "lake-writer"
        )
        await database.execute("INSERT INTO orders VALUES (2, 2, 'two')")
        await database.execute("INSERT INTO items VALUES (1, 'kept')")
        await reached(bucket.lake, database, suite)
        assert sorted(bucket.lake.rows("public.orders", "id")) == [(1,), (2,)]
        # Nor does the next process mind it.
        await suite.kill("lake-writer")
        await suite.start("lake-writer")
        await database.execute("INSERT INTO orders VALUES (3, 3, 'three')")
        await reached(bucket.lake, database, suite)
        assert sorted(bucket.lake.rows("public.orders", "id")) == [(1,), (2,), (3,)]
        assert bucket.lake.rows("public.items") == [("another program's",)]


async def test_a_lake_goes_on_once_its_catalog_and_its_credentials_are_right(
    archiving: Archiving, bucket: Bucket, tmp_path: Path
) -> None:
    database = archiving.database
    server = database.server
    await database.execute("INSERT INTO orders VALUES (1, 1, 'one')")
    await database.execute("CREATE ROLE lake_writer LOGIN PASSWORD 'secret-of-lake'")
    address = f"postgresql://lake_writer:secret-of-lake@127.0.0.1:{server.port}/lake"
    right = bucket.environment["HEADRACE_LAKE_CATALOG"]
    unreachable = f"postgresql://nobody@127.0.0.1:{free_port()}/lake"
    wrong: tuple[tuple[dict[str, str], tuple[str, ...]], ...] = (
        ({"HEADRACE_LAKE_CATALOG": unreachable}, ("connection", "HEADRACE_LAKE_CATALOG")),
        ({"HEADRACE_LAKE_CATALOG": address}, ("permission denied", "Grant the role of")),
        (
            {"HEADRACE_LAKE_CATALOG": right, "HEADRACE_LAKE_URL": "s3://absent/lake"},
            ("NoSuchBucket", "Create the bucket"),
        ),
    )
    async with Suite(bucket.environment, tmp_path, SERVICES[:3]) as suite:
        for variables, words in wrong:
            (tmp_path / "lake-writer.log").write_text("")
            await suite.start("lake-writer", **variables)
            for word in words:
                await suite.logged("lake-writer", word)
            assert suite.running("lake-writer")
            assert "Traceback" not in suite.log("lake-writer")
            assert "secret-of-lake" not in suite.log("lake-writer")
            # At most 0.1, 0.2, 0.4 … seconds between attempts: no more than a few of them yet.
            assert suite.log("lake-writer").count("lake_recovery") < 20
            await suite.kill("lake-writer")
        await suite.start("lake-writer")
        await reached(bucket.lake, database, suite)
        assert bucket.lake.rows("public.orders", "id") == [(1,)]
