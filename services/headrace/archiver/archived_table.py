"""Rows of one relation as the archive has them: JSON texts in the contract's forms, arrays as
PostgreSQL's literals. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.archive.metadata import ColumnInfo, TableInfo
from headrace.confirming.relation_shape import RelationShape, Values
from headrace.confirming.row_compiler import QuickKeyedRow, compiled_texts
from headrace.contract.json_bytes import compact_json
from headrace.contract.values import Encoding, ValueOptions
from headrace.postgres.facts import TableFacts

OPTIONS = ValueOptions(encoding=Encoding.JSON)


@dataclass(frozen=True, slots=True)
class ArchivedTable:
    """Writes the rows of a relation."""

    shape: RelationShape
    # The key's columns, in its order.
    key: tuple[str, ...]
    info: TableInfo
    # Writes plain rows of Insert messages; `RelationShape.row` is the meaning, and the oracle of
    # the test.
    quick: QuickKeyedRow | None

    @classmethod
    def of(cls, shape: RelationShape) -> ArchivedTable:
        key = _key(shape)
        return cls(shape, key, _table_info(shape, key), compiled_texts(shape.columns, key))

    def key_of(self, new: Values | None, old: Values | None = None) -> bytes | None:
        """The key's columns of the new row; the old one may have those that it lacks."""
        known: dict[str, object] = {} if old is None else old.native
        if new is not None:
            known = known | new.native
        found = {name: known[name] for name in self.key if name in known}
        if found:
            return compact_json(found)
        return None


def text(row: Values | None) -> bytes | None:
    """A row's text; None where nothing is known of it."""
    if row is not None and row.native:
        return compact_json(row.native)
    return None


def exact(new: Values | None, old: Values | None) -> bytes | None:
    """PostgreSQL's texts of values whose JSON loses information, as the archive's column stores
    them.
    """
    found = {
        side: row.exact
        for side, row in (("after", new), ("before", old))
        if row is not None and row.exact
    }
    if found:
        return compact_json(found)
    return None


def _key(shape: RelationShape) -> tuple[str, ...]:
    """The primary key where the identity is none, if the catalog knows it; else the identity."""
    shown = frozenset(shape.shown)
    primary_key = shape.facts.primary_key
    if not shape.identity_is_key and primary_key and shown.issuperset(primary_key):
        return primary_key
    return tuple(name for name in shape.identity if name in shown)


def _table_info(shape: RelationShape, key: tuple[str, ...]) -> TableInfo:
    relation = shape.relation
    facts = shape.facts
    shown = frozenset(shape.shown)
    columns = tuple(
        ColumnInfo(
            column.name,
            column.type_oid,
            column.type_modifier,
            facts.type_names.get((column.type_oid, column.type_modifier), "???"),
            column.name in key,
            _filled(facts, column.name),
            _number(facts, column.name),
        )
        for column in relation.columns
        if column.name in shown
    )
    return TableInfo(relation.schema, relation.name, relation.relation_id, 0, key, columns)


def _filled(facts: TableFacts, name: str) -> bool:
    known = facts.columns.get(name)
    # If the catalog has changed since, nobody can say any more what adding the column did.
    return known is None or not known.number or known.filled


def _number(facts: TableFacts, name: str) -> int:
    known = facts.columns.get(name)
    return 0 if known is None else known.number
