"""Searches as SQL: each criterion is a condition with an argument, and never text of the user's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.audit.query import LIMIT_MAX, Search, TrailPosition, conditions, contexts, rows
from headrace.audit.table import AuditTable
from headrace.errors import SettingError

TABLE = AuditTable("public", "changes", partitioned=False)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ID = "00000000-0000-8000-8000-000000000001"


@pytest.mark.parametrize(
    ("search", "where", "arguments"),
    [
        (Search(), "", []),
        (Search(table="users"), ' WHERE "table" = $1', ["users"]),
        (Search(table="app.users"), ' WHERE "table" = $1 AND schema = $2', ["users", "app"]),
        (Search(key=""), " WHERE primary_key = ANY($1::text[])", [[""]]),
        (Search(operation="DELETE"), " WHERE operation = $1", ["DELETE"]),
        (Search(position=0), " WHERE position = $1", [0]),
        (Search(since=NOW), " WHERE committed_at >= $1", [NOW]),
        (Search(until=NOW), " WHERE committed_at <= $1", [NOW]),
        (Search(id=ID), " WHERE id = $1::text::uuid", [ID]),
        (Search(id=""), "", []),
        (
            Search(below=TrailPosition(9, 2, ID)),
            (
                " WHERE position <= $1 AND (position < $1 OR ordinal < $3 OR (ordinal = $3 AND id < "
                "$2::text::uuid))"
            ),
            [9, ID, 2],
        ),
        (
            Search(below=TrailPosition(9, None, ID)),
            (
                " WHERE position <= $1 AND (position < $1 OR ordinal IS NOT NULL OR id < "
                "$2::text::uuid)"
            ),
            [9, ID],
        ),
        (
            Search(table="t", context="a=1"),
            ' WHERE "table" = $1 AND (context @> $2::text::jsonb OR context @> $3::text::jsonb)',
            ["t", '{"a": "1"}', '{"a": 1}'],
        ),
    ],
)
def test_a_criterion_is_a_condition(search: Search, where: str, arguments: list[Any]) -> None:
    assert conditions(search) == (where, arguments)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("user=bob", ['{"user": "bob"}']),
        (" user =42", ['{"user": "42"}', '{"user": 42}']),
        ("user=", ['{"user": ""}']),
        ("a=b=c", ['{"a": "b=c"}']),
        (' {"a": [1]}', ['{"a": [1]}']),
        # No JSON, but it can be read as name=value.
        ("{a=1", ['{"{a": "1"}', '{"{a": 1}']),
    ],
)
def test_a_context_is_a_name_with_a_value_or_a_document(text: str, meant: list[str]) -> None:
    assert contexts(text) == meant


@pytest.mark.parametrize("text", ["user", "=1", "{broken"])
def test_a_context_that_is_neither_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="not a valid search"):
        contexts(text)


@pytest.mark.parametrize(
    ("limit", "rows_max"),
    [(50, 50), (0, 1), (-5, 1), (LIMIT_MAX, LIMIT_MAX), (LIMIT_MAX + 1, LIMIT_MAX)],
)
def test_a_search_has_a_limit(limit: int, rows_max: int) -> None:
    sql, _ = rows(Search(limit=limit), TABLE)
    assert sql.endswith(f" ORDER BY position DESC, ordinal DESC, id DESC LIMIT {rows_max}")
    oldest, _ = rows(Search(oldest_first=True), TABLE)
    assert "ORDER BY position ASC, ordinal ASC, id ASC" in oldest
