"""Expressions: nodes of PostgreSQL's tree as DuckDB's SQL. Pure.

Every node that isn't handled here, and every function that isn't on a list, is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Protocol

from headrace.contract import type_oids
from headrace.sql.calls import Call, Functions
from headrace.sql.casts import CASTS, relabelled, via_text
from headrace.sql.comparisons import COMPARISONS, ordered
from headrace.sql.constants import constant, null
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.forms import Expression, decimal_form, form_of, unified, value
from headrace.sql.number_functions import NUMBER_FUNCTIONS
from headrace.sql.numeric_functions import NUMERIC_FUNCTIONS
from headrace.sql.query_tree import Node, QueryTreeError
from headrace.sql.scope import SQL_CHARACTERS_MAX, QueryScope, RangeEntry, Select, SessionValue
from headrace.sql.storage_types import BPCHAR_OID, Meaning
from headrace.sql.text_functions import TEXT_FUNCTIONS
from headrace.sql.time_functions import TIME_FUNCTIONS

FUNCTIONS: Final[Functions] = MappingProxyType(
    {
        **COMPARISONS,
        **NUMBER_FUNCTIONS,
        **NUMERIC_FUNCTIONS,
        **TEXT_FUNCTIONS,
        **TIME_FUNCTIONS,
        **CASTS,
    }
)
"""All functions and operators that may be called, by signature."""

# The words of BooleanTest, by its number.
_BOOLEAN_TESTS = (
    "IS TRUE", "IS NOT TRUE", "IS FALSE", "IS NOT FALSE", "IS NULL", "IS NOT NULL",
)  # fmt: skip
_EXTERNAL_PARAMETER = 0
_SUBLINK_PARAMETER = 2
_SESSION_VALUES: Final = {
    "now()": "now()",
    "transaction_timestamp()": "now()",
}
_SQL_VALUES: Final = {0: "current_date", 3: "current_timestamp", 7: "localtimestamp"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where an expression stands.

    `grouped` is true where only groups and aggregates have values, and `aggregates` and `windows`
    where these may stand.
    """

    grouped: bool = False
    aggregates: bool = False
    windows: bool = False
    case_value: Expression | None = None
    # The columns of the subquery that IN, ANY or ALL compare with.
    columns: RangeEntry | None = None


ROWS: Final = Place()


class Queries(Protocol):
    """Translates whole queries, and the nodes that need that."""

    def query(self, node: Node, parent: QueryScope | None) -> Select: ...

    def special(self, kind: str) -> Handle | None:
        """The handler of sublinks, aggregates and window functions."""
        ...


class Expressions:
    """Translates the expressions of one query."""

    def __init__(self, scope: QueryScope, queries: Queries) -> None:
        self.scope = scope
        self.queries = queries
        self.builtins = scope.statement.builtins

    def translate(self, node: Node, place: Place = ROWS) -> Expression:
        """The expression at its place."""
        # A whole grouped expression has one value per group, although its columns have not.
        if place.grouped and self.scope.groups and node in self.scope.groups:
            place = replace(place, grouped=False)
        handle = _HANDLERS.get(node.kind) or self.queries.special(node.kind)
        if handle is None:
            raise NotProvenEqualError(node.kind)
        expression = handle(self, node, place)
        # Expressions repeat their arguments, so the text can double at each level.
        if len(expression.sql) > SQL_CHARACTERS_MAX:
            raise NotProvenEqualError("a statement of this size")
        return expression

    def condition(self, node: Node | None, place: Place = ROWS) -> str | None:
        """A condition, or None if there is none."""
        return None if node is None else self.translate(node, place).sql

    def call(self, oid: int, node: Node, place: Place, result_oid: int) -> Expression:
        """A function or an operator's function."""
        args = [self.translate(arg, place) for arg in node.nodes("args")]
        return self.apply(oid, args, result_oid, node)

    def apply(
        self, oid: int, args: Sequence[Expression], result_oid: int, node: Node
    ) -> Expression:
        signature = self.builtins.function(oid)
        handler = FUNCTIONS.get(signature)
        # The list has proven functions only (ADR 0034): a similar name is no proof.
        if handler is None:
            kind = "volatile function" if oid in self.builtins.volatile else "function"
            raise NotProvenEqualError(f"{kind} {signature}")
        collation = node.integer("inputcollid")
        scope = self.scope.statement
        return handler(
            Call(
                signature,
                tuple(args),
                result_oid,
                collation,
                self.builtins,
                scope.session,
                scope.narrow,
            )
        )


def _variable(self: Expressions, node: Node, place: Place) -> Expression:
    levels = node.integer("varlevelsup")
    scope = self.scope.up(levels)
    number = node.integer("varno")
    if node.get("varreturningtype"):
        raise NotProvenEqualError("RETURNING")
    entry = scope.entries.get(number)
    if entry is None:
        raise NotProvenEqualError("a reference to this kind of range table entry")
    expression = entry.column(node.integer("varattno"))
    # The tree and the table's definition are of different times.
    if expression.form.type_oid != node.integer("vartype"):
        raise QueryTreeError("a column has another type than its table's definition says")
    # A column of an outer query is constant within this one's groups.
    dependent = place.grouped and not levels and number not in scope.group_entries
    # Not a group, but determined by one: the rest of a table whose primary key is grouped by.
    return _any_of_group(expression) if dependent else expression


def _any_of_group(expression: Expression) -> Expression:
    scale = None if expression.scale is None else f"any_value({expression.scale})"
    return replace(expression, sql=f"any_value({expression.sql})", scale=scale)


def _constant(self: Expressions, node: Node, place: Place) -> Expression:
    datum = node.get("constvalue")
    if node.flag("constisnull"):
        datum = None
    elif not isinstance(datum, bytes):
        raise QueryTreeError("a constant has no value")
    return constant(node.integer("consttype"), node.integer("consttypmod"), datum)


def _parameter(self: Expressions, node: Node, place: Place) -> Expression:
    kind = node.integer("paramkind")
    # In IN (SELECT …), the tree names the subquery's columns by parameters.
    if kind == _SUBLINK_PARAMETER and place.columns is not None:
        return place.columns.column(node.integer("paramid"))
    if kind != _EXTERNAL_PARAMETER:
        raise NotProvenEqualError("this kind of parameter")
    oid = node.integer("paramtype")
    form = form_of(oid)
    if oid == type_oids.NUMERIC:
        number = node.integer("paramid")
        # DuckDB needs digits and scale, which only the value at hand has.
        form = decimal_form(*self.scope.statement.numeric_digits(number))
    elif form.meaning is Meaning.TEXT:
        raise NotProvenEqualError(
            f"a parameter of type {self.builtins.type_name(oid)}", "Cast it to another type."
        )
    name = self.scope.statement.parameter(node.integer("paramid"), oid)
    return Expression(f"CAST({name} AS {form.duckdb})", form)


def _operator(self: Expressions, node: Node, place: Place) -> Expression:
    return self.call(node.integer("opfuncid"), node, place, node.integer("opresulttype"))


def _function(self: Expressions, node: Node, place: Place) -> Expression:
    oid = node.integer("funcid")
    if node.flag("funcretset") or node.flag("funcvariadic"):
        raise NotProvenEqualError(f"function {self.builtins.function(oid)}")
    signature = self.builtins.function(oid)
    # The session's: now() in PostgreSQL is the start of the transaction, which DuckDB doesn't know.
    if signature in _SESSION_VALUES:
        return _session_value(self, _SESSION_VALUES[signature], node.integer("funcresulttype"))
    return self.call(oid, node, place, node.integer("funcresulttype"))


def _sql_value(self: Expressions, node: Node, place: Place) -> Expression:
    name = _SQL_VALUES.get(node.integer("op"))
    if name is None or node.integer("typmod") >= 0:
        raise NotProvenEqualError("SQLValueFunction")
    return _session_value(self, name, node.integer("type"))


def _session_value(self: Expressions, name: str, type_oid: int) -> Expression:
    form = form_of(type_oid)
    parameter = self.scope.statement.session_value(SessionValue(name, type_oid))
    return Expression(f"CAST({parameter} AS {form.duckdb})", form)


def _distinct(self: Expressions, node: Node, place: Place) -> Expression:
    """IS DISTINCT FROM: the negation is around it. Its operator has to be an equality."""
    left, right = _compared(self, node, place)
    return value(f"({left} IS DISTINCT FROM {right})", type_oids.BOOL)


def _compared(self: Expressions, node: Node, place: Place) -> tuple[str, str]:
    args = [self.translate(arg, place) for arg in node.nodes("args")]
    # The operator has to be on the list; what stands here uses its order.
    self.apply(node.integer("opfuncid"), args, type_oids.BOOL, node)
    left, right = (ordered(arg) for arg in args)
    return left, right


def _null_if(self: Expressions, node: Node, place: Place) -> Expression:
    args = [self.translate(arg, place) for arg in node.nodes("args")]
    equal = self.apply(node.integer("opfuncid"), args, type_oids.BOOL, node)
    first = args[0]
    # By PostgreSQL's operator: DuckDB's NULLIF might compare texts or numbers in another way.
    sql = f"(CASE WHEN {equal.sql} THEN NULL ELSE {first.sql} END)"
    return Expression(sql, first.form, first.scale)


def _boolean(self: Expressions, node: Node, place: Place) -> Expression:
    args = [self.translate(arg, place).sql for arg in node.nodes("args")]
    operator = node.word("boolop")
    if operator == "not":
        return value(f"(NOT {args[0]})", type_oids.BOOL)
    if operator not in ("and", "or"):
        raise QueryTreeError(f"an unknown operator {operator}")
    return value("(" + f" {operator.upper()} ".join(args) + ")", type_oids.BOOL)


def _null_test(self: Expressions, node: Node, place: Place) -> Expression:
    # A row IS NULL if all of its fields are; DuckDB asks for the row itself.
    if node.flag("argisrow"):
        raise NotProvenEqualError("IS NULL of a row")
    operator = "IS NOT NULL" if node.integer("nulltesttype") else "IS NULL"
    return value(f"({self.translate(node.node('arg'), place).kept} {operator})", type_oids.BOOL)


def _boolean_test(self: Expressions, node: Node, place: Place) -> Expression:
    operator = _BOOLEAN_TESTS[node.integer("booltesttype")]
    return value(f"({self.translate(node.node('arg'), place).sql} {operator})", type_oids.BOOL)


def _relabel(self: Expressions, node: Node, place: Place) -> Expression:
    argument = self.translate(node.node("arg"), place)
    oid = node.integer("resulttype")
    source = self.builtins.type_name(argument.form.type_oid)
    names = f"from {source} to {self.builtins.type_name(oid)}"
    return relabelled(argument, oid, node.integer("resulttypmod"), names)


def _via_text(self: Expressions, node: Node, place: Place) -> Expression:
    argument = self.translate(node.node("arg"), place)
    name = self.builtins.type_name(argument.form.type_oid)
    session = self.scope.statement.session
    return via_text(argument, node.integer("resulttype"), name, session)


def _collate(self: Expressions, node: Node, place: Place) -> Expression:
    # DuckDB would sort by bytes wherever the order of this expression counts.
    if node.integer("collOid") not in self.builtins.c_collations:
        raise NotProvenEqualError("a collation other than C")
    return self.translate(node.node("arg"), place)


def _case(self: Expressions, node: Node, place: Place) -> Expression:
    tested = node.optional("arg")
    if tested is not None:
        # Each WHEN has a node that stands for the tested value.
        place = replace(place, case_value=self.translate(tested, place))
    whens = node.nodes("args")
    conditions = [self.translate(when.node("expr"), place).sql for when in whens]
    results = [self.translate(when.node("result"), place) for when in whens]
    default = node.optional("defresult")
    if default is None:
        results.append(null(node.integer("casetype")))
    else:
        results.append(self.translate(default, place))
    form, branches = unified(results)

    def chosen(parts: Sequence[str]) -> str:
        cases = " ".join(
            f"WHEN {condition} THEN {part}"
            for condition, part in zip(conditions, parts[:-1], strict=True)
        )
        return f"(CASE {cases} ELSE {parts[-1]} END)"

    scale = chosen([branch.scale_sql for branch in branches]) if form.varies else None
    return Expression(chosen([branch.sql for branch in branches]), form, scale)


def _case_value(self: Expressions, node: Node, place: Place) -> Expression:
    if place.case_value is None:
        raise NotProvenEqualError("CaseTestExpr")
    return place.case_value


def _coalesce(self: Expressions, node: Node, place: Place) -> Expression:
    args = [self.translate(arg, place) for arg in node.nodes("args")]
    form, branches = unified(args)
    sql = f"coalesce({', '.join(branch.sql for branch in branches)})"
    if not form.varies:
        return Expression(sql, form)
    cases = " ".join(
        f"WHEN {branch.sql} IS NOT NULL THEN {branch.scale_sql}" for branch in branches
    )
    return Expression(sql, form, f"(CASE {cases} END)")


def _min_max(self: Expressions, node: Node, place: Place) -> Expression:
    """GREATEST and LEAST ignore nulls in both."""
    args = [self.translate(arg, place) for arg in node.nodes("args")]
    form, branches = unified(args)
    for branch in branches:
        ordered(branch)
    # Blanks at the end don't count in its comparison, and equal values print differently.
    if form.type_oid == BPCHAR_OID:
        raise NotProvenEqualError("GREATEST or LEAST of character")
    function = "least" if node.integer("op") else "greatest"
    sql = f"{function}({', '.join(branch.sql for branch in branches)})"
    if not form.varies:
        return Expression(sql, form)
    # Of equal arguments, the first.
    cases = " ".join(f"WHEN {branch.sql} = {sql} THEN {branch.scale_sql}" for branch in branches)
    return Expression(sql, form, f"(CASE {cases} END)")


def _row_comparison(self: Expressions, node: Node, place: Place) -> Expression:
    """`(a, b) < (c, d)`: the first columns that differ decide, or are null."""
    operators = {1: "<", 2: "<=", 4: ">=", 5: ">"}
    operator = operators.get(_comparison_number(node))
    lefts = [self.translate(item, place) for item in node.nodes("largs")]
    rights = [self.translate(item, place) for item in node.nodes("rargs")]
    if operator is None or any(
        left.form.type_oid != right.form.type_oid for left, right in zip(lefts, rights, strict=True)
    ):
        raise NotProvenEqualError("a comparison of rows of these types")
    collations = [oid for oid in node.integers("inputcollids") if oid]
    if not set(collations) <= self.builtins.c_collations:
        raise NotProvenEqualError("a comparison of rows whose collation is not C")
    pairs = [(ordered(one), ordered(other)) for one, other in zip(lefts, rights, strict=True)]
    last = pairs.pop()
    sql = f"({last[0]} {operator} {last[1]})"
    for left, right in reversed(pairs):
        # Columns before the last decide only if they differ, so without "or equal".
        strict = operator[0]
        decided = f"WHEN {left} <> {right} THEN {left} {strict} {right}"
        sql = f"(CASE {decided} WHEN {left} = {right} THEN {sql} END)"
    return value(sql, type_oids.BOOL)


def _comparison_number(node: Node) -> int:
    """PostgreSQL 18 has renamed the field; the numbers of the comparisons are the same."""
    return node.integer("cmptype" if node.get("cmptype") is not None else "rctype")


def _any_of_array(self: Expressions, node: Node, place: Place) -> Expression:
    """`= ANY (ARRAY[…])`, which IN is, and `<> ALL`; the operator is applied to each element."""
    left_node, right_node = node.nodes("args")
    left = self.translate(left_node, place)
    joined = " OR " if node.flag("useOr") else " AND "
    cast_elements = right_node.kind == "ARRAYCOERCEEXPR"
    written = right_node.node("arg") if cast_elements else right_node
    if written.kind == "ARRAYEXPR" and not written.flag("multidims"):
        elements = [self.translate(item, place) for item in written.nodes("elements")]
        if cast_elements:
            places = [replace(place, case_value=element) for element in elements]
            cast = right_node.node("elemexpr")
            elements = [self.translate(cast, inner) for inner in places]
        return _each_element(self, node, left, elements, joined)
    array = self.translate(right_node, place)
    return _element_of(self, node, left, array)


def _element_of(self: Expressions, node: Node, left: Expression, array: Expression) -> Expression:
    """For arrays that are not written out, DuckDB's own ANY and ALL."""
    operator = self.builtins.operators.get(node.integer("opno"), "")
    element_oid = type_oids.ELEMENT_OIDS.get(array.form.type_oid)
    if element_oid is None or operator not in ("=", "<>"):
        raise NotProvenEqualError("ANY or ALL of this array")
    element = Expression("x", form_of(element_oid))
    self.apply(node.integer("opfuncid"), [left, element], type_oids.BOOL, node)
    if element.form.duckdb != left.form.duckdb or left.form.type_oid == BPCHAR_OID:
        raise NotProvenEqualError("ANY or ALL of an array of another type")
    word = "ANY" if node.flag("useOr") else "ALL"
    # DuckDB takes a null array for an empty one.
    sql = f"{left.sql} {operator} {word} ({array.sql})"
    return value(f"(CASE WHEN {array.sql} IS NOT NULL THEN {sql} END)", type_oids.BOOL)


def _each_element(
    self: Expressions, node: Node, left: Expression, elements: list[Expression], joined: str
) -> Expression:
    tests = [
        self.apply(node.integer("opfuncid"), [left, element], type_oids.BOOL, node)
        for element in elements
    ]
    # ANY of nothing is false, ALL of nothing is true, also for a null on the left.
    if not tests:
        return value("false" if joined == " OR " else "true", type_oids.BOOL)
    operator = self.builtins.function(node.integer("opfuncid"))
    # IN is faster than a chain of OR, but it compares by DuckDB's own equality.
    plain = left.form.type_oid != BPCHAR_OID and "(" in operator
    equal = operator.partition("(")[0].endswith("eq") and joined == " OR "
    unequal = operator.partition("(")[0].endswith("ne") and joined == " AND "
    if plain and (equal or unequal):
        words = "IN" if equal else "NOT IN"
        inside = ", ".join(element.sql for element in elements)
        return value(f"({left.kept} {words} ({inside}))", type_oids.BOOL)
    return value("(" + joined.join(test.sql for test in tests) + ")", type_oids.BOOL)


def _grouping(self: Expressions, node: Node, place: Place) -> Expression:
    if node.integer("agglevelsup"):
        raise NotProvenEqualError("GROUPING of an outer query")
    args = [self.translate(arg).sql for arg in node.nodes("args")]
    return value(f"CAST(grouping({', '.join(args)}) AS INTEGER)", type_oids.INT4)


Handle = Callable[[Expressions, Node, Place], Expression]
_HANDLERS: Final[dict[str, Handle]] = {
    "VAR": _variable,
    "CONST": _constant,
    "PARAM": _parameter,
    "OPEXPR": _operator,
    "FUNCEXPR": _function,
    "SQLVALUEFUNCTION": _sql_value,
    "DISTINCTEXPR": _distinct,
    "NULLIFEXPR": _null_if,
    "BOOLEXPR": _boolean,
    "NULLTEST": _null_test,
    "BOOLEANTEST": _boolean_test,
    "RELABELTYPE": _relabel,
    "COERCEVIAIO": _via_text,
    "COLLATEEXPR": _collate,
    "CASEEXPR": _case,
    "CASETESTEXPR": _case_value,
    "COALESCEEXPR": _coalesce,
    "MINMAXEXPR": _min_max,
    "ROWCOMPAREEXPR": _row_comparison,
    "SCALARARRAYOPEXPR": _any_of_array,
    "GROUPINGFUNC": _grouping,
}
