"""The work of an engine of the lake, and what it receives and returns.

An engine turns rows into files. It never commits: what it returns is part of the lake only when a
cut refers to it, so work that is repeated leaves files behind and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema

from headrace.archive.asynchronous import AsyncWalFile
from headrace.lake.compaction import CompactWork
from headrace.lake.tables import LakeTable
from headrace.lake.writer import LakeWriter
from headrace.spark.plan import SnapshotPlan

# Receives the number of rows so far.
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class CopyWork:
    """A table in a held snapshot, and where its files go."""

    # Its tasks are the ranges to copy.
    plan: SnapshotPlan
    table: LakeTable
    folder: str
    schema: Schema
    # By PostgreSQL's statistics.
    rows_estimated: int


@dataclass(frozen=True, slots=True)
class CopiedFiles:
    """The files with all rows of a copy."""

    files: tuple[DataFile, ...]
    rows: int


class Engine(Protocol):
    """Copies tables, applies archive files, and rewrites files."""

    async def started(self) -> None:
        """Return when copies can begin: a snapshot is held, and its table locked, no longer than
        needed.
        """

    async def copy(self, work: CopyWork, progress: Progress) -> CopiedFiles:
        """Copy every range of a held snapshot into data files."""

    async def apply(self, writer: LakeWriter, files: Sequence[AsyncWalFile]) -> int:
        """Apply archive files that follow each other, from the first on; how many were applied."""

    async def compact(self, works: Sequence[CompactWork]) -> list[list[DataFile]]:
        """Rewrite files; the new files of each rewrite."""

    async def close(self) -> None:
        """End everything that the engine started."""
