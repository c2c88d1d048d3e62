"""The common parts of a relation's events: keys, subjects, the schema to report. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.confirming.relation_shape import RelationShape, Values
from headrace.contract.schemas import ColumnShape, TableShape, fill
from headrace.contract.subjects_and_ids import Operation, change_subject, message_id, table_token
from headrace.contract.values import Converter
from headrace.pgoutput.messages import Relation, RelationColumn
from headrace.postgres.facts import TableFacts
from headrace.publisher.schema_book import NO_READING, FilesReading


@dataclass(frozen=True, slots=True)
class Kind:
    """The common part of all changes of one kind to one table."""

    operation: str
    subject: str
    # A message's id after its LSN.
    id_end: str

    @classmethod
    def of(cls, token: str, operation: Operation) -> Kind:
        return cls(
            operation.upper(), change_subject(token, operation), message_id(0, token, operation)[1:]
        )


@dataclass(slots=True)
class TableEvents:
    """One relation: its shape, keys, subjects."""

    shape: RelationShape
    token: str
    key: frozenset[str]
    insert: Kind
    update: Kind
    delete: Kind
    truncate: Kind
    table: TableShape
    # The events' `key`.
    event_key: tuple[str, ...] = ()
    # The catalog's facts about the table's files.
    catalog: FilesReading = NO_READING
    # Whether the schema book was asked about this shape since its Relation message arrived.
    told: bool = False
    # Kinds of changes, with an old row and without, that use the fast path from here on if
    # possible.
    quick: set[tuple[str, bool]] = field(default_factory=set)

    @classmethod
    def of(cls, shape: RelationShape, known_key: Sequence[str] | None = None) -> TableEvents:
        """`known_key`: this relation's primary key in the stream so far; None without rows."""
        relation = shape.relation
        facts = shape.facts
        token = table_token(relation.schema, relation.name)
        primary_key = _primary_key(relation, facts, known_key)
        return cls(
            shape=shape,
            token=token,
            key=_key(shape, primary_key),
            insert=Kind.of(token, Operation.INSERT),
            update=Kind.of(token, Operation.UPDATE),
            delete=Kind.of(token, Operation.DELETE),
            truncate=Kind.of(token, Operation.TRUNCATE),
            table=_table_shape(relation, facts, dict(shape.columns), primary_key),
            event_key=_event_key(shape, primary_key),
            catalog=FilesReading(facts.storage, facts.lsn, facts.next_xid),
        )

    def deleted(self, known: Values) -> Values:
        """DELETE's `data`: the key columns, the others null."""
        native = {
            name: known.native.get(name) if name in self.key else None for name in self.shape.shown
        }
        return Values(
            native, {name: text for name, text in known.exact.items() if name in self.key}
        )


def _key(shape: RelationShape, primary_key: Sequence[str]) -> frozenset[str]:
    """The columns that a row is referred to by; a column list may hide part of the primary key."""
    present = {name for name, _ in shape.columns}
    if not shape.identity_is_key and primary_key and present.issuperset(primary_key):
        return frozenset(primary_key)
    return frozenset(shape.identity)


def _primary_key(
    relation: Relation, facts: TableFacts, known: Sequence[str] | None
) -> tuple[str, ...]:
    """The primary key as of this relation's message: the catalog may have changed since.

    With the default identity the message flags its columns; then only their order comes from the
    catalog, or from the stream so far. With another identity the message doesn't contain it: the
    catalog is believed unless its key is a later one.
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


def _event_key(shape: RelationShape, primary_key: Sequence[str]) -> tuple[str, ...]:
    """The columns by which an event's row identifies the table's; none if not all of them are
    delivered.
    """
    by_index = shape.relation.replica_identity == "i" and not primary_key
    key = shape.identity if by_index else tuple(primary_key)
    if set(key) <= set(shape.shown):
        return key
    return ()


def _table_shape(
    relation: Relation,
    facts: TableFacts,
    converters: Mapping[str, Converter | None],
    primary_key: Sequence[str],
) -> TableShape:
    """The content of a schema event: names and types from the stream, the rest from the catalog if
    it still has it.
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


def _column_shape(column: RelationColumn, facts: TableFacts, convert: Converter) -> ColumnShape:
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
        # The catalog has changed since: nobody can say any more which column this is and what
        # adding it did.
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
