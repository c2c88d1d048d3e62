"""The shape of a relation: its columns, their converters, and those that identify a row. Pure.

It combines the relation's message, the facts that only the catalog has, and the operator's
selection. Change stores derive the form of their rows from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from headrace.confirming.transaction_cursor import ProtocolError
from headrace.contract.exact import Inexact
from headrace.contract.selection import Selection
from headrace.contract.values import Converter, ValueOptions, converter
from headrace.pgoutput.messages import UNCHANGED, Relation, Row
from headrace.postgres.facts import TableFacts

_FULL_OR_NOTHING = ("f", "n")


@dataclass(slots=True)
class Values:
    """A row: native values, PostgreSQL's text of those that are not all, and what was not sent."""

    native: dict[str, object] = field(default_factory=dict)
    exact: dict[str, str] = field(default_factory=dict)
    unchanged: list[str] = field(default_factory=list)

    def put(self, name: str, value: object) -> None:
        # The native form can't hold all of it: consumers find the exact text next to it.
        if type(value) is Inexact:
            self.exact[name] = value.text
            value = value.native
        self.native[name] = value


@dataclass(frozen=True, slots=True)
class RelationShape:
    """Reads rows of one relation."""

    relation: Relation
    facts: TableFacts
    # None: the column is left out everywhere.
    columns: tuple[tuple[str, Converter | None], ...]
    # Left out by configuration: its changes take their positions, and are not delivered.
    excluded: bool = False

    @classmethod
    def of(
        cls,
        relation: Relation,
        facts: TableFacts,
        options: ValueOptions,
        selection: Selection | None = None,
    ) -> RelationShape:
        selection = selection or Selection()
        # Hidden columns keep their places: a row has a value for each column of the relation.
        hidden = selection.hidden_columns(relation.schema, relation.name)
        columns: list[tuple[str, Converter | None]] = []
        for column in relation.columns:
            convert = None
            if column.name not in hidden:
                convert = converter(column.type_oid, options, facts.types.get)
            columns.append((column.name, convert))
        wanted = selection.wants(relation.schema, relation.name)
        return cls(relation, facts, tuple(columns), excluded=not wanted)

    @property
    def shown(self) -> tuple[str, ...]:
        """The columns that are delivered."""
        return tuple(name for name, convert in self.columns if convert is not None)

    @property
    def hidden(self) -> frozenset[int]:
        """The places of the columns that are left out."""
        return frozenset(
            place for place, (_, convert) in enumerate(self.columns) if convert is None
        )

    @property
    def identity(self) -> tuple[str, ...]:
        """The replica identity's columns, as the relation's message flags them."""
        return tuple(column.name for column in self.relation.columns if column.is_key)

    @property
    def identity_is_key(self) -> bool:
        """Whether those are a key's: FULL flags every column, NOTHING none, so that only the
        catalog knows the primary key.
        """
        return self.relation.replica_identity not in _FULL_OR_NOTHING

    def row(self, row: Row) -> Values:
        """A whole row."""
        values = Values()
        for (name, convert), value in zip(self.columns, row, strict=True):
            if convert is None:
                continue
            # A large value that the update left alone: PostgreSQL did not send it.
            if value is UNCHANGED:
                values.unchanged.append(name)
            else:
                values.put(name, None if value is None else convert(value))
        return values

    # An old key has NULL for the other columns, which says nothing about them.
    def key_row(self, row: Row) -> Values:
        """The replica identity's columns of an old key."""
        values = Values()
        flags = (column.is_key for column in self.relation.columns)
        for (name, convert), value, is_key in zip(self.columns, row, flags, strict=True):
            if is_key and convert is not None:
                values.put(name, None if value is None or value is UNCHANGED else convert(value))
        return values

    def old_row(self, key: Row | None, old: Row | None) -> Values | None:
        """The row before an Update or Delete as in the message: whole, its key, or None."""
        if old is not None:
            return self.row(old)
        if key is None:
            return None
        return self.key_row(key)


class HasShape(Protocol):
    @property
    def shape(self) -> RelationShape: ...


T = TypeVar("T", bound=HasShape)


class DescribedRelations(dict[int, T]):
    """The relations that the stream described, by their numbers."""

    def __missing__(self, relation_id: int) -> T:
        raise ProtocolError(f"a change of relation {relation_id}, which was never described")

    def hidden(self, message: bytes) -> frozenset[int]:
        """The indexes of the excluded columns in a row's message."""
        # A malformed message may name none that is known.
        known = self.get(int.from_bytes(message[1:5], "big"))
        if known is None:
            return frozenset()
        return known.shape.hidden
