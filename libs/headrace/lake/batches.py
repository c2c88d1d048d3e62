"""Archived changes by table, and what a batch of archive files changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from headrace.lake.catalog import TableName
from headrace.lake.columns import taken, whole
from headrace.lake.draft import DraftState
from headrace.lake.tables import LakeTable

# pyarrow's stubs lack calls that are used here.
pc: Any = pyarrow.compute


@dataclass(frozen=True, slots=True)
class TableBatch:
    """A table as it is before a batch, and the archive files with changes of it."""

    table: LakeTable
    state: DraftState
    files: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """A number of archive files, and what they change."""

    files: int
    tables: tuple[TableBatch, ...]


def since(batch: pa.Table, lsn: int) -> pa.Table:
    """The rows of transactions that committed at an LSN or later."""
    if not batch.num_rows or pc.min(batch.column("commit_lsn")).as_py() >= lsn:
        return batch
    return batch.filter(pc.greater_equal(batch.column("commit_lsn"), lsn))


def runs(rows: pa.Table) -> Iterator[tuple[TableName, int, pa.Table]]:
    """The rows of each table in their order, cut where its shape changes."""
    codes = {}
    for column in ("schema", "table"):
        codes[column] = pc.dictionary_encode(whole(rows.column(column).cast(pa.string())))
    schemas, tables = (
        pc.fill_null(each.indices, -1).to_numpy().astype(np.int64) for each in codes.values()
    )
    both = np.where(schemas < 0, -1, schemas * (len(codes["table"].dictionary) + 1) + tables)
    versions = pc.fill_null(rows.column("schema_version"), 0).to_numpy()
    for code in np.unique(both[both >= 0]).tolist():
        found = np.flatnonzero(both == code)
        name = TableName(
            codes["schema"].dictionary[int(schemas[found[0]])].as_py(),
            codes["table"].dictionary[int(tables[found[0]])].as_py(),
        )
        edges = np.flatnonzero(np.diff(versions[found])) + 1
        for run in np.split(found, edges):
            yield name, int(versions[run[0]]), taken(rows, run)
