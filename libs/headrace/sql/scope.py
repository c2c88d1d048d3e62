"""The meaning of names in a query: its range table, its WITH queries, and the queries around it.

A range table entry gives an expression for each of its columns. Aliases are unique in the whole
translated statement, so that a query can refer to those around it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.sql.builtins import Builtins
from headrace.sql.calls import SessionSettings
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.forms import Expression, Form, form_of
from headrace.sql.query_tree import Node, QueryTreeError
from headrace.sql.relations import LakeRelation

# A statement that repeats operands this often is refused instead of growing without bounds.
SQL_CHARACTERS_MAX = 1_000_000
_PARAMETERS_MAX = 65535
_SOME_DIGITS = (9, 6)


@dataclass(frozen=True, slots=True)
class SessionValue:
    """An expression that the private server evaluates at execution: `current_date`, `now()`."""

    expression: str
    type_oid: int


@dataclass(slots=True)
class StatementScope:
    """Common to all queries of the statement; collects what it refers to."""

    builtins: Builtins
    relations: Mapping[int, LakeRelation]
    session: SessionSettings
    relids: set[int] = field(default_factory=set)
    parameters: dict[int, int] = field(default_factory=dict)
    # The digits of numeric parameters, before and after the point; None before they have values.
    numerics: Mapping[int, tuple[int, int]] | None = None
    # Values of the session are parameters after the client's.
    client_parameters: int = 0
    session_values: list[SessionValue] = field(default_factory=list)
    # Whether DuckDB may believe that a sum has fewer rows than it has, and let it overflow.
    wide_sums: bool = False
    # Whether products and sums of numerics may be computed in 64 bits in the statement, and whether
    # they are where the translation stands: DuckDB fails if a value doesn't fit.
    may_narrow: bool = False
    narrow: bool = False
    _aliases: int = 0

    def alias(self) -> str:
        self._aliases += 1
        return f"t{self._aliases}"

    def numeric_digits(self, number: int) -> tuple[int, int]:
        """The digits of a numeric parameter; some digits as long as it has no value."""
        if self.numerics is None:
            return _SOME_DIGITS
        return self.numerics.get(number, (1, 0))

    def session_value(self, value: SessionValue) -> str:
        if value not in self.session_values:
            self.session_values.append(value)
        return f"${self.client_parameters + self.session_values.index(value) + 1}"

    def parameter(self, number: int, type_oid: int) -> str:
        if not 0 < number <= _PARAMETERS_MAX or self.parameters.get(number, type_oid) != type_oid:
            raise QueryTreeError(f"the statement has an impossible parameter {number}")
        self.parameters[number] = type_oid
        return f"${number}"


class RangeEntry(Protocol):
    """An entry of the range table."""

    def column(self, number: int) -> Expression:
        """The column, counted from 1."""
        ...


@dataclass(frozen=True, slots=True)
class RelationEntry:
    """A table of the lake."""

    alias: str
    relation: LakeRelation

    def column(self, number: int) -> Expression:
        found = next((column for column in self.relation.columns if column.number == number), None)
        table = f"{self.relation.schema}.{self.relation.name}"
        if found is None:
            raise NotProvenEqualError(f"a system column or whole row of {table}")
        if not found.held:
            raise NotProvenEqualError(
                f"the column {table}.{found.name}", "It has values that the copy can't hold."
            )
        return Expression(f"{self.alias}.{found.copy}", form_of(found.type_oid, found.modifier))


@dataclass(frozen=True, slots=True)
class DerivedEntry:
    """A subquery, a WITH query or VALUES: column n is `cn`, and its display scale `sn`."""

    alias: str
    forms: Sequence[Form]

    def column(self, number: int) -> Expression:
        if not 0 < number <= len(self.forms):
            raise NotProvenEqualError("a whole row")
        form = self.forms[number - 1]
        scale = f"{self.alias}.s{number}" if form.varies else None
        return Expression(f"{self.alias}.c{number}", form, scale)


@dataclass(frozen=True, slots=True)
class ComputedEntry:
    """A join or the groups of a query: its columns are expressions over other entries."""

    nodes: Sequence[Node]
    translate: Callable[[Node], Expression]

    def column(self, number: int) -> Expression:
        if not 0 < number <= len(self.nodes):
            raise NotProvenEqualError("a whole row")
        return self.translate(self.nodes[number - 1])


@dataclass(frozen=True, slots=True)
class Select:
    """A translated query: its SQL, and the forms of its columns `c1`, `c2` …; a column whose
    display scale varies has it in `s1`, `s2` … next to it.
    """

    sql: str
    forms: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class CommonTable:
    """A WITH query."""

    name: str
    forms: Sequence[Form]


@dataclass(slots=True)
class QueryScope:
    """A query, while it is translated.

    `groups` are the nodes that the query groups by; it is None if the query doesn't aggregate.
    """

    statement: StatementScope
    query: Node
    parent: QueryScope | None
    entries: dict[int, RangeEntry] = field(default_factory=dict)
    common_tables: dict[str, CommonTable] = field(default_factory=dict)
    groups: list[Node] | None = None
    # Entries that only stand for the groups (PostgreSQL 18).
    group_entries: set[int] = field(default_factory=set)

    def up(self, levels: int) -> QueryScope:
        scope = self
        for _ in range(levels):
            if scope.parent is None:
                raise QueryTreeError("a variable belongs to a query that is not there")
            scope = scope.parent
        return scope

    def targets(self) -> list[Node]:
        return self.query.nodes("targetList")

    def target_of(self, reference: int) -> Node:
        """The target list's entry of a sort or group clause."""
        for target in self.targets():
            if target.integer("ressortgroupref") == reference:
                return target
        raise QueryTreeError("a sort clause refers to an expression that is not there")
