"""The verifier's own forms of PostgreSQL's text: equal values have the same form, and different
values don't.
"""

from __future__ import annotations

import ast
from itertools import combinations
from pathlib import Path

import pytest

from headrace.verify.forms import in_postgres, in_sqlite, meaning, parsed
from headrace.verify.types import SqlType

VERIFY = Path(__file__).parents[3] / "libs/headrace/verify"
# Where the services' conversions are, which the verifier is there to judge.
JUDGED = (
    "headrace.contract.values",
    "headrace.contract.scalars",
    "headrace.contract.arrays",
    "headrace.mirror.value_kinds",
)


def test_the_verifier_shares_no_conversion_with_what_it_judges() -> None:
    for path in VERIFY.glob("*.py"):
        imported = {
            name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom | ast.Import)
            for name in (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [a.name for a in node.names]
            )
        }
        assert not [name for name in imported if name.startswith(JUDGED)], path


@pytest.mark.parametrize(
    "same",
    [
        (
            '{"b": 1, "a": [true, null]}',
            '{"a":[true,null],"b":1}',
            ' {"b":2, "a":[true, null], "b" : 1}',
        ),
        ("1e2", "100", "1E+2"),
        ("1e22", "10000000000000000000000"),
        ("-0", "0"),
        (r'"\u00e4\u0041"', '"äA"'),
    ],
)
def test_documents_that_say_one_thing_are_one(same: tuple[str, ...]) -> None:
    assert len({meaning(text) for text in same}) == 1


def test_documents_that_say_different_things_are_different() -> None:
    texts = [
        "null",
        '"null"',
        "1",
        "1.0",
        "1.00",
        '"1"',
        "[1]",
        '["1"]',
        "{}",
        "[]",
        "true",
        '"true"',
        '""',
        '"a "',
    ]
    texts += [
        "12345678901234567890123",
        '"12345678901234567890123"',
        "12345678901234567890124",
        "1e400",
        "1e-400",
    ]
    texts += [
        "[" * 600 + "]" * 600,
        f'"{"[" * 600}{"]" * 600}"',
        "[" * 600 + "1" + "]" * 600,
        '"[[\\"\\\\"',
    ]
    texts += [
        '{"n":1}',
        r'{"\n":1}',
        '{"a":{"b":1}}',
        '{"a":1,"b":1}',
        r'"\ud800"',
        r'"\ud801"',
        r'"\\ud800"',
    ]
    for one, other in combinations(texts, 2):
        assert meaning(one) != meaning(other), (one, other)


@pytest.mark.parametrize(
    ("kind", "text", "kept"),
    [
        ("boolean", "t", 1),
        ("bigint", "-9223372036854775808", -(2**63)),
        ("real", "0.1", 0.1),
        ("double precision", "NaN", "NaN"),
        ("double precision", "-Infinity", float("-inf")),
        ("double precision", "-0", 0.0),
        ("bytea", r"\x00ff", b"\x00\xff"),
        ("numeric", "1.50", "1.50"),
        ("money", "-$1,234.50", "-1234.50"),
        ("timestamp without time zone", "2025-12-12 12:00:34.5", "2025-12-12T12:00:34.5"),
        ("timestamp with time zone", "2025-12-12 12:00:34+00", "2025-12-12T12:00:34Z"),
        ("timestamp with time zone", "infinity", "infinity"),
        ("timestamp without time zone", "0044-03-15 12:00:00 BC", "0044-03-15 12:00:00 BC"),
        ("timestamp with time zone", "12025-12-12 12:00:34+00", "12025-12-12 12:00:34+00"),
        ("time with time zone", "12:00:34.5+02", "12:00:34.5+02:00"),
        ("time with time zone", "12:00:34-05:30", "12:00:34-05:30"),
        ("character", "ab   ", "ab   "),
    ],
)
def test_sqlite_must_have_what_the_pages_say(kind: str, text: str, kept: object) -> None:
    source, mirror = in_sqlite(SqlType(kind), lists=False)
    assert (source(text), type(source(text))) == (mirror(kept), type(mirror(kept)))


def test_false_and_true_are_numbers_in_sqlite_and_words_in_its_lists() -> None:
    boolean = SqlType("boolean")
    source, mirror = in_sqlite(boolean, lists=False)
    assert (source("t"), source("f")) == (mirror(1), mirror(0))
    source, mirror = in_sqlite(SqlType("boolean[]", boolean), lists=True)
    assert source("{t,f,NULL}") == mirror("[true, false, null]") == (True, False, None)
    assert source("{t}") != mirror("[false]")


def test_lists_hold_numbers_and_dimensions() -> None:
    source, mirror = in_sqlite(SqlType("bigint[]", SqlType("bigint")), lists=True)
    assert source("{{1,2},{3,NULL}}") == mirror("[[1, 2], [3, null]]") == ((1, 2), (3, None))
    texts, _ = in_sqlite(SqlType("bigint[]", SqlType("bigint")), lists=False)
    assert texts("{1}") == "{1}"


def test_deep_documents_are_compared_as_text_without_blanks() -> None:
    deep = "[" * 301 + '"a b\\" c" , 1' + "]" * 301
    assert meaning(deep) == "[" * 301 + '"a b\\" c",1' + "]" * 301
    flat = "[" + ",".join(["[ 1 ]"] * 400) + "]"
    assert meaning(flat) == "[" + ",".join(["[1]"] * 400) + "]", "brackets that close don't add up"
    assert meaning('{"a": "[[[["}') == '{"a":"[[[["}'
    nested = "[" * 300 + " 1.0 " + "]" * 300
    assert meaning(nested) == "[" * 300 + "1.0" + "]" * 300


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_documents_are_compared_by_meaning_down_to_a_depth(opening: str, closing: str) -> None:
    def nested(depth: int, leaf: str) -> str:
        return opening * depth + leaf + closing * depth

    assert meaning(nested(300, "1e2")) == nested(300, "100")
    assert meaning(nested(301, "1e2")) == nested(301, "1e2")
    siblings = ",".join([nested(1, '"x"')] * 400)
    assert meaning(f"[1e2,{siblings}]") == f"[100,{siblings}]"


def test_text_that_is_no_document_equals_no_document() -> None:
    assert meaning("NaN") == "not json: NaN"
    assert meaning("{") == "not json: {"
    assert meaning(7) == 7


def test_large_numbers_keep_their_exponent() -> None:
    assert meaning("1e2001") == "1E+2001"
    assert meaning("1e2000") == "1" + "0" * 2000
    assert meaning("1.50") == "1.50"


def test_array_literals_are_read_as_postgresql_writes_them() -> None:
    assert parsed('{1,NULL,"NULL","a,\\"b\\\\",""}', ",") == ["1", None, "NULL", 'a,"b\\', ""]
    assert parsed("{{1,2},{3,NULL}}", ",") == [["1", "2"], ["3", None]]
    assert parsed("{(1,1),(0,0);(2,2),(1,1)}", ";") == ["(1,1),(0,0)", "(2,2),(1,1)"]
    assert parsed("{}", ",") == []
    source, mirror = in_sqlite(SqlType("text[]", SqlType("text")), lists=True)
    assert source('[0:1]={a,"b c"}') == mirror('["a", "b c"]') == mirror('[0:1]={a,"b c"}')
    assert source("{1,NULL}") != source('{1,"NULL"}')
    assert source('[0:0]={"[0:0]=x"}') == ("[0:0]=x",), "only the array has bounds"


def test_a_type_of_the_sources_own_is_text_in_the_contracts_form() -> None:
    moment = SqlType("timestamp with time zone")
    form = in_postgres(moment, "text", lists=False)
    assert form is not None
    assert form("2025-12-12 12:00:34+00") == form("2025-12-12T12:00:34Z") == "2025-12-12T12:00:34Z"
    assert in_postgres(SqlType("jsonb"), "jsonb", lists=False) is None
    for kind, mirror in (("json", "json"), ("json", "text"), ("jsonb", "text")):
        assert in_postgres(SqlType(kind), mirror, lists=False) is meaning
    assert in_postgres(SqlType("numeric"), "numeric", lists=False) is None
    assert in_postgres(SqlType("mood"), "text", lists=False) is None
