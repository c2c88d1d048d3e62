"""Applies archive files to tables, in Spark's workers.

A task continues the draft of one table with a part of the batch's changes, exactly as the
lake-writer would, and returns what it added and deleted. Takes credentials from its machine's
environment. Promises that running it again changes nothing but files that no cut refers to.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pyarrow as pa

from headrace.archive.file_format import ALL, RowSelection
from headrace.archive.reader import WalReader, WalReaderOptions
from headrace.lake.apply import LakeRowMissingError, apply
from headrace.lake.batches import TableBatch, runs, since
from headrace.lake.catalog import TableName
from headrace.lake.draft import ColumnCache, DraftChanges, TableDraft
from headrace.lake.errors import LakeError
from headrace.lake.files import LakeFiles
from headrace.lake.split import EVERYTHING, NOTHING, SURVEYED, KeyPart, Survey, survey
from headrace.lake.tables import LakeTable
from headrace.process.failpoint import failpoint
from headrace.settings import Settings, load

# Changes are applied when this much of them is in memory.
BLOCK_BYTES = 48 << 20


@dataclass(frozen=True, slots=True)
class Portion:
    """A part of a table's changes in some archive files: what one task applies."""

    table: int
    files: tuple[int, ...]
    part: KeyPart = EVERYTHING


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """Tables as they are before a batch, and each task's portions of it."""

    tables: tuple[TableBatch, ...]
    tasks: tuple[tuple[Portion, ...], ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """The effect of a portion on its table; `missing` says why the table has to be copied again."""

    table: int
    changes: DraftChanges | None
    missing: str = ""


@dataclass(frozen=True, slots=True)
class SurveyPlan:
    """Tables to look at, and the archive files of each task."""

    tables: tuple[LakeTable, ...]
    tasks: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class FileSurvey:
    """The content of an archive file for a table."""

    file: int
    survey: Survey
    # Earlier files are without effect.
    truncates: bool


def run_survey(packed: bytes, task: int) -> bytes:
    """A task of Spark's: each table's surveys of some files."""
    plan: SurveyPlan = pickle.loads(packed)  # noqa: S301  # from the lake-writer
    archive = _archive(load(os.environ))
    found: list[dict[TableName, FileSurvey]] = []
    for file in plan.tasks[task]:
        rows = _rows(archive, file, ALL, SURVEYED)
        found.append({} if rows is None else _surveys(plan.tables, file, rows))
    return pickle.dumps(found)


def _surveys(
    tables: tuple[LakeTable, ...], file: int, rows: pa.Table
) -> dict[TableName, FileSurvey]:
    known = {table.name: table for table in tables}
    found: dict[TableName, FileSurvey] = {}
    for name, _, run in runs(rows):
        if name not in known:
            continue
        table = known[name]
        batch = since(run, table.from_lsn)
        operations = batch.column("operation").cast(pa.string())
        truncates = "truncate" in operations.unique().to_pylist()
        before = found.get(name, FileSurvey(file, NOTHING, truncates=False))
        found[name] = FileSurvey(
            file, before.survey + survey(batch, table.unique_key), before.truncates or truncates
        )
    return found


def run_apply(packed: bytes, task: int) -> bytes:
    """A task of Spark's: each portion's outcome."""
    plan: ApplyPlan = pickle.loads(packed)  # noqa: S301  # from the lake-writer
    settings = load(os.environ)
    assert settings.lake.url, "checked by the lake-writer"
    files = LakeFiles(settings.lake.url)
    key_columns = _cache(settings.lake.cache_bytes)
    applied = [
        _apply(plan.tables[portion.table], portion, files, key_columns, _archive(settings))
        for portion in plan.tasks[task]
    ]
    failpoint("lake_task.after_apply")
    return pickle.dumps(applied)


def _apply(
    batch: TableBatch,
    portion: Portion,
    files: LakeFiles,
    key_columns: ColumnCache,
    archive: WalReader,
) -> Applied:
    draft = TableDraft.continued(files, batch.state, key_columns)
    try:
        for changes in _blocks(batch.table, portion, archive):
            apply(draft, batch.table, changes)
    except LakeRowMissingError as error:
        return Applied(portion.table, None, str(error))
    return Applied(portion.table, draft.changes())


def _blocks(table: LakeTable, portion: Portion, archive: WalReader) -> Iterator[pa.Table]:
    """The portion's changes in their order, as much together as fits."""
    selection = RowSelection(tables=frozenset({(table.name.namespace, table.name.name)}))
    # For each run of a shape, of which a file of a batch has one.
    waiting: list[pa.Table] = []
    for file in portion.files:
        rows = _rows(archive, file, selection)
        if rows is None:
            continue
        for name, _, run in runs(rows):
            if name == table.name:
                waiting.append(portion.part.of(since(run, table.from_lsn)))
        if sum(each.nbytes for each in waiting) >= BLOCK_BYTES:
            yield _joined(waiting)
            waiting.clear()
    if waiting:
        yield _joined(waiting)


def _joined(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).unify_dictionaries()


def _rows(
    archive: WalReader, file: int, selection: RowSelection, columns: tuple[str, ...] | None = None
) -> pa.Table | None:
    found = archive.get(file)
    if found is None:
        raise LakeError(f"archive file {file} is missing")
    batches = list(found.batches(selection, columns))
    if not batches:
        return None
    return pa.Table.from_batches(batches).unify_dictionaries()


def _archive(settings: Settings) -> WalReader:
    # A new one for each task: files of a reader have to follow each other.
    assert settings.archive.url, "checked by the lake-writer"
    return WalReader(settings.archive.url, WalReaderOptions(raise_at_gap=False))


@cache
def _cache(bytes_max: int) -> ColumnCache:
    """Key columns of data files, which don't change: the worker's next task may need the same."""
    return ColumnCache(bytes_max)


# As Spark's workers find them.
SURVEY_TASK = f"{__name__}:{run_survey.__name__}"
APPLY_TASK = f"{__name__}:{run_apply.__name__}"
