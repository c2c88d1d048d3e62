"""Checks that a file matches its name, the file before it and its own rows. Pure.

Readers raise at the first fault while they read; `check` reports all of them. A file is compared
with the one before only if that one was read: a reader that starts in the middle trusts its first
file about earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from headrace.archive.errors import WalFileCorruptError
from headrace.archive.layout import described
from headrace.archive.metadata import WalFileInfo
from headrace.lsn import Position


def name_fault(info: WalFileInfo, file_id: int) -> str | None:
    """Whether a file has another file's place."""
    if info.id == file_id:
        return None
    return f"its content is that of file {info.id}"


def faults(info: WalFileInfo, before: WalFileInfo) -> Iterator[str]:
    """The reason why a file can't follow the one before it."""
    # Each archive has a random identity: two of them may contain files of the same numbers.
    if info.archive != before.archive:
        yield f"it belongs to the archive {info.archive}, file {before.id} to {before.archive}"
    # The checksum of the file before is part of each file, so replacing one file is noticed at the
    # next.
    if info.previous != before.checksum:
        yield f"it was written after another file {before.id} than the current one"
    # Each run of an archiver has a higher epoch than the ones before: a lower one is a superseded
    # writer's.
    if info.epoch < before.epoch:
        yield f"it has epoch {info.epoch}, file {before.id} has {before.epoch}"
    # Older versions didn't record which row precedes the file.
    if info.after is not None and info.after != before.last:
        yield f"it follows row {info.after}, file {before.id} ends at {before.last}"
    if info.rows and info.first <= before.last:
        yield f"it starts at {info.first}, file {before.id} ends at {before.last}"


@dataclass(slots=True)
class ReadFiles:
    """The file that was read last: the next one must follow from it."""

    before: WalFileInfo | None = None

    def follow(self, info: WalFileInfo) -> None:
        before = self.before
        if before is not None and before.next_id == info.id:
            for fault in faults(info, before):
                raise WalFileCorruptError(f"{described(info.id)}: {fault}")
        self.before = info


class RowsCheck:
    """Checks rows against their file's footer, in rising order; some of them may be left out."""

    def __init__(self, info: WalFileInfo) -> None:
        self._info = info
        self._last: Position | None = None
        self.rows = 0

    def take(self, batch: pa.RecordBatch) -> str | None:
        """The fault of the next rows, if they have one."""
        if not batch.num_rows:
            return None
        lsns = batch.column("commit_lsn").to_numpy()
        ordinals = batch.column("ordinal").to_numpy()
        before = self._last
        begins = Position(int(lsns[0]), int(ordinals[0]))
        self._last = Position(int(lsns[-1]), int(ordinals[-1]))
        self.rows += batch.num_rows
        # Vectorized: a comparison for each row in Python would take longer than decoding them.
        rising = (lsns[1:] > lsns[:-1]) | ((lsns[1:] == lsns[:-1]) & (ordinals[1:] > ordinals[:-1]))
        if not rising.all() or (before is not None and begins <= before):
            return "its rows are out of order"
        if begins < self._info.first or self._last > self._info.last:
            return (
                f"its rows are not between {self._info.first} and {self._info.last}, as "
                "its footer says"
            )
        return None

    def end(self) -> str | None:
        """The fault of all rows together, if none was left out."""
        if self.rows != self._info.rows:
            return f"it has {self.rows} rows, its footer says {self._info.rows}"
        if self._last is not None and self._last != self._info.last:
            return f"it ends at {self._last}, its footer says {self._info.last}"
        return None
