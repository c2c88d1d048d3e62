"""A table of a mirror: its shape in the target, and its progress.

A table's state is stored in the target as JSON, in the same transaction as its rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from headrace.consumer import Watermark
from headrace.consumer.watermark import Watermarks
from headrace.contract.subjects_and_ids import table_token
from headrace.lsn import Position
from headrace.mirror.rules import PLAIN, Place, RuleError, TableRules, rules_from

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


class _Remembered:
    """Room for what is computed once for a table and is no part of it."""

    __slots__ = ("_names",)
    _names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Table(_Remembered):
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
    # Its differences from the source's table.
    rules: TableRules = PLAIN

    @property
    def place(self) -> Place:
        """Its schema and name in the target."""
        return self.rules.place or (self.schema, self.name)

    @property
    def token(self) -> str:
        """The name as one token of a subject, key or ID: `users`, `app=2Forders`."""
        return table_token(self.schema, self.name)

    def ruled(self, rules: TableRules) -> Table:
        """The copy of this table of the source by these rules; raises `RuleError` if there is
        none.
        """
        made = self if rules.columns is None else self._cut(rules)
        # As the targets that ignore case compare names.
        for name, _ in rules.added:
            if name.lower() in {column.name.lower() for column in made.columns}:
                raise RuleError(
                    f"{self.schema}.{self.name} has a column {name} at the source, too",
                    remedy="Name another column in the sink's settings, or leave the source's out.",
                )
        added = tuple(Column(*one) for one in rules.added)
        if rules.history:
            # A key has as many rows as changes.
            columns = (*added, *made.columns)
            return replace(made, columns=columns, primary_key=(), identity=(), rules=rules)
        return replace(made, columns=(*made.columns, *added), rules=rules)

    def keeps_rows_of(self, other: Table) -> bool:
        """Whether rows stay that the source does not have, in both tables in the same way."""
        mine, others = self.rules, other.rules
        if mine.history or others.history:
            return mine.history and others.history
        return bool(mine.soft_delete) and mine.soft_delete == others.soft_delete

    def _cut(self, rules: TableRules) -> Table:
        """Only with the columns that the rules name."""
        every = {column.name for column in self.columns}
        # A whole row identifies itself, as far as it is copied.
        by_row = every == set(self.identity)
        key = dict.fromkeys((*self.primary_key, *(() if by_row else self.identity)))
        lost = [name for name in key if not rules.keeps(name)]
        columns = tuple(column for column in self.columns if rules.keeps(column.name))
        if lost or not columns:
            raise RuleError(
                f"`columns` leaves out {', '.join(lost) or 'all columns'} of "
                f"{self.schema}.{self.name}",
                remedy="Name all columns of the table's key and replica identity in `columns`.",
            )
        identity = tuple(c.name for c in columns) if by_row else self.identity
        return replace(self, columns=columns, identity=identity)

    @property
    def source_columns(self) -> tuple[Column, ...]:
        """Those that the source's table has, too."""
        if not self.rules.added:
            return self.columns
        added = {name for name, _ in self.rules.added}
        return tuple(column for column in self.columns if column.name not in added)

    @property
    def source_names(self) -> frozenset[str]:
        """The names of its columns that the source's table has, too."""
        try:
            return self._names
        except AttributeError:
            names = frozenset(column.name for column in self.source_columns)
            # Every change of a row asks for them.
            object.__setattr__(self, "_names", names)
            return names

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that find a row and are worth an index; empty if only the whole row does."""
        if self.primary_key and set(self.primary_key) <= {column.name for column in self.columns}:
            return self.primary_key
        if len(self.identity) < len(self.source_columns):
            return self.identity
        return ()

    @property
    def finders(self) -> tuple[tuple[str, ...], ...]:
        """The columns that identify rows in changes and are worth an index: the key, and a
        different replica identity.
        """
        if 0 < len(self.identity) < len(self.source_columns):
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
    marks: Watermarks = field(default_factory=dict)


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
    # The rules of its next copy; those of `live` may be older.
    rules: TableRules = PLAIN

    @property
    def token(self) -> str:
        return table_token(self.schema, self.name)

    @property
    def place(self) -> Place:
        """Its schema and name in the target, from its next copy on."""
        return self.rules.place or (self.schema, self.name)

    def encode(self) -> str:
        body = asdict(self)
        # Versions that don't know them can read the rest.
        for one in (body, body["live"], (body["run"] or {}).get("staged")):
            if one and one["rules"] == asdict(PLAIN):
                del one["rules"]
        return json.dumps(body)

    @classmethod
    def decode(cls, text: str) -> TableState:
        body = json.loads(text)
        body["live"] = _table(body["live"])
        body["run"] = _run(body["run"]) if body["run"] is not None else None
        body["phase"] = Phase(body["phase"])
        body["rules"] = rules_from(body.get("rules"))
        return cls(**body)


def _table(body: Mapping[str, Any] | None) -> Table | None:
    if body is None:
        return None
    columns = tuple(Column(**column) for column in body["columns"])
    keys = {"primary_key": tuple(body["primary_key"]), "identity": tuple(body["identity"])}
    rules = rules_from(body.get("rules"))
    return Table(**{**body, **keys, "columns": columns, "rules": rules})


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
