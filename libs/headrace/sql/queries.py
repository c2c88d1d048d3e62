"""Whole queries: SELECT with all its clauses, WITH, and set operations. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from headrace.contract import type_oids
from headrace.sql.comparisons import ordered, require_groups
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.expressions import ROWS, Expressions, Handle, Place
from headrace.sql.forms import Expression, Form
from headrace.sql.grouping import (
    aggregate,
    aggregates_rows,
    group_by,
    group_nodes,
    narrowed,
    sort_term,
    window,
)
from headrace.sql.numeric_functions import numeric_text
from headrace.sql.query_tree import Node, QueryTreeError
from headrace.sql.scope import CommonTable, DerivedEntry, QueryScope, Select, StatementScope
from headrace.sql.set_operations import SetOperations
from headrace.sql.sources import Sources, column_names, output
from headrace.sql.storage_types import exported
from headrace.sql.sublinks import sublink

_SPECIAL: Final[dict[str, Handle]] = {
    "SUBLINK": sublink,
    "AGGREF": aggregate,
    "WINDOWFUNC": window,
}
_REFUSED_FLAGS: Final = {
    "hasTargetSRFs": "a set-returning function in the select list",
    "hasModifyingCTE": "INSERT, UPDATE or DELETE in WITH",
    "hasForUpdate": "FOR UPDATE",
    "hasRowSecurity": "row security",
}
_SELECT: Final = 1
_UNION: Final = 1
_WITH_TIES: Final = 1


class QueryTranslator:
    """Translates the queries of one statement."""

    def __init__(self, statement: StatementScope) -> None:
        self._statement = statement

    def special(self, kind: str) -> Handle | None:
        return _SPECIAL.get(kind)

    def query(self, node: Node, parent: QueryScope | None, *, whole: bool = False) -> Select:
        """A query; `whole` if its rows go to the client, so that numerics are texts where their
        display scales vary.
        """
        _check(node)
        scope = QueryScope(self._statement, node, parent)
        common = self._common_tables(scope)
        if node.get("setOperations") is not None:
            select = self._set_operation(scope, whole=whole)
        else:
            select = self._select(scope, whole=whole)
        return replace(select, sql=common + select.sql)

    def _common_tables(self, scope: QueryScope) -> str:
        """WITH, empty if there is none."""
        definitions = []
        recursive = ""
        for node in scope.query.nodes("cteList"):
            name = node.word("ctename")
            if name in scope.common_tables or node.get("search_clause") or node.get("cycle_clause"):
                raise NotProvenEqualError("this WITH query")
            alias = self._statement.alias()
            if node.flag("cterecursive"):
                recursive = "RECURSIVE "
                select = self._recursive(scope, node, alias)
            else:
                select = self.query(node.node("ctequery"), scope)
            scope.common_tables[name] = CommonTable(alias, select.forms)
            # PostgreSQL has rows without columns, DuckDB hasn't.
            names = ", ".join(column_names(select.forms)) or "c1"
            definitions.append(f"{alias}({names}) AS ({select.sql})")
        return f"WITH {recursive}{', '.join(definitions)} " if definitions else ""

    def _recursive(self, scope: QueryScope, node: Node, alias: str) -> Select:
        """The first term gives the columns, also for the term that refers to them."""
        query = node.node("ctequery")
        _check(query)
        operation = query.optional("setOperations")
        simple = operation is not None and operation.integer("op") == _UNION
        plain = not any(query.get(name) for name in ("cteList", "sortClause", "limitCount"))
        if operation is None or not simple or not plain:
            raise NotProvenEqualError("this recursive WITH query")
        inner = QueryScope(self._statement, query, scope)
        leaves = self._leaves(inner)
        first = leaves.tree(operation.node("larg"))
        # DuckDB takes digits and scale from the first term; PostgreSQL's numbers have neither.
        if any(form.is_decimal for form in first.forms):
            raise NotProvenEqualError("numeric in a recursive WITH query")
        scope.common_tables[node.word("ctename")] = CommonTable(alias, first.forms)
        second = leaves.tree(operation.node("rarg"))
        select = leaves.combined(operation, first, second)
        # DuckDB would convert the second term to the first one's types.
        if select.forms != first.forms:
            raise NotProvenEqualError("a recursive WITH query whose terms have different types")
        return select

    def _leaves(self, scope: QueryScope) -> SetOperations:
        table = scope.query.nodes("rtable")

        def leaf(number: int) -> Select:
            return self.query(table[number - 1].node("subquery"), scope)

        return SetOperations(self._statement, leaf)

    def _set_operation(self, scope: QueryScope, *, whole: bool) -> Select:
        operations = scope.query.node("setOperations")
        select = self._leaves(scope).tree(operations)
        alias = self._statement.alias()
        # The target list refers to the first query.
        first = operations
        while first.kind != "RANGETBLREF":
            first = first.node("larg")
        scope.entries[first.integer("rtindex")] = DerivedEntry(alias, select.forms)
        expressions = Expressions(scope, self)
        targets = self._targets(expressions, ROWS)
        tail = self._order(expressions, ROWS) + self._limits(expressions)
        source = f" FROM ({select.sql}) AS {alias}{tail}"
        return _listed(targets, source, "", whole=whole)

    def _select(self, scope: QueryScope, *, whole: bool) -> Select:
        query = scope.query
        expressions = Expressions(scope, self)
        with narrowed(scope):
            source, conditions = Sources(expressions).clause()
        grouped = aggregates_rows(query)
        if grouped:
            scope.groups = group_nodes(scope)
        place = Place(grouped=grouped, aggregates=grouped, windows=True)
        clause = source + "".join(f" WHERE {condition}" for condition in conditions)
        clause += group_by(expressions)
        having = query.optional("havingQual")
        if having is not None:
            clause += f" HAVING {expressions.translate(having, replace(place, windows=False)).sql}"
        targets = self._targets(expressions, place)
        if query.get("distinctClause") and not query.flag("hasDistinctOn"):
            return self._distinct(expressions, targets, clause, whole=whole)
        distinct = self._distinct_on(expressions, place)
        tail = self._order(expressions, place) + self._limits(expressions)
        return _listed(targets, clause + tail, distinct, whole=whole)

    def _targets(self, expressions: Expressions, place: Place) -> list[Expression]:
        return [
            expressions.translate(target.node("expr"), place)
            for target in expressions.scope.targets()
            if not target.flag("resjunk")
        ]

    def _distinct(
        self, expressions: Expressions, targets: list[Expression], clause: str, *, whole: bool
    ) -> Select:
        """ORDER BY stands around SELECT DISTINCT, because DuckDB sorts only by what is listed."""
        for target in targets:
            require_groups(target)
        inner = _listed(targets, clause, "DISTINCT ", whole=False)
        alias = self._statement.alias()
        entry = DerivedEntry(alias, inner.forms)
        columns = [entry.column(number) for number in range(1, len(inner.forms) + 1)]
        keys = []
        for sort in expressions.scope.query.nodes("sortClause"):
            listed = expressions.scope.target_of(sort.integer("tleSortGroupRef"))
            if listed.flag("resjunk"):
                raise QueryTreeError("SELECT DISTINCT is sorted by what it doesn't list")
            keys.append(sort_term(expressions, sort, columns[listed.integer("resno") - 1]))
        order = f" ORDER BY {', '.join(keys)}" if keys else ""
        tail = f" FROM ({inner.sql}) AS {alias}{order}{self._limits(expressions)}"
        return _listed(columns, tail, "", whole=whole)

    def _distinct_on(self, expressions: Expressions, place: Place) -> str:
        clauses = expressions.scope.query.nodes("distinctClause")
        if not clauses:
            return ""
        keys = []
        for clause in clauses:
            target = expressions.scope.target_of(clause.integer("tleSortGroupRef"))
            key = expressions.translate(target.node("expr"), place)
            if key.form.type_oid in (type_oids.FLOAT4, type_oids.FLOAT8):
                # 0 and -0 are equal and print differently; the first row's is shown.
                raise NotProvenEqualError("DISTINCT ON floats")
            keys.append(ordered(key))
        return f"DISTINCT ON ({', '.join(keys)}) "

    def _order(self, expressions: Expressions, place: Place) -> str:
        keys = []
        for sort in expressions.scope.query.nodes("sortClause"):
            target = expressions.scope.target_of(sort.integer("tleSortGroupRef"))
            key = expressions.translate(target.node("expr"), place)
            # A constant orders nothing, and DuckDB would take a number for a column's place.
            if key.constant is None:
                keys.append(sort_term(expressions, sort, key))
        return f" ORDER BY {', '.join(keys)}" if keys else ""

    def _limits(self, expressions: Expressions) -> str:
        query = expressions.scope.query
        count, offset = query.optional("limitCount"), query.optional("limitOffset")
        if count is not None and query.integer("limitOption") == _WITH_TIES:
            raise NotProvenEqualError("FETCH FIRST WITH TIES")
        clause = ""
        for word, node in (("LIMIT", count), ("OFFSET", offset)):
            if node is not None:
                clause += _limit(word, expressions.translate(node))
        return clause


def _limit(word: str, expression: Expression) -> str:
    # LIMIT NULL is no limit.
    if expression.is_null:
        return ""
    number = expression.constant
    if isinstance(number, int):
        # PostgreSQL raises its own error when it runs the statement.
        if number < 0:
            raise NotProvenEqualError(f"a negative {word}")
        return f" {word} {number}"
    return f" {word} {expression.sql}"


def _check(query: Node) -> None:
    """Refuse what isn't a plain SELECT."""
    if query.kind != "QUERY" or query.integer("commandType") != _SELECT:
        raise NotProvenEqualError("a statement other than SELECT")
    for name, feature in _REFUSED_FLAGS.items():
        if query.flag(name):
            raise NotProvenEqualError(feature)
    # Locks of rows that nobody can write would be without effect.
    if query.get("rowMarks"):
        raise NotProvenEqualError("FOR UPDATE")


def _shown(target: Expression) -> str:
    """A column as it leaves DuckDB."""
    if target.form.varies:
        return numeric_text(target)
    return exported(target.sql, target.form.duckdb)


def _listed(targets: Sequence[Expression], clause: str, word: str, *, whole: bool) -> Select:
    """SELECT with its list; the client gets no column of display scales."""
    forms: tuple[Form, ...] = tuple(target.form for target in targets)
    if not whole:
        return Select(f"SELECT {word}{output(forms, targets)}{clause}", forms)
    shown = [f"{_shown(target)} AS c{number}" for number, target in enumerate(targets, 1)]
    # A list without columns gives rows all the same: the client gets them empty.
    return Select(f"SELECT {word}{', '.join(shown) or '1 AS c1'}{clause}", forms)
