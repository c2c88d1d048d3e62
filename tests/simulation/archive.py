"""The invariants of an archive: every committed change once, in order, in a chain of files without a
hole; a gap is always reported.

Reads files with nothing but pyarrow, and footers as docs/archive.md describes them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tests.simulation.oracle import ViolationError, covered

if TYPE_CHECKING:
    from tests.simulation.oracle import Truth

_COLUMNS = ["commit_lsn", "ordinal", "operation", "after"]


@dataclass(frozen=True, slots=True)
class File:
    """One file's content."""

    number: int
    info: dict[str, Any]
    # Of each row: its position, its number (0: a gap), its columns.
    rows: list[tuple[tuple[int, int], int, tuple[str, ...]]]
    gaps: list[tuple[int, int, str]]


@dataclass(slots=True)
class Archived:
    """One source's archive, file by file as they were created."""

    files: list[File] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)
    gaps: list[tuple[int, int, str]] = field(default_factory=list)

    def on_put(self, name: str, data: bytes) -> None:
        if not name.endswith(".parquet"):
            return
        file = read(name, data)
        before = self.files[-1] if self.files else None
        check_next(file, before)
        self.files.append(file)
        self.numbers.update(number for _, number, _ in file.rows if number)
        self.gaps += file.gaps

    @property
    def begins(self) -> int:
        """Where this archive took up the log."""
        return int(self.files[0].info["from_lsn"]) if self.files else 0

    def check(self, truth: Truth, begins: int) -> None:
        """It has all of it, once and in order, from `begins` on, but for what its gaps say."""
        rows = [row for file in self.files for row in file.rows if row[1]]
        known = {number: place for place, (_, number, _) in enumerate(truth.changes)}
        numbers = [number for _, number, _ in rows]
        if len(set(numbers)) != len(numbers):
            twice = sorted({number for number in numbers if numbers.count(number) > 1})
            raise ViolationError(f"changes {twice} are in the archive twice")
        if foreign := [number for number in numbers if number not in known]:
            raise ViolationError(f"changes {foreign} are in the archive, and were never committed")
        places = [known[number] for number in numbers]
        if places != sorted(places):
            raise ViolationError(f"changes are out of order in the archive: {numbers}")
        for _, number, columns in rows:
            if columns != truth.columns[number]:
                raise ViolationError(
                    f"change {number} has columns {truth.columns[number]}, archived: {columns}"
                )
        missing = [
            number
            for commit, number, _ in truth.changes
            if commit >= begins and number not in self.numbers and not covered(commit, self.gaps)
        ]
        if missing:
            raise ViolationError(f"changes {missing} are not in the archive, and in no gap")


def read(name: str, data: bytes) -> File:
    """A file's content."""
    file = pq.ParquetFile(pa.BufferReader(data))
    info = orjson.loads((file.metadata.metadata or {})[b"headrace"])
    found = hashlib.sha256(data[: info["checksum_bytes"]]).hexdigest()
    if info["checksum"] != f"sha256:{found}":
        raise ViolationError(f"{name} has checksum {found}, and says {info['checksum']}")
    rows: list[tuple[tuple[int, int], int, tuple[str, ...]]] = []
    gaps: list[tuple[int, int, str]] = []
    for one in file.read(columns=_COLUMNS, use_threads=False).to_pylist():
        position = (one["commit_lsn"], one["ordinal"])
        after = orjson.loads(one["after"])
        if one["operation"] == "gap":
            gaps.append((after["after"], after["up_to"], after["reason"]))
            rows.append((position, 0, ()))
        elif one["operation"] == "message":
            rows.append((position, int(after["content"]), ()))
        else:
            rows.append((position, after["id"], tuple(after)))
    return File(int(name.removesuffix(".parquet")), info, rows, gaps)


def check_next(file: File, before: File | None) -> None:
    """Whether a file follows from the one before."""
    wanted = 1 if before is None else before.number + 1
    if file.number != wanted or file.info["id"] != wanted:
        raise ViolationError(f"file {file.number} ({file.info['id']}) was written as {wanted}")
    positions = [position for position, _, _ in file.rows]
    last = (0, 0) if before is None else tuple(before.info["last"])
    if sorted(set(positions)) != positions or (positions and last and positions[0] <= last):
        raise ViolationError(f"file {file.number} has {positions} after {last}")
    if before is None:
        return
    if file.info["previous"] != before.info["checksum"]:
        raise ViolationError(f"file {file.number} does not name file {before.number}'s checksum")
    if file.info["archive"] != before.info["archive"]:
        raise ViolationError(f"file {file.number} belongs to another archive")
    if file.info["epoch"] < before.info["epoch"]:
        raise ViolationError(f"file {file.number} is of an older archiver than the one before")
