"""The values of a search engine's documents, as a mirror in SQLite has them."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.verify.documents import _values
from headrace.verify.types import SqlType

LIST = SqlType("integer[]", SqlType("integer"))


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (SqlType("integer"), 7, 7),
        (SqlType("bigint"), 2**62, 2**62),
        (SqlType("boolean"), True, 1),
        (SqlType("double precision"), 1.5, 1.5),
        (SqlType("double precision"), "NaN", "NaN"),
        (SqlType("double precision"), "-Infinity", float("-inf")),
        (SqlType("text"), "7", "7"),
        (SqlType("bytea"), "AP8=", b"\0\xff"),
        (SqlType("jsonb"), {"a": [1]}, '{"a": [1]}'),
        (LIST, [1, None], "[1, null]"),
        (LIST, "{1,NULL}", "{1,NULL}"),
        (SqlType("integer"), None, None),
    ],
)
def test_a_value_is_what_a_mirror_in_sqlite_stores(kind: SqlType, value: Any, stored: Any) -> None:
    (found,) = _values({"v": value}, {"v": kind}, ["v"])
    assert (type(found), found) == (type(stored), stored)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("integer", "x"), ("text", 7), ("double precision", "x"), ("bytea", "no base64")],
)
def test_a_value_that_another_program_wrote_equals_none_of_the_source(
    kind: str, value: Any
) -> None:
    (found,) = _values({"v": value}, {"v": SqlType(kind)}, ["v"])
    assert found == ("no value of this type", repr(value))


def test_a_field_that_a_document_lacks_is_null() -> None:
    assert _values({}, {"v": SqlType("text")}, ["v"]) == (None,)
