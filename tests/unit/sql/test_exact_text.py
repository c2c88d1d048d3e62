"""A statement on other tables loses its schemas, and only its tables may differ in its tree."""

from __future__ import annotations

import pytest

from headrace.sql.builtins import Builtins
from headrace.sql.exact_text import Replaced, calls, is_same, may_fail_in_planning, without_schemas
from headrace.sql.query_tree import parse_tree

TABLES = {("public", "orders"), ("Shop", "Big Ones")}
BUILTINS = Builtins.of(
    [
        ("function", 481, "int8(int4)"),
        ("function", 2053, "fails(int4)"),
        ("function", 1299, "now()"),
    ]
)
NUMBER = "{CONST :consttype 23 :constvalue 4 [ 1 0 0 0 0 0 0 0 ]}"
COLUMN = "{VAR :varno 1 :vartype 23}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM public.orders", "SELECT * FROM orders"),
        ("TABLE lake . PUBLIC /* x */ . orders", "TABLE orders"),
        ('SELECT "Shop"."Big Ones".id, o.id', 'SELECT "Big Ones".id, o.id'),
        ('SELECT shop."Big Ones".id', 'SELECT shop."Big Ones".id'),
        ("SELECT 'public.orders', $$public.orders$$", "SELECT 'public.orders', $$public.orders$$"),
        ("SELECT public.others, 1.5, orders.id", "SELECT public.others, 1.5, orders.id"),
        ("", ""),
    ],
)
def test_only_the_schemas_of_tables_are_left_out(text: str, expected: str) -> None:
    assert without_schemas(text.encode(), TABLES) == expected.encode()


def tree(relid: int, more: str = "") -> str:
    return f"({{QUERY :rtable ({{RTE :relid {relid} :inh true}}) :targetList ({more})}})"


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        (tree(10), tree(20), True),
        (tree(10), tree(10), False),
        (tree(10), tree(30), False),
        (tree(11), tree(11), True),
        (tree(10, COLUMN), tree(20, COLUMN), True),
        (tree(10, COLUMN), tree(20, NUMBER), False),
        (tree(10, COLUMN), tree(20), False),
        (tree(10, "{VAR :vartype 100}"), tree(20, "{VAR :vartype 200}"), True),
        (tree(10, "{VAR :vartype 100}"), tree(20, "{VAR :vartype 201}"), False),
        (tree(10, "{VAR :varno 1}"), tree(20, "{VAR :varno true}"), False),
        (tree(10, "{VAR :varno 10}"), tree(20, "{VAR :varno 20}"), False),
        (tree(10, "{F :funcformat 2}"), tree(20, "{F :funcformat 1}"), True),
    ],
)
def test_trees_are_the_same_with_each_table_replaced(before: str, after: str, same: bool) -> None:
    replaced = Replaced({10: 20}, {100: 200})
    assert is_same(list(parse_tree(before)), list(parse_tree(after)), replaced) is same


def function(number: int, *arguments: str) -> str:
    return f"{{FUNCEXPR :funcid {number} :args ({' '.join(arguments)})}}"


@pytest.mark.parametrize(
    ("expression", "fails"),
    [
        (NUMBER, False),
        (COLUMN, False),
        (function(2053, NUMBER), True),
        (function(2053, COLUMN), False),
        (function(2053, "{PARAM :paramkind 0}"), True),
        (function(481, NUMBER), False),
        (function(2053, function(481, NUMBER)), True),
        (function(481, function(2053, NUMBER)), True),
        (function(1299), False),
        (function(2053, function(1299)), False),
        (f"{{OPEXPR :args ({NUMBER} {NUMBER})}}", True),
        (f"{{OPEXPR :args ({COLUMN} {function(2053, NUMBER)})}}", True),
        (f"{{AGGREF :args ({NUMBER})}}", False),
        (f"{{SUBLINK :subselect {{QUERY :targetList ({function(2053, NUMBER)})}}}}", True),
    ],
)
def test_expressions_of_constants_are_noticed(expression: str, fails: bool) -> None:
    (query,) = parse_tree(tree(10, expression))
    assert may_fail_in_planning(query, BUILTINS) is fails


def test_a_call_is_found_at_any_depth() -> None:
    (query,) = parse_tree(tree(10, function(481, function(2053, NUMBER))))
    assert calls(query, {2053})
    assert not calls(query, {1299})
