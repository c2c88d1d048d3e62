"""A statement of a PostgreSQL client as DuckDB SQL that gives the same answer, or a refusal.

The statement is the tree of PostgreSQL's own analyzer, after rewriting. Everything that isn't on
the lists of this package raises `NotProvenEqualError`. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.sql.builtins import Builtins
from headrace.sql.calls import SessionSettings
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.grouping import aggregates_rows
from headrace.sql.queries import QueryTranslator
from headrace.sql.query_tree import Node, Value
from headrace.sql.relations import LakeRelation
from headrace.sql.scope import SQL_CHARACTERS_MAX, Select, SessionValue, StatementScope

# Attribute numbers in sets count from the least system attribute.
_ATTRIBUTE_OFFSET = 7
# Of finite numerics.
_SIGNS = (0x0000, 0x4000)


@dataclass(frozen=True, slots=True)
class TranslatedColumn:
    """A column of the result. Numerics are DECIMALs, or texts where their display scales vary."""

    type_oid: int
    modifier: int


@dataclass(frozen=True, slots=True)
class Translation:
    """The statement for DuckDB, with parameters $1, $2, … of these types.

    The client's parameters come first. `session_values` are the parameters after them: expressions
    that the private server evaluates in the session when the statement runs.
    """

    sql: str
    parameters: tuple[int, ...]
    columns: tuple[TranslatedColumn, ...]
    relids: frozenset[int]
    session_values: tuple[SessionValue, ...] = ()
    # Whether DuckDB may fail because a number doesn't fit into 64 bits.
    narrow: bool = False


@dataclass(frozen=True, slots=True)
class RequiredPrivilege:
    """A right on a relation that is needed: the bits of an AclMode, and the columns that it
    selects; 0 stands for the whole row. `user` is the OID of a view's owner; 0 is the session's.
    """

    relid: int
    privileges: int
    columns: frozenset[int]
    user: int


def translate(
    query: Node,
    relations: Mapping[int, LakeRelation],
    builtins: Builtins,
    *,
    utc: bool = False,
    iso_dates: bool = False,
    numerics: Mapping[int, tuple[int, int]] | None = None,
    narrow: bool = False,
) -> Translation:
    """The query for DuckDB.

    `utc` says that the session's TimeZone is UTC, `iso_dates` that its DateStyle is ISO. A
    statement with numeric parameters depends on the digits of their values: it can be described
    without them, and is translated again with `numerics`, the digits of each (`numeric_digits`;
    nulls may be left out), to be executed.

    With `narrow`, numerics may be computed in 64 bits: an error of DuckDB then says nothing about
    the statement, which has to be translated again without it. Such an error comes before the first
    row.

    Raises NotProvenEqualError if the query isn't proven to give PostgreSQL's answer.
    """
    session = SessionSettings(utc=utc, iso_dates=iso_dates)
    wide = _aggregates_within(query)

    def scope(client_parameters: int) -> StatementScope:
        return StatementScope(
            builtins,
            relations,
            session,
            numerics=numerics,
            client_parameters=client_parameters,
            wide_sums=wide,
            may_narrow=narrow,
        )

    statement = scope(0)
    select = _translated(statement, query)
    if statement.session_values:
        # Now the number of the client's parameters is known.
        statement = scope(len(statement.parameters))
        select = _translated(statement, query)
    # Operands that are needed twice stand twice in the text: nesting doubles them each time.
    if len(select.sql) > SQL_CHARACTERS_MAX:
        raise NotProvenEqualError("a statement of this size")
    numbers = sorted(statement.parameters)
    if numbers != list(range(1, len(numbers) + 1)):
        raise NotProvenEqualError("a statement that doesn't use all its parameters")
    return Translation(
        sql=select.sql,
        parameters=tuple(statement.parameters[number] for number in numbers),
        columns=tuple(TranslatedColumn(form.type_oid, form.modifier) for form in select.forms),
        relids=frozenset(statement.relids),
        session_values=tuple(statement.session_values),
        narrow=narrow and aggregates_rows(query),
    )


def _aggregates_within(query: Node) -> bool:
    """Whether a query in the query gives a row for no rows. DuckDB takes its product with others
    for empty, and sums over it in 64 bits.
    """
    return any(
        node.kind == "QUERY"
        and node is not query
        and (node.flag("hasAggs") or node.get("havingQual") is not None)
        and (not node.nodes("groupClause") or bool(node.nodes("groupingSets")))
        for node in _nodes(query)
    )


def _translated(statement: StatementScope, query: Node) -> Select:
    try:
        return QueryTranslator(statement).query(query, None, whole=True)
    except RecursionError:
        raise NotProvenEqualError("a statement that is nested this deeply") from None


def numeric_digits(value: bytes) -> tuple[int, int]:
    """The digits of a numeric in PostgreSQL's binary form, before and after the point."""
    # As numeric_send writes it: groups of four digits; `weight` is the place of the first.
    groups, weight, sign, scale = struct.unpack_from(">HhHH", value)
    if sign not in _SIGNS:
        raise NotProvenEqualError("NaN or infinity in numeric")
    if not groups:
        return 1, scale
    (first,) = struct.unpack_from(">H", value, 8)
    return max(weight * 4 + len(str(first)), 1), scale


def required_privileges(query: Node) -> tuple[RequiredPrivilege, ...]:
    """All relations that PostgreSQL would check when it executes the query."""
    return tuple(
        RequiredPrivilege(
            relid=node.integer("relid"),
            privileges=node.integer("requiredPerms"),
            columns=frozenset(
                member - _ATTRIBUTE_OFFSET for member in node.members("selectedCols")
            ),
            user=node.integer("checkAsUser"),
        )
        for node in _nodes(query)
        if node.kind == "RTEPERMISSIONINFO"
    )


def _nodes(value: Value) -> Iterator[Node]:
    """The node and all below it."""
    if isinstance(value, Node):
        yield value
        for child in value.fields.values():
            yield from _nodes(child)
    elif isinstance(value, list):
        for child in value:
            yield from _nodes(child)
