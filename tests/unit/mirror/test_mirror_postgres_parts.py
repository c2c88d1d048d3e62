"""The pure parts of a mirror in PostgreSQL: names, types, texts of values, and errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psycopg
import pytest

from headrace.contract.exact import ExactText
from headrace.contract.subjects_and_ids import split_table_token, table_token
from headrace.mirror.mirror_state import STALE
from headrace.mirror.postgres import PostgresTarget, error_of
from headrace.mirror.postgres_groups import _array
from headrace.mirror.postgres_statements import check_names, row_test, table_name
from headrace.mirror.postgres_values import text_of, type_in
from headrace.mirror.rules import PLAIN, TableRules
from headrace.mirror.table import Column, Table
from headrace.mirror.target import TargetAwayError, TargetError
from headrace.mirror.value_kinds import array_literal

USERS = Table("app", 'us"ers', (Column("id", "integer"),), ("id",), ("id",))


def test_a_copy_has_a_short_name_of_its_own() -> None:
    assert table_name(USERS) == '"app"."us""ers"'
    staged = table_name(replace(USERS, staging=True))
    schema, _, name = staged.partition(".")
    assert schema == "headrace_mirror"
    assert len(name) == len("new_") + 24
    assert staged == table_name(replace(USERS, staging=True, columns=()))
    other = replace(USERS, schema='app"', name="us", staging=True)
    assert table_name(other) != staged


@pytest.mark.parametrize(
    ("data_type", "stored"),
    [
        ("numeric(10,2)", "numeric(10,2)"),
        ("timestamp(3) with time zone", "timestamp(3) with time zone"),
        ("integer[]", "integer[]"),
        ("mood", "text"),
        ("mood[]", "text"),
        ("app.mood", "text"),
        ("numeric(x)", "text"),
    ],
)
def test_types_of_the_sources_own_become_text(data_type: str, stored: str) -> None:
    assert type_in(data_type) == stored


@pytest.mark.parametrize(
    ("data_type", "value", "text"),
    [
        ("boolean", True, "t"),
        ("boolean", False, "f"),
        ("bytea", b"\0\xff", "\\x00ff"),
        ("bytea", "AP8=", "\\x00ff"),
        ("jsonb", {"a": 1}, '{"a": 1}'),
        ("json", ExactText('{"a":1.50}'), '{"a":1.50}'),
        ("integer", 7, "7"),
        ("text", "x", "x"),
        ("integer[]", [1, None, 3], "{1,NULL,3}"),
        ("integer[]", "[0:1]={1,2}", "[0:1]={1,2}"),
        ("boolean[]", [[True], [False]], "{{t},{f}}"),
        ("bytea[]", [b"\0"], '{"\\\\x00"}'),
        ("mood", True, "t"),
        ("mood", {"a": 1}, '{"a": 1}'),
        ("mood", ["a b", "c"], '{"a b",c}'),
        ("mood", b"\1", "\\x01"),
        ("mood", 7, "7"),
    ],
)
def test_a_value_is_text_that_postgresql_reads(data_type: str, value: Any, text: str) -> None:
    assert text_of(data_type)(value) == text


def test_elements_are_quoted_where_postgresql_would_misread_them() -> None:
    literal = array_literal(["a", "", "null", "NULL", "a,b", 'q"', "b\\", "{", " x", "nul"], str)
    assert literal == '{a,"","null","NULL","a,b","q\\"","b\\\\","{"," x",nul}'


@pytest.mark.parametrize(
    ("texts", "literal"),
    [
        (("a", "", "b,c", "{"), '{"a","","b,c","{"}'),
        ((None, "NULL"), '{NULL,"NULL"}'),
        (('q"', "x"), '{"q\\"","x"}'),
        (("b\\", "x"), '{"b\\\\","x"}'),
        # As many quotes as separators have.
        (('"', "\\"), '{"\\"","\\\\"}'),
        ((), "{}"),
    ],
)
def test_the_texts_of_a_column_are_an_array_that_postgresql_reads(
    texts: tuple[str | None, ...], literal: str
) -> None:
    assert _array(texts) == literal


KEYED = Table(
    "app", "t", (Column("id", "integer"), Column("k%", "text"), Column("n", "text")), ("id", "k%")
)
BY_KEY = '"id" = %s::integer AND "k%%" = %s::text'


@pytest.mark.parametrize(
    ("rules", "where", "condition", "values"),
    [
        (PLAIN, {"id": 1, "k%": "a"}, BY_KEY, ["1", "a"]),
        (
            TableRules(soft_delete="gone"),
            {"id": 1, "k%": "a", "gone": None},
            f'{BY_KEY} AND "gone" IS NULL',
            ["1", "a"],
        ),
    ],
)
def test_a_row_is_found_by_its_key_unless_it_is_marked_as_deleted(
    rules: TableRules, where: dict[str, Any], condition: str, values: list[str]
) -> None:
    assert row_test(KEYED.ruled(rules), where) == (condition, values)


def test_the_schema_of_the_mirrors_state_has_no_table_of_the_source() -> None:
    check_names(USERS)
    check_names(STALE)
    with pytest.raises(TargetError, match="reserved"):
        check_names(replace(STALE, name="other"))
    check_names(replace(USERS, name="ü" * 31))
    with pytest.raises(TargetError, match="63 bytes"):
        check_names(replace(USERS, name="ü" * 32))


def failure(state: str | None, text: str = "") -> psycopg.Error:
    error = psycopg.OperationalError(text)
    error.sqlstate = state
    return error


@pytest.mark.parametrize("state", [None, "08006", "57P01", "53300", "40001", "55P03", "55006"])
def test_a_server_that_is_away_or_busy_is_waited_for(state: str | None) -> None:
    found = error_of(failure(state, "first line\nsecond"))
    assert isinstance(found, TargetAwayError)
    assert "PostgreSQL: first line." in str(found)
    assert "second" not in str(found)


@pytest.mark.parametrize("state", ["42501", "23505", "55000"])
def test_a_refusal_is_no_absence(state: str) -> None:
    found = error_of(failure(state, "no"))
    assert not isinstance(found, TargetAwayError)
    assert "Check the role's permissions" in str(found)


def test_reserved_names_have_tokens_that_nothing_else_has() -> None:
    assert table_token("public", "_gap") == "=5Fgap"
    assert table_token("public", "_message") == "=5Fmessage"
    assert table_token("public", "users") == "users"
    assert table_token("app", "_gap") == "app=2F_gap"
    assert split_table_token("=5Fgap") == ("public", "_gap")


async def test_a_target_without_a_connection_is_waited_for() -> None:
    """One task lost it and could not connect again; another one commits."""
    with pytest.raises(TargetAwayError, match="the connection was lost"):
        await PostgresTarget("postgresql://nowhere").commit({})
