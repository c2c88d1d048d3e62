"""The shape of a table as the stream has it now, with everything prepared that its events need.
Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.contract.exact import Inexact
from headrace.contract.naming import Operation, change_subject, message_id, table_token
from headrace.contract.schemas import ColumnShape, TableShape, fill
from headrace.contract.selection import Selection
from headrace.contract.values import ValueOptions, converter
from headrace.pgoutput.messages import UNCHANGED, Relation, RelationColumn, Row
from headrace.postgres.facts import TableFacts
from headrace.publisher.quick_rows import Convert
from headrace.publisher.schema_book import NOT_LOOKED, Looked


@dataclass(frozen=True, slots=True)
class Kind:
    """What all changes of one kind to one table have in common: an Operation is slow to look up by."""

    operation: str
    subject: str
    # A message's id after its LSN.
    id_end: str

    @classmethod
    def of(cls, token: str, operation: Operation) -> Kind:
        return cls(
            operation.upper(), change_subject(token, operation), message_id(0, token, operation)[1:]
        )


FULL_OR_NOTHING = ("f", "n")


@dataclass(slots=True)
class Values:
    """A row as an event has it: native values, PostgreSQL's text of those that are not all, and
    what was not sent.
    """

    native: dict[str, object] = field(default_factory=dict)
    exact: dict[str, str] = field(default_factory=dict)
    unchanged: list[str] = field(default_factory=list)

    def put(self, name: str, value: object) -> None:
        if type(value) is Inexact:
            self.exact[name] = value.text
            value = value.native
        self.native[name] = value


@dataclass(slots=True)
class Shape:
    """One relation: names, converters, keys, subjects."""

    relation: Relation
    token: str
    key: frozenset[str]
    # None: the column is left out everywhere.
    columns: tuple[tuple[str, Convert | None], ...]
    insert: Kind
    update: Kind
    delete: Kind
    truncate: Kind
    table: TableShape
    # The events' `key`.
    event_key: tuple[str, ...] = ()
    # What the catalog said of the table's files.
    catalog: Looked = NOT_LOOKED
    # Left out by configuration: its changes count, and are not delivered.
    excluded: bool = False
    # Whether the schema book was asked about this shape since its Relation message came.
    told: bool = False
    # Kinds of changes, with an old row and without, that are written the quick way from here on
    # where they can be.
    quick: set[tuple[str, bool]] = field(default_factory=set)

    @classmethod
    def of(
        cls,
        relation: Relation,
        facts: TableFacts,
        options: ValueOptions,
        selection: Selection | None = None,
        known_key: Sequence[str] | None = None,
    ) -> Shape:
        """`known_key`: what the stream had as this relation's primary key so far; None: it has not
        had any row.
        """
        selection = selection or Selection()
        token = table_token(relation.schema, relation.name)
        hidden = selection.hidden_columns(relation.schema, relation.name)
        columns = tuple(
            (
                column.name,
                None
                if column.name in hidden
                else converter(column.type_oid, options, facts.types.get),
            )
            for column in relation.columns
        )
        flagged = frozenset(column.name for column in relation.columns if column.is_key)
        # FULL flags every column, NOTHING none: there the primary key must come from the catalog (a
        # column list may hide part of it).
        present = {column.name for column in relation.columns}
        primary_key = _primary_key(relation, facts, known_key)
        primary = (
            frozenset(primary_key)
            if relation.replica_identity in FULL_OR_NOTHING
            else frozenset[str]()
        )
        key = primary if primary and primary <= present else flagged
        return cls(
            relation=relation,
            token=token,
            key=key,
            columns=columns,
            insert=Kind.of(token, Operation.INSERT),
            update=Kind.of(token, Operation.UPDATE),
            delete=Kind.of(token, Operation.DELETE),
            truncate=Kind.of(token, Operation.TRUNCATE),
            table=_table_shape(relation, facts, dict(columns), primary_key),
            event_key=_event_key(relation, primary_key, present - hidden),
            catalog=Looked(facts.storage, facts.lsn, facts.next_xid),
            excluded=not selection.wants(relation.schema, relation.name),
        )

    def row(self, row: Row) -> Values:
        """A whole row."""
        values = Values()
        for (name, convert), value in zip(self.columns, row, strict=True):
            if convert is None:
                continue
            if value is UNCHANGED:
                values.unchanged.append(name)
            else:
                values.put(name, None if value is None else convert(value))
        return values

    def key_row(self, row: Row) -> Values:
        """The replica identity's columns of an old key."""
        values = Values()
        flags = (column.is_key for column in self.relation.columns)
        for (name, convert), value, is_key in zip(self.columns, row, flags, strict=True):
            if is_key and convert is not None:
                values.put(name, None if value is None or value is UNCHANGED else convert(value))
        return values

    def deleted(self, known: Values) -> Values:
        """DELETE's `data`: the key columns, the others null."""
        shown = [name for name, convert in self.columns if convert is not None]
        native = {name: known.native.get(name) if name in self.key else None for name in shown}
        return Values(
            native, {name: text for name, text in known.exact.items() if name in self.key}
        )


def _primary_key(
    relation: Relation, facts: TableFacts, known: Sequence[str] | None
) -> tuple[str, ...]:
    """The primary key as of this relation's message: the catalog may have moved on to another
    since.

    With the default identity the message flags its columns; then only their order is the catalog's,
    or the stream's so far. With another identity the message says nothing of it: the catalog is
    believed unless its key is a later one.
    """
    names = [column.name for column in relation.columns]
    flagged = tuple(column.name for column in relation.columns if column.is_key)
    if relation.replica_identity == "d" and flagged:
        for key in (facts.primary_key, known or ()):
            if set(key).intersection(names) == set(flagged):
                return tuple(key)
        return flagged
    moved_on = facts.key_is_later or not facts.columns
    if moved_on and known is not None and set(known) <= set(names):
        return tuple(known)
    return facts.primary_key


def _event_key(
    relation: Relation, primary_key: Sequence[str], delivered: Collection[str]
) -> tuple[str, ...]:
    """The columns by which an event's row is the table's; none where not all of them are delivered."""
    by_index = relation.replica_identity == "i" and not primary_key
    key = (
        tuple(column.name for column in relation.columns if column.is_key)
        if by_index
        else tuple(primary_key)
    )
    return key if set(key) <= set(delivered) else ()


def _table_shape(
    relation: Relation,
    facts: TableFacts,
    converters: Mapping[str, Convert | None],
    primary_key: Sequence[str],
) -> TableShape:
    """What a schema event tells: names and types from the stream, the rest from the catalog where
    it still knows.
    """
    hidden = {name for name, convert in converters.items() if convert is None}
    return TableShape(
        schema=relation.schema,
        name=relation.name,
        relation_id=relation.relation_id,
        replica_identity=relation.replica_identity,
        primary_key=tuple(name for name in primary_key if name not in hidden),
        membership=facts.membership,
        columns=tuple(
            _column_shape(column, facts, convert)
            for column in relation.columns
            if (convert := converters[column.name]) is not None
        ),
        last_number=facts.last_number if facts.columns.keys() == converters.keys() else 0,
        publication=facts.publication,
    )


def _column_shape(column: RelationColumn, facts: TableFacts, convert: Convert) -> ColumnShape:
    known = facts.columns.get(column.name)
    data_type = facts.type_names.get((column.type_oid, column.type_modifier), "???")
    shape = ColumnShape(
        column.name,
        column.type_oid,
        column.type_modifier,
        data_type,
        is_key=column.is_key,
        base_type=facts.base_types.get(column.type_oid),
    )
    if known is None or not known.number:
        # The catalog has moved on: nobody can say any more which column this is and what adding it
        # did.
        shape = replace(shape, filled=True)
    if known is None:
        return shape
    return replace(
        shape,
        is_nullable=known.is_nullable,
        column_default=known.column_default,
        number=known.number,
        filled=known.filled or not known.number,
        fill=fill(known.missing, convert) if known.number else None,
    )
