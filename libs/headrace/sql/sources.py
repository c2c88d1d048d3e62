"""FROM: tables, subqueries, WITH queries, VALUES and joins. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.sql.errors import NotProvenEqualError
from headrace.sql.expressions import ROWS, Expressions
from headrace.sql.forms import Expression, Form, unified
from headrace.sql.query_tree import Node, QueryTreeError
from headrace.sql.scope import (
    ComputedEntry,
    DerivedEntry,
    QueryScope,
    RelationEntry,
)

# Kinds of a RangeTblEntry.
_RELATION, _SUBQUERY, _JOIN, _FUNCTION, _TABLE_FUNCTION, _VALUES, _WITH = range(7)
_GROUP: Final = 9
_NAMES: Final = {_FUNCTION: "a function in FROM", _TABLE_FUNCTION: "XMLTABLE or JSON_TABLE"}
_JOINS: Final = {0: "INNER JOIN", 1: "LEFT JOIN", 2: "FULL JOIN", 3: "RIGHT JOIN"}
_VALUES_MAX: Final = 10_000


class Sources:
    """The range table of one query, as the items of FROM."""

    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions
        self._scope = expressions.scope
        self._table = self._scope.query.nodes("rtable")
        # The SQL of each item, by its number in the range table.
        self._items: dict[int, str] = {}

    def clause(self) -> tuple[str, list[str]]:
        """FROM, empty if there is none, and the conditions of WHERE."""
        joins = self._scope.query.node("jointree")
        self._declare_computed()
        items = [self._item(item) for item in joins.nodes("fromlist")]
        condition = self._expressions.condition(joins.optional("quals"))
        clause = f" FROM {', '.join(items)}" if items else ""
        return clause, [] if condition is None else [condition]

    def _declare_computed(self) -> None:
        """Joins and groups have no SQL; their columns are expressions over the other entries."""
        for number, entry in enumerate(self._table, 1):
            kind = entry.integer("rtekind")
            if kind == _JOIN:
                nodes = entry.nodes("joinaliasvars")
            elif kind == _GROUP:
                nodes = entry.nodes("groupexprs")
                self._scope.group_entries.add(number)
            else:
                continue
            self._scope.entries[number] = ComputedEntry(nodes, self._expressions.translate)

    def _item(self, node: Node) -> str:
        if node.kind == "RANGETBLREF":
            return self._declared(node.integer("rtindex"))
        if node.kind != "JOINEXPR":
            raise NotProvenEqualError(node.kind)
        words = _JOINS.get(node.integer("jointype"))
        if words is None:
            raise QueryTreeError("an unknown kind of join")
        left = self._item(node.node("larg"))
        right = self._item(node.node("rarg"))
        condition = self._expressions.condition(node.optional("quals")) or "true"
        return f"({left} {words} {right} ON {condition})"

    def _declared(self, number: int) -> str:
        entry = self._table[number - 1]
        if entry.get("securityQuals") or entry.get("tablesample"):
            raise NotProvenEqualError("row security or TABLESAMPLE")
        kind = entry.integer("rtekind")
        if kind == _RELATION:
            return self._relation(number, entry)
        if kind == _SUBQUERY:
            return self._subquery(number, entry)
        if kind == _VALUES:
            return self._values(number, entry)
        if kind == _WITH:
            return self._with(number, entry)
        raise NotProvenEqualError(_NAMES.get(kind, "this kind of range table entry"))

    def _relation(self, number: int, entry: Node) -> str:
        relid = entry.integer("relid")
        if not entry.flag("inh"):
            raise NotProvenEqualError("ONLY")
        relation = self._scope.statement.relations.get(relid)
        if relation is None:
            raise NotProvenEqualError("a statement that also reads tables outside the lake")
        self._scope.statement.relids.add(relid)
        alias = self._scope.statement.alias()
        self._scope.entries[number] = RelationEntry(alias, relation)
        return f"{relation.copy} AS {alias}"

    def _subquery(self, number: int, entry: Node) -> str:
        if entry.flag("security_barrier"):
            # DuckDB may try other conditions on rows that the view leaves out.
            raise NotProvenEqualError("a view with security_barrier")
        lateral = "LATERAL " if entry.flag("lateral") else ""
        # A subquery sees this query's entries only if it is LATERAL; others have no such variables.
        select = self._expressions.queries.query(entry.node("subquery"), self._scope)
        return f"{lateral}({select.sql}) AS {self._derived(number, select.forms)}"

    def _derived(self, number: int, forms: Sequence[Form]) -> str:
        alias = self._scope.statement.alias()
        self._scope.entries[number] = DerivedEntry(alias, forms)
        return alias

    def _with(self, number: int, entry: Node) -> str:
        scope: QueryScope = self._scope.up(entry.integer("ctelevelsup"))
        table = scope.common_tables.get(entry.word("ctename"))
        if table is None:
            raise NotProvenEqualError("this reference to a WITH query")
        return f"{table.name} AS {self._derived(number, table.forms)}"

    def _values(self, number: int, entry: Node) -> str:
        rows = entry.items("values_lists")
        if len(rows) > _VALUES_MAX:
            raise NotProvenEqualError(f"more than {_VALUES_MAX} rows of VALUES")
        columns = list(zip(*(self._row(row) for row in rows), strict=True))
        unified_columns = [unified(column) for column in columns]
        forms = [form for form, _ in unified_columns]
        texts = [
            "(" + ", ".join(_cells(forms, [cells[place] for _, cells in unified_columns])) + ")"
            for place in range(len(rows))
        ]
        alias = self._derived(number, forms)
        names = ", ".join(column_names(forms))
        return f"(VALUES {', '.join(texts)}) AS {alias}({names})"

    def _row(self, row: object) -> list[Expression]:
        if not isinstance(row, list):
            raise QueryTreeError("VALUES has a row that is not a list")
        return [self._expressions.translate(cell, ROWS) for cell in row]


def _cells(forms: Sequence[Form], row: Sequence[Expression]) -> list[str]:
    cells = []
    for form, cell in zip(forms, row, strict=True):
        cells.append(f"CAST({cell.sql} AS {form.duckdb})")
        if form.varies:
            cells.append(cell.scale_sql)
    return cells


def column_names(forms: Sequence[Form]) -> list[str]:
    """The names of the columns of a derived table."""
    names = []
    for number, form in enumerate(forms, 1):
        names.append(f"c{number}")
        if form.varies:
            names.append(f"s{number}")
    return names


def output(forms: Sequence[Form], row: Sequence[Expression]) -> str:
    """The select list of a query whose columns others refer to."""
    parts = []
    for number, (form, cell) in enumerate(zip(forms, row, strict=True), 1):
        parts.append(f"{cell.sql} AS c{number}")
        if form.varies:
            parts.append(f"{cell.scale_sql} AS s{number}")
    # A query without columns still has rows.
    return ", ".join(parts) or "1 AS c1"
