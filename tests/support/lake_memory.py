"""A lake's files in memory, and a table's snapshots without rows, for tests of metadata."""

from __future__ import annotations

import time
from collections.abc import Iterator

from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

from headrace.lake.files import LakeFiles
from headrace.lake.snapshots import TableFiles, TableSnapshot

ROOT = "file:///lake"


class MemoryFiles(LakeFiles):
    """Objects in a dictionary, with the time of their writing."""

    def __init__(self) -> None:
        self.root = ROOT
        self.objects: dict[str, tuple[bytes, float]] = {}

    def put(self, location: str, data: bytes | memoryview) -> None:
        assert location not in self.objects, "no file is overwritten"
        self.objects[location] = (bytes(data), time.time())

    def get(self, location: str) -> bytes:
        return self.objects[location][0]

    def size(self, location: str) -> int:
        return len(self.objects[location][0])

    def delete(self, locations: list[str]) -> None:
        for location in locations:
            self.objects.pop(location, None)

    def walk(self, below: str) -> Iterator[tuple[str, int, float]]:
        for location, (data, at) in list(self.objects.items()):
            if location.startswith(f"{below}/"):
                yield location, len(data), at


def new_table() -> TableSnapshot:
    """A table without rows."""
    schema = Schema(NestedField(1, "id", LongType(), required=False), schema_id=0)
    metadata = new_table_metadata(
        schema,
        UNPARTITIONED_PARTITION_SPEC,
        UNSORTED_SORT_ORDER,
        f"{ROOT}/public/numbers-0123456789abcdef",
        {"format-version": "2"},
    )
    return TableSnapshot(metadata, "", TableFiles())


def data_file(name: str, rows: int = 10, size: int = 1000) -> DataFile:
    """A data file that only metadata knows."""
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{ROOT}/public/numbers-0123456789abcdef/data/{name}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows,
        file_size_in_bytes=size,
        spec_id=0,
        sort_order_id=0,
        equality_ids=None,
        key_metadata=None,
    )
