"""Subqueries within expressions: EXISTS, IN, ANY, ALL, and those that give one value. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from headrace.contract import type_oids
from headrace.sql.comparisons import COMPARISONS, ordered
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.expressions import Expressions, Place
from headrace.sql.forms import Expression, as_decimal, common_decimal, value
from headrace.sql.query_tree import Node
from headrace.sql.scope import DerivedEntry, Select

_EXISTS, _ALL, _ANY, _VALUE = 0, 1, 2, 4
_NAMES: Final = {3: "a comparison of rows with a subquery", 5: "MULTIEXPR", 6: "ARRAY(subquery)"}
_SUBLINK_PARAMETER = 2


def sublink(self: Expressions, node: Node, place: Place) -> Expression:
    """A subquery, which may refer to this query and those around it."""
    kind = node.integer("subLinkType")
    if kind in _NAMES or kind not in (_EXISTS, _ALL, _ANY, _VALUE):
        raise NotProvenEqualError(_NAMES.get(kind, "this kind of subquery"))
    select = self.queries.query(node.node("subselect"), self.scope)
    if kind == _EXISTS:
        return value(f"EXISTS ({select.sql})", type_oids.BOOL)
    if kind == _VALUE:
        return _single(self, select)
    return _quantified(self, node, place, select, "ALL" if kind == _ALL else "ANY")


def _single(self: Expressions, select: Select) -> Expression:
    (form,) = select.forms
    if not form.varies:
        return Expression(f"({select.sql})", form)
    alias = self.scope.statement.alias()
    source = f"FROM ({select.sql}) AS {alias}"
    return Expression(f"(SELECT {alias}.c1 {source})", form, f"(SELECT {alias}.s1 {source})")


def _quantified(
    self: Expressions, node: Node, place: Place, select: Select, word: str
) -> Expression:
    """`left = ANY (SELECT …)`; the right operand of the test is a column, perhaps cast."""
    test = node.node("testexpr")
    alias = self.scope.statement.alias()
    inner = replace(place, columns=DerivedEntry(alias, select.forms))
    if test.kind == "OPEXPR":
        left_node, right_node = test.nodes("args")
        if not _has_column(left_node):
            left = self.translate(left_node, place)
            right = self.translate(right_node, inner)
            return _compared(self, test, left, right, word, f"({select.sql}) AS {alias}")
    if word == "ALL":
        raise NotProvenEqualError("ALL of rows")
    return _any_row(self, test, inner, f"({select.sql}) AS {alias}")


def _has_column(node: Node) -> bool:
    """Whether the expression contains a column of the subquery."""
    if node.kind == "PARAM" and node.integer("paramkind") == _SUBLINK_PARAMETER:
        return True
    children = [child for child in node.fields.values() if isinstance(child, Node)]
    for items in node.fields.values():
        if isinstance(items, list):
            children += [item for item in items if isinstance(item, Node)]
    return any(_has_column(child) for child in children)


def _compared(
    self: Expressions, test: Node, left: Expression, right: Expression, word: str, source: str
) -> Expression:
    signature = self.builtins.function(test.integer("opfuncid"))
    operator = self.builtins.operators.get(test.integer("opno"), "")
    if signature not in COMPARISONS:
        raise NotProvenEqualError(f"{word} with {signature}")
    # Checks the types and the collation.
    self.apply(test.integer("opfuncid"), [left, right], type_oids.BOOL, test)
    if left.form.is_decimal and left.form.duckdb != right.form.duckdb:
        # DuckDB would round to the digits that are left after those before the point.
        form = common_decimal([left.form, right.form])
        left, right = as_decimal(left, form), as_decimal(right, form)
    subquery = f"(SELECT {ordered(right)} FROM {source})"
    return value(f"({ordered(left)} {operator} {word} {subquery})", type_oids.BOOL)


def _any_row(self: Expressions, test: Node, inner: Place, source: str) -> Expression:
    """IN for rows: true if the test is true for one, null if it is null for one."""
    condition = self.translate(test, inner).sql
    true = f"EXISTS (SELECT 1 FROM {source} WHERE {condition})"
    unknown = f"EXISTS (SELECT 1 FROM {source} WHERE ({condition}) IS NULL)"
    return value(f"(CASE WHEN {true} THEN true WHEN {unknown} THEN NULL ELSE false END)", 16)
