"""The shape of a table as the stream has it now, with everything prepared that its events need. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.contract.naming import Operation, change_subject, table_token
from headrace.contract.values import ValueOptions, converter
from headrace.pgoutput.messages import UNCHANGED, Relation, Row
from headrace.postgres.catalog import TableFacts

Convert = Callable[[bytes], object]


@dataclass(slots=True)
class Shape:
    """One relation: names, converters, keys, subjects."""

    relation: Relation
    token: str
    key: frozenset[str]
    columns: tuple[tuple[str, Convert], ...]
    subjects: dict[Operation, str]

    @classmethod
    def of(cls, relation: Relation, facts: TableFacts, options: ValueOptions) -> Shape:
        token = table_token(relation.schema, relation.name)
        columns = tuple(
            (column.name, converter(column.type_oid, options, facts.types.get)) for column in relation.columns
        )
        flagged = frozenset(column.name for column in relation.columns if column.is_key)
        present = {column.name for column in relation.columns}
        # FULL flags every column, so the primary key must come from the catalog; a column list may hide part of it.
        key = frozenset(facts.primary_key) if set(facts.primary_key) <= present else frozenset[str]()
        subjects = {operation: change_subject(token, operation) for operation in Operation}
        return cls(relation, token, key or flagged, columns, subjects)

    def row(self, row: Row) -> tuple[dict[str, object], list[str]]:
        """A whole row: its values, and the names of those that PostgreSQL did not send."""
        data: dict[str, object] = {}
        unchanged: list[str] = []
        for (name, convert), value in zip(self.columns, row, strict=True):
            if value is None:
                data[name] = None
            elif value is UNCHANGED:
                unchanged.append(name)
            else:
                data[name] = convert(value)
        return data, unchanged

    def key_row(self, row: Row) -> dict[str, object]:
        """The replica identity's columns of an old key."""
        flags = (column.is_key for column in self.relation.columns)
        return {
            name: None if value is None or value is UNCHANGED else convert(value)
            for (name, convert), value, is_key in zip(self.columns, row, flags, strict=True)
            if is_key
        }

    def deleted(self, known: dict[str, object]) -> dict[str, object]:
        """DELETE's `data`: the key columns, the others null."""
        return {name: known.get(name) if name in self.key else None for name, _ in self.columns}
