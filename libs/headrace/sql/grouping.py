"""GROUP BY, aggregates and window functions of a query. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Final

from headrace.sql.aggregates import AGGREGATES, AggregateCall
from headrace.sql.comparisons import ordered, require_groups, sort_key
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.expressions import ROWS, Expressions, Place
from headrace.sql.forms import Expression
from headrace.sql.query_tree import Node, QueryTreeError
from headrace.sql.scope import QueryScope
from headrace.sql.windows import WINDOW_FUNCTIONS, WindowCall, frame

# Kinds of a GroupingSet.
_EMPTY, _SIMPLE, _ROLLUP, _CUBE, _SETS = range(5)
_SETS_MAX: Final = 4096
# Aggregates are part of the values of a grouped query; arguments of aggregates are rows.
_ORDINARY: Final = "n"


def aggregates_rows(query: Node) -> bool:
    """Whether the query has one row for each group."""
    return bool(
        query.flag("hasAggs")
        or query.get("groupClause")
        or query.get("groupingSets")
        or query.get("havingQual")
    )


@contextmanager
def narrowed(scope: QueryScope) -> Iterator[None]:
    """Expressions that are computed for all rows before the statement gives its first one: if a
    number doesn't fit into 64 bits, nothing was sent yet, and the statement can run again.
    """
    statement = scope.statement
    before = statement.narrow
    first = statement.may_narrow and scope.parent is None and aggregates_rows(scope.query)
    statement.narrow = before or first
    try:
        yield
    finally:
        statement.narrow = before


def group_nodes(scope: QueryScope) -> list[Node]:
    """The expressions that the query groups by."""
    clauses = scope.query.nodes("groupClause")
    return [scope.target_of(clause.integer("tleSortGroupRef")).node("expr") for clause in clauses]


def group_by(expressions: Expressions) -> str:
    """The clause, empty if there is none."""
    scope = expressions.scope
    query = scope.query
    if query.flag("groupDistinct"):
        raise NotProvenEqualError("GROUP BY DISTINCT")
    keys: dict[int, str] = {}
    constant = False
    for clause in query.nodes("groupClause"):
        reference = clause.integer("tleSortGroupRef")
        key = expressions.translate(scope.target_of(reference).node("expr"))
        require_groups(key)
        constant = constant or key.is_null or key.constant is not None
        keys[reference] = key.sql
    sets = query.nodes("groupingSets")
    if sets and constant:
        # It is null in the sets without it, and no constant any more.
        raise NotProvenEqualError("GROUPING SETS of a constant")
    if not sets:
        return f" GROUP BY {', '.join(keys.values())}" if keys else ""
    listed = [
        "(" + ", ".join(dict.fromkeys(keys[reference] for reference in references)) + ")"
        for references in _expanded(sets)
    ]
    return f" GROUP BY GROUPING SETS ({', '.join(listed)})"


def _expanded(sets: list[Node]) -> list[tuple[int, ...]]:
    """The product of the grouping sets that GROUP BY lists."""
    expanded = [
        tuple(reference for part in combination for reference in part)
        for combination in product(*(_expand(item) for item in sets))
    ]
    # PostgreSQL has the same limit; a few CUBEs multiply to millions.
    if len(expanded) > _SETS_MAX:
        raise NotProvenEqualError(f"more than {_SETS_MAX} grouping sets")
    return expanded


def _expand(item: Node) -> list[tuple[int, ...]]:
    kind = item.integer("kind")
    if kind == _EMPTY:
        return [()]
    if kind == _SIMPLE:
        return [tuple(item.integers("content"))]
    parts = [_expand(child) for child in item.nodes("content")]
    if kind == _SETS:
        return [references for part in parts for references in part]
    if kind not in (_ROLLUP, _CUBE) or not all(len(part) == 1 for part in parts):
        raise QueryTreeError("an impossible grouping set")
    columns = [part[0] for part in parts]
    if kind == _ROLLUP:
        chosen = [columns[:length] for length in range(len(columns), -1, -1)]
    else:
        bits = range(2 ** len(columns))
        chosen = [
            [column for place, column in enumerate(columns) if bit >> place & 1] for bit in bits
        ]
    return [tuple(reference for column in some for reference in column) for some in chosen]


def aggregate(self: Expressions, node: Node, place: Place) -> Expression:
    """An aggregate of this query."""
    if node.integer("agglevelsup") or not place.aggregates:
        raise NotProvenEqualError("an aggregate of an outer query")
    signature = self.builtins.function(node.integer("aggfnoid"))
    if node.word("aggkind") != _ORDINARY or node.flag("aggvariadic"):
        raise NotProvenEqualError(f"aggregate {signature}")
    targets = node.nodes("args")
    with narrowed(self.scope):
        args = [
            self.translate(target.node("expr")) for target in targets if not target.flag("resjunk")
        ]
    suffix = _filter(self, node, ROWS)
    distinct = bool(node.get("aggdistinct"))
    order = _order(self, node, targets)
    call = AggregateCall(
        signature,
        tuple(args),
        node.integer("aggtype"),
        distinct,
        order,
        suffix,
        self.scope.statement.wide_sums,
    )
    return _apply(call)


def _order(self: Expressions, node: Node, targets: list[Node]) -> tuple[str, ...]:
    """ORDER BY within an aggregate; DISTINCT sorts too, first by what ORDER BY names."""
    clauses = node.nodes("aggorder")
    if node.get("aggdistinct"):
        clauses = node.nodes("aggdistinct")
    by_reference = {target.integer("ressortgroupref"): target for target in targets}
    keys = []
    for clause in clauses:
        target = by_reference[clause.integer("tleSortGroupRef")]
        operand = self.translate(target.node("expr"))
        # DuckDB would take a number for a column's place.
        if operand.constant is None:
            keys.append(sort_term(self, clause, operand))
    return tuple(keys)


def _filter(self: Expressions, node: Node, place: Place) -> str:
    condition = self.condition(node.optional("aggfilter"), place)
    return "" if condition is None else f" FILTER (WHERE {condition})"


def _apply(call: AggregateCall) -> Expression:
    handler = AGGREGATES.get(call.signature)
    if handler is None:
        raise NotProvenEqualError(f"aggregate {call.signature}")
    if call.distinct:
        for arg in call.args:
            require_groups(arg)
    return handler(call)


def window(self: Expressions, node: Node, place: Place) -> Expression:
    """A window function, or an aggregate over a window."""
    if not place.windows:
        raise NotProvenEqualError("a window function in this place")
    # Only the planner adds these; in an analyzed tree, one would mean something unknown.
    if node.get("runCondition"):
        raise NotProvenEqualError("a run condition")
    # A window function has no window functions in its arguments.
    inner = Place(grouped=place.grouped, aggregates=place.aggregates)
    signature = self.builtins.function(node.integer("winfnoid"))
    args = [self.translate(arg, inner) for arg in node.nodes("args")]
    suffix = f"{_filter(self, node, inner)} OVER ({_definition(self, node, inner)})"
    result_oid = node.integer("wintype")
    if node.flag("winagg"):
        return _apply(
            AggregateCall(
                signature,
                tuple(args),
                result_oid,
                False,
                (),
                suffix,
                self.scope.statement.wide_sums,
            )
        )
    handler = WINDOW_FUNCTIONS.get(signature)
    if handler is None:
        raise NotProvenEqualError(f"window function {signature}")
    return handler(WindowCall(signature, tuple(args), result_oid, suffix))


def _definition(self: Expressions, node: Node, inner: Place) -> str:
    """What OVER contains."""
    reference = node.integer("winref")
    clauses = [
        clause
        for clause in self.scope.query.nodes("windowClause")
        if clause.integer("winref") == reference
    ]
    if len(clauses) != 1:
        raise QueryTreeError("a window function has no window")
    clause = clauses[0]

    def target(sort: Node) -> Expression:
        found = self.scope.target_of(sort.integer("tleSortGroupRef"))
        return self.translate(found.node("expr"), inner)

    # By the form that compares as in PostgreSQL: 0 and -0 belong to one partition.
    parts = [ordered(target(sort)) for sort in clause.nodes("partitionClause")]
    keys = [sort_term(self, sort, target(sort)) for sort in clause.nodes("orderClause")]
    offsets = [
        None if offset is None else self.translate(offset)
        for offset in (clause.optional("startOffset"), clause.optional("endOffset"))
    ]
    partition = f"PARTITION BY {', '.join(parts)}" if parts else ""
    order = f" ORDER BY {', '.join(keys)}" if keys else ""
    return partition + order + frame(clause.integer("frameOptions"), offsets[0], offsets[1])


def sort_term(self: Expressions, clause: Node, expression: Expression) -> str:
    operator = self.builtins.operators.get(clause.integer("sortop"), "")
    return sort_key(expression, operator, nulls_first=clause.flag("nulls_first"))
