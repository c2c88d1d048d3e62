"""A table of a mirror: its shape in the target, and its progress.

A table's state is stored in the target as JSON, in the same transaction as its rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from headrace.consumer import Watermark
from headrace.contract.subjects_and_ids import table_token
from headrace.lsn import Position

Marks = dict[str, Watermark]
# The reason for copying a table for the first time: if it is refused then, the user gets an error.
NEW = "new"


class Phase(StrEnum):
    """A table's stages: a snapshot is wanted; it is being loaded; the table is followed unseen
    until it can be shown; it is followed; the source no longer has it.
    """

    WANTED = "wanted"
    LOADING = "loading"
    LOADED = "loaded"
    FOLLOWING = "following"
    GONE = "gone"
    # The target refuses it for the stored reason; the other tables continue.
    PARKED = "parked"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    # The column's name.
    name: str
    # The name of its type in PostgreSQL.
    data_type: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the target."""

    # Its schema in PostgreSQL.
    schema: str
    # Its name in PostgreSQL.
    name: str
    # Its columns, in order.
    columns: tuple[Column, ...]
    # The columns of its primary key; empty if it has none.
    primary_key: tuple[str, ...] = ()
    # The columns by which an UPDATE or DELETE identifies its row.
    identity: tuple[str, ...] = ()
    # Whether this is a table that is being copied, next to the live one that it will replace.
    staging: bool = False

    @property
    def token(self) -> str:
        """The name as one token of a subject, key or ID: `users`, `app=2Forders`."""
        return table_token(self.schema, self.name)

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that find a row and are worth an index; empty if only the whole row does."""
        if self.primary_key and set(self.primary_key) <= {column.name for column in self.columns}:
            return self.primary_key
        if len(self.identity) < len(self.columns):
            return self.identity
        return ()

    @property
    def finders(self) -> tuple[tuple[str, ...], ...]:
        """The columns that identify rows in changes and are worth an index: the key, and a
        different replica identity.
        """
        if 0 < len(self.identity) < len(self.columns):
            by_index = self.identity
        else:
            by_index = ()
        return tuple(dict.fromkeys(names for names in (self.key, by_index) if names))

    def type_of(self, name: str) -> str:
        """Return the name of a column's type in PostgreSQL."""
        return next(column.data_type for column in self.columns if column.name == name)


@dataclass(frozen=True, slots=True)
class BootstrapRun:
    """One bootstrap: which snapshot, how much of it is loaded, how far its own reading of the
    stream is.
    """

    snapshot_id: str
    lsn: int
    batch_count: int
    row_count: int
    staged: Table
    chunks: int = 0
    rows: int = 0
    version: int = 0
    source: str = ""
    marks: Marks = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableState:
    """A table's stage; `live` is what readers see, and may be older during a bootstrap."""

    schema: str
    name: str
    phase: Phase = Phase.WANTED
    live: Table | None = None
    # Changes committed before this LSN are in the snapshot: such events are skipped.
    since: int = 0
    version: int = 0
    run: BootstrapRun | None = None
    why: str = NEW
    source: str = ""
    # Readers saw it, and still see that moment until its copy can be shown.
    awaited: bool = False
    # With fresh tables: the rows that readers see were committed before this LSN, while others move
    # on.
    until: int = 0
    # The stream's messages about a dropped table are outdated up to this sequence.
    outdated_seq: int = 0
    # It is copied since the gap at this sequence, from where its source's LSNs have another
    # meaning; 0 if there is none.
    diverged_seq: int = 0
    # Of a replay: the relation whose rows it has; 0 if unknown.
    relation_id: int = 0

    @property
    def token(self) -> str:
        return table_token(self.schema, self.name)

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> TableState:
        body = json.loads(text)
        body["live"] = _table(body["live"])
        body["run"] = _run(body["run"]) if body["run"] is not None else None
        body["phase"] = Phase(body["phase"])
        return cls(**body)


def _table(body: Mapping[str, Any] | None) -> Table | None:
    if body is None:
        return None
    columns = tuple(Column(**column) for column in body["columns"])
    keys = {"primary_key": tuple(body["primary_key"]), "identity": tuple(body["identity"])}
    return Table(**{**body, **keys, "columns": columns})


def _run(body: Mapping[str, Any]) -> BootstrapRun:
    staged = _table(body["staged"])
    assert staged is not None
    marks = {lane: _mark(mark) for lane, mark in body["marks"].items()}
    return BootstrapRun(**{**body, "staged": staged, "marks": marks})


def _mark(body: Mapping[str, Any]) -> Watermark:
    return Watermark(Position(*body["position"]), body["stream_seq"])


def encode_mark(mark: Watermark) -> str:
    return json.dumps([*mark.position, mark.stream_seq])


def decode_mark(text: str) -> Watermark:
    lsn, seq, stream_seq = json.loads(text)
    return Watermark(Position(lsn, seq), stream_seq)
