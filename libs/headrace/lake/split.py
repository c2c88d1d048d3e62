"""Divides the archived changes of a table among tasks. Pure.

Promises that all changes of a key, in their order, are in one part; a changed key keeps the parts
of both keys together, because an unchanged value may come from the row under its former key.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import pyarrow as pa

from headrace.lake.columns import places, whole
from headrace.lake.fold import moves_of

# Tables whose keys change more often than that are not divided.
MOVES_MAX = 50_000
_INSERT = "insert"
_TRUNCATE = "truncate"


class Division(Enum):
    """The possible divisions of a table's changes."""

    # Only insertions: by file.
    BY_FILE = "by file"
    BY_KEY = "by key"
    # Without a key, equal rows are counted; and changes of deferrable keys are distinguished by
    # whole rows.
    NONE = "not at all"


@dataclass(frozen=True, slots=True)
class Survey:
    """A summary of some archived rows of a table."""

    rows: int
    insertions_only: bool
    # Former and new keys, as JSON.
    moves: tuple[tuple[str, str], ...] = ()
    # Whether the fold has to compare whole rows.
    whole_rows: bool = False

    def __add__(self, other: Survey) -> Survey:
        return Survey(
            self.rows + other.rows,
            self.insertions_only and other.insertions_only,
            self.moves + other.moves,
            self.whole_rows or other.whole_rows,
        )

    @property
    def division(self) -> Division:
        """How these rows can be divided."""
        if self.insertions_only:
            return Division.BY_FILE
        if self.whole_rows or len(self.moves) > MOVES_MAX:
            return Division.NONE
        return Division.BY_KEY


# No rows at all.
NOTHING = Survey(0, insertions_only=True)
# What `survey` needs.
SURVEYED = (
    "commit_lsn",
    "ordinal",
    "schema",
    "table",
    "schema_version",
    "operation",
    "key",
    "before",
)


def survey(batch: pa.Table, key: Sequence[str]) -> Survey:
    """Look at archived rows of one table."""
    operations = set(whole(batch.column("operation").cast(pa.string())).unique().to_pylist())
    if operations <= {_INSERT}:
        return Survey(batch.num_rows, insertions_only=True)
    if not key:
        return Survey(batch.num_rows, insertions_only=False, whole_rows=True)
    moves = moves_of(batch, key)
    new = batch.column("key").take(places(moves.updates)).to_pylist()
    pairs = tuple((old, str(key)) for old, key in zip(moves.old_keys, new, strict=True))
    return Survey(batch.num_rows, False, pairs, moves.whole_rows)


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One of several parts of a table's rows, by key."""

    number: int = 0
    count: int = 1
    # The parts of keys that changed, or that others became.
    moved: Mapping[str, int] = field(default_factory=dict)

    def of(self, batch: pa.Table) -> pa.Table:
        """The rows of this part; each TRUNCATE is in all parts."""
        if self.count == 1:
            return batch
        keys = whole(batch.column("key").cast(pa.string())).dictionary_encode()
        parts = [self._part(text) for text in keys.dictionary.to_pylist()]
        # The last one is that of rows without a key.
        by_code = np.array([*parts, 0], np.int64) == self.number
        codes = keys.indices.fill_null(len(parts)).to_numpy(zero_copy_only=False)
        operations = whole(batch.column("operation").cast(pa.string()))
        everywhere = np.array([each == _TRUNCATE for each in operations.to_pylist()], np.bool_)
        return batch.filter(pa.array(by_code[codes] | everywhere))

    def _part(self, key: str) -> int:
        moved = self.moved.get(key)
        return _hashed(key, self.count) if moved is None else moved


# All rows.
EVERYTHING = KeyPart()


def parts_by_key(moves: Iterable[tuple[str, str]], count: int) -> list[KeyPart]:
    """The parts of a table's rows."""
    leaders: dict[str, str] = {}

    def leader(key: str) -> str:
        while leaders.setdefault(key, key) != key:
            leaders[key] = leaders[leaders[key]]
            key = leaders[key]
        return key

    for old, new in moves:
        leaders[leader(old)] = leader(new)
    moved = {key: _hashed(leader(key), count) for key in list(leaders)}
    return [KeyPart(number, count, moved) for number in range(count)]


def _hashed(key: str, count: int) -> int:
    return zlib.crc32(key.encode()) % count
