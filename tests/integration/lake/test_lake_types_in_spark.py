"""Spark's own Parquet reader finds the lake's types, since it looks for rows in the data files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.archive.metadata import ColumnInfo
from headrace.lake.copy_rows import CopyRows

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# In a separate process: a JVM stays until its Python ends.
PROBE = """
import sys, tempfile
from pathlib import Path
import pyarrow.parquet as pq
from headrace.settings import load
from headrace.spark.driver import _session

with tempfile.TemporaryDirectory() as folder:
    spark = _session(load({}), Path(folder))
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    found = spark.read.parquet(sys.argv[1]).orderBy("id").toArrow().to_pylist()
    spark.stop()
due = pq.read_table(sys.argv[1]).to_pylist()
# repr tells -0.0 from 0, and knows one NaN.
assert repr(found) == repr(due), (found, due)
print("read", len(found))
"""


def numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale) + 4


# Each with the texts of a usual value, of the least one or an empty one, and of one outside.
COLUMNS: list[tuple[int, int, tuple[str, str, str]]] = [
    (16, -1, ("t", "f", "")),
    (17, -1, ("\\x00ff", "\\x", "")),
    (700, -1, ("0.1", "-0", "NaN")),
    (701, -1, ("0.1", "5e-324", "Infinity")),
    (790, -1, ('"-$1,234.50"', '"-$92,233,720,368,547,758.08"', "")),
    (1082, -1, ("2025-12-12", "0001-01-01", "5874897-12-31")),
    (1114, -1, ("2025-12-12 12:00:34.5", "0001-01-01 00:00:00", "infinity")),
    (1184, -1, ("2025-12-12 12:00:34.5+00", "0001-01-01 00:00:00+00", "-infinity")),
    (1700, numeric(6, 2), ("1.50", "-9999.99", "NaN")),
    (1700, numeric(38, 10), ("1" + "0" * 27 + ".0000000001", "0.0000000000", "NaN")),
    (2950, -1, ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "", "")),
    (1231, numeric(6, 2), ('"{1.50,NULL}"', "{}", "{NaN}")),
    (1185, -1, ('"{""0001-01-01 00:00:00+00""}"', "{}", "{infinity}")),
    (1001, -1, ('"{""\\\\x00ff""}"', "{NULL}", '"{{""\\\\x00ff""}}"')),
]


def test_sparks_own_reader_finds_every_type(tmp_path: Path) -> None:
    columns = [ColumnInfo("id", 23, -1, "integer", True)]
    columns += [
        ColumnInfo(f"c{place} of {oid}", oid, modifier, "?", False)
        for place, (oid, modifier, _) in enumerate(COLUMNS)
    ]
    lines = [
        ",".join([str(row), *(texts[row] for _, _, texts in COLUMNS)]) + "\n" for row in range(3)
    ]
    table = CopyRows(columns, {}).read("".join(lines).encode())
    assert len(table["_headrace_exact"][2].as_py()) == 8
    pq.write_table(table, tmp_path / "data.parquet", store_decimal_as_integer=True)
    probe = subprocess.run(
        [sys.executable, "-c", PROBE, str(tmp_path / "data.parquet")],
        env={**os.environ, "TZ": "UTC"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert probe.stdout.strip() == "read 3", probe.stderr[-3000:]
