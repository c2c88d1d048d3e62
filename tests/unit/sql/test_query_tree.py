"""The reader of PostgreSQL's query trees reads what PostgreSQL writes, and refuses everything else."""

from __future__ import annotations

import pytest

from headrace.sql.query_tree import Node, QueryTreeError, parse_tree

QUERY = (
    "({QUERY :commandType 1 :utilityStmt <> :hasAggs false :cteList ({COMMONTABLEEXPR :ctename a\\ b\\(c}) "
    ':names ("id" "x\\ y") :set (b 8 9) :none (b) :oids (o 23 25) :numbers (i -1 2) :empty "" :location 7 '
    ":constvalue 5 [ 20 0 0 0 -61 ] :byvalue 4 [ 3 0 0 0 0 0 0 0 ]})"
)


def test_every_kind_of_value_is_read() -> None:
    (query,) = parse_tree(QUERY)
    assert query.kind == "QUERY"
    assert query.integer("commandType") == 1
    assert query.get("utilityStmt") is None
    assert query.flag("hasAggs") is False
    assert query.nodes("cteList")[0].word("ctename") == "a b(c"
    assert query.items("names") == ["id", "x y"]
    assert query.members("set") == {8, 9}
    assert query.members("none") == frozenset()
    assert query.integers("oids") == [23, 25]
    assert query.integers("numbers") == [-1, 2]
    assert query.word("empty") == ""
    assert query.get("constvalue") == bytes([20, 0, 0, 0, 195])
    assert query.get("byvalue") == bytes([3, 0, 0, 0, 0, 0, 0, 0])


def test_places_in_the_text_are_left_out_so_that_equal_expressions_are_equal() -> None:
    (one,) = parse_tree("({QUERY :quals {VAR :varno 1 :location 3}})")
    (other,) = parse_tree("({QUERY :quals {VAR :varno 1 :location 99}})")
    assert one.node("quals") == other.node("quals") == Node("VAR", {"varno": 1})


def test_a_line_end_is_a_space_also_within_a_name() -> None:
    (query,) = parse_tree("({QUERY :commandType\n1 :ctename a\\\nb})")
    assert (query.integer("commandType"), query.word("ctename")) == (1, "a b")


def test_white_space_and_digits_beyond_ascii_are_part_of_a_name() -> None:
    # As PostgreSQL 18 wrote these names.
    (query,) = parse_tree(
        '({QUERY :colnames ("a\u00a0b" "x\x0by" "p\x0cq" "r\rs") :resname \u0663 :n \u3000})'
    )
    assert query.items("colnames") == ["a\u00a0b", "x\x0by", "p\x0cq", "r\rs"]
    assert (query.word("resname"), query.word("n")) == ("\u0663", "\u3000")


def test_a_name_can_look_like_another_value() -> None:
    (query,) = parse_tree("({QUERY :ctename true :other \\<>})")
    assert (query.word("ctename"), query.word("other")) == ("true", "<>")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "({QUERY :a 1}",
        "({QUERY :a 1}) x",
        "({QUERY :a})",
        "({QUERY :a 1 2})",
        "({QUERY :a 1 :a 2})",
        "({QUERY a 1})",
        "({})",
        "{QUERY :a 1}",
        "({VAR :a 1})",
        "({QUERY :a (b x)})",
        "({QUERY :a 4 [ 1 2 ]})",
        "({QUERY :a 4 [ 1 2 3 4 })",
        "({QUERY :a )})",
        "(" * 500 + ")" * 500,
    ],
)
def test_what_is_not_a_tree_is_refused(text: str) -> None:
    with pytest.raises(QueryTreeError):
        parse_tree(text)


def test_a_field_of_another_type_is_refused() -> None:
    (query,) = parse_tree("({QUERY :number 1 :word x :truth true})")
    for read in (query.flag, query.nodes, query.node, query.members):
        with pytest.raises(QueryTreeError):
            read("number")
    for name in ("word", "truth", "absent"):
        with pytest.raises(QueryTreeError):
            query.integer(name)
