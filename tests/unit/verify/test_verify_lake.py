"""The rows that the verifier of a lake reads, their form, and when it looks again."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from pyiceberg.types import BooleanType, StringType

from headrace.lake.catalog import TableName
from headrace.verify import lake as verify_lake
from headrace.verify import lake_rows
from headrace.verify.check import Verdict
from headrace.verify.lake import AGAIN_S, LakeVerdict, LakeVerifier
from headrace.verify.lake_forms import in_lake
from headrace.verify.lake_rows import LakeRows
from headrace.verify.types import SqlType, types_of
from tests.support.local_lake import NUMBERS, LocalLake
from tests.support.virtual_time import on_virtual_time

USERS = TableName("public", "users")


async def test_rows_are_read_in_parts_without_the_deleted_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_rows, "READ_ROWS", 4)
    lake = LocalLake(tmp_path)
    lake.create()
    lake.insert(range(10))
    lake.cut()
    lake.insert(range(10, 12))
    lake.cut()
    lake.delete([0, 3, 4, 9])
    cut = lake.cut()
    location = lake.catalog.tables()[NUMBERS]
    found = LakeRows(lake.files, location, cut.tables[str(NUMBERS)], ["note", "id"])
    parts = [part async for part in found.rows()]
    assert max(map(len, parts)) <= 4
    rows = sorted((row[1], row[0]) for part in parts for row in part)
    assert rows == [(n, f"note {n}") for n in (1, 2, 5, 6, 7, 8, 10, 11)]


@pytest.mark.parametrize(
    ("source", "text", "lake"),
    [
        (SqlType("text"), "a", "a"),
        (SqlType("uuid"), "0b-", "0b-"),
        (SqlType("double precision", domain=True), "1e+20", "100000000000000000000"),
        (
            SqlType("timestamp without time zone", domain=True),
            "2026-01-02 03:04:05",
            "2026-01-02T03:04:05",
        ),
        (SqlType("boolean", domain=True), "t", "true"),
    ],
)
def test_text_is_compared_in_the_form_of_its_type(source: SqlType, text: str, lake: str) -> None:
    there, here = in_lake(source, StringType())
    assert there(text) == here(lake)


def test_a_boolean_is_compared_with_a_boolean() -> None:
    there, here = in_lake(SqlType("boolean"), BooleanType())
    assert (there("t"), there("f")) == (here(True), here(False))


async def test_a_domain_has_the_type_that_it_stands_on_and_says_so() -> None:
    rows = {1: ("text", 0, 0, ","), 2: ("text", 1, 0, ","), 3: ("text[]", 0, 2, ",")}
    answers = iter([[(oid, *row) for oid, row in rows.items()], [("a", 1), ("b", 2), ("c", 3)]])

    async def execute(*_: Any) -> Any:
        answer = next(answers)

        async def fetchall() -> Any:
            return answer

        return SimpleNamespace(fetchall=fetchall)

    found = await types_of(cast("Any", SimpleNamespace(execute=execute)), "t")
    assert found == {
        "a": SqlType("text"),
        "b": SqlType("text"),
        "c": SqlType("text[]", SqlType("text")),
    }
    assert [found["a"].domain, found["b"].domain] == [False, True]
    assert found["c"].element is not None
    assert found["c"].element.domain


def verdict(*, equal: bool) -> LakeVerdict:
    return LakeVerdict(Verdict("users", 1, why="" if equal else "a column is missing"), 1, 0)


@on_virtual_time
async def test_a_difference_is_looked_at_again_a_little_later() -> None:
    one = LakeVerifier(cast("Any", None), cast("Any", None), cast("Any", None), 30)
    looked: list[float] = []
    answers = [verdict(equal=False), verdict(equal=True), verdict(equal=True)]

    async def once(*_: Any) -> LakeVerdict:
        looked.append(time.monotonic())
        return answers[len(looked) - 1]

    with mock.patch.object(LakeVerifier, "_once", once):
        assert (await one.table(USERS)).verdict.equal
        assert len(looked) == 2
        assert looked[1] - looked[0] >= AGAIN_S
        assert (await one.table(USERS)).verdict.equal
        assert len(looked) == 3, "what is equal is not looked at again"


def test_columns_that_differ_are_named_by_side() -> None:
    schema = SimpleNamespace(fields=[SimpleNamespace(name=name) for name in ("a", "b", "c")])
    differ = verify_lake._columns_differ
    assert differ(["a", "b", "c"], cast("Any", schema)) == ""
    assert differ(["a", "d", "b"], cast("Any", schema)) == (
        "columns missing in the lake: d; columns only in the lake: c"
    )
    assert "only in the lake: none" in differ(["a", "b", "c", "d"], cast("Any", schema))
