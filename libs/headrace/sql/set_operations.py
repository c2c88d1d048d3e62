"""UNION, INTERSECT and EXCEPT. Pure.

The analyzer leaves the columns of each query as they are, and says which type the operation gives
them; PostgreSQL's planner adds the casts. So they are here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from headrace.contract import type_oids
from headrace.sql.comparisons import require_groups
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.forms import (
    Expression,
    Form,
    as_decimal,
    common_decimal,
    decimal_form,
    form_of,
)
from headrace.sql.query_tree import Node, QueryTreeError
from headrace.sql.scope import DerivedEntry, Select, StatementScope
from headrace.sql.sources import output
from headrace.sql.storage_types import BPCHAR_OID, NAME_OID, TEXT_OID, VARCHAR_OID, Meaning

_UNION: Final = 1
_OPERATIONS: Final = {1: "UNION", 2: "INTERSECT", 3: "EXCEPT"}
_INTEGERS: Final = (type_oids.INT2, type_oids.INT4, type_oids.INT8)
_DIGITS: Final = {type_oids.INT2: 5, type_oids.INT4: 10, type_oids.INT8: 19}
_CHARACTERS: Final = (TEXT_OID, VARCHAR_OID, BPCHAR_OID)
_READ_AS_CHARACTERS: Final = (*_CHARACTERS, NAME_OID)
_FLOATS: Final = (type_oids.FLOAT4, type_oids.FLOAT8)


@dataclass(frozen=True, slots=True)
class SetOperations:
    """Translates the tree of a query's set operations; `leaf` gives the query of a number."""

    statement: StatementScope
    leaf: Callable[[int], Select]

    def tree(self, node: Node) -> Select:
        if node.kind == "RANGETBLREF":
            return self.leaf(node.integer("rtindex"))
        if node.kind != "SETOPERATIONSTMT":
            raise QueryTreeError("an unknown set operation")
        sides = [self.tree(node.node("larg")), self.tree(node.node("rarg"))]
        return self.combined(node, sides[0], sides[1])

    def combined(self, node: Node, left: Select, right: Select) -> Select:
        oids = node.integers("colTypes")
        if not len(left.forms) == len(right.forms) == len(oids):
            raise QueryTreeError("a set operation has sides of different widths")
        every = node.flag("all")
        operation = node.integer("op")
        forms = tuple(
            _common(one, other, oid)
            for one, other, oid in zip(left.forms, right.forms, oids, strict=True)
        )
        # UNION ALL compares no rows.
        if not every or operation != _UNION:
            for form in forms:
                require_groups(Expression("", form))
                if every and form.type_oid in _FLOATS:
                    # DuckDB makes 0 of -0 there.
                    raise NotProvenEqualError(f"{_OPERATIONS[operation]} ALL of floats")
        words = _OPERATIONS[operation] + (" ALL" if every else "")
        sql = f"({self._side(left, forms)}) {words} ({self._side(right, forms)})"
        return Select(sql, forms)

    def _side(self, select: Select, forms: tuple[Form, ...]) -> str:
        alias = self.statement.alias()
        entry = DerivedEntry(alias, select.forms)
        cells = [_converted(entry.column(number), form) for number, form in enumerate(forms, 1)]
        return f"SELECT {output(forms, cells)} FROM ({select.sql}) AS {alias}"


def _common(left: Form, right: Form, oid: int) -> Form:
    """The form of a column of the result."""
    if oid == type_oids.NUMERIC:
        return common_decimal([_numeric(left), _numeric(right)])
    same = left if left == right else form_of(oid)
    return same if same.type_oid == oid else form_of(oid)


def _numeric(form: Form) -> Form:
    if form.type_oid in _DIGITS:
        return decimal_form(_DIGITS[form.type_oid], 0)
    return form


def _as_characters(column: Expression, form: Form) -> Expression:
    """An implicit cast between types of characters."""
    if form.type_oid not in _CHARACTERS or column.form.type_oid not in _READ_AS_CHARACTERS:
        # A name has 63 bytes at most, for example.
        raise NotProvenEqualError("a set operation of these types")
    if column.form.type_oid == BPCHAR_OID != form.type_oid:
        # The padding is no part of the text.
        return Expression(f"rtrim({column.sql}, ' ')", form)
    return replace(column, form=form)


def _converted(column: Expression, form: Form) -> Expression:
    """An implicit cast to the type of the result."""
    source = column.form
    if form.type_oid == type_oids.NUMERIC:
        number = _numeric(source)
        sql = column.sql
        if number is not source:
            sql = f"CAST({sql} AS {number.duckdb})"
        return as_decimal(replace(column, sql=sql, form=number), form)
    # A value that is text in the copy would have to be read as another type.
    if source.meaning is not form.meaning:
        raise NotProvenEqualError("a set operation of these types")
    if source.type_oid == form.type_oid:
        return column
    if source.meaning is form.meaning is Meaning.CHARACTERS:
        return _as_characters(column, form)
    widened = source.type_oid in _INTEGERS and form.type_oid in (*_INTEGERS, *_FLOATS)
    if widened or source.type_oid in _FLOATS:
        return Expression(f"CAST({column.sql} AS {form.duckdb})", form)
    raise NotProvenEqualError("a set operation of these types")
