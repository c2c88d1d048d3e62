"""Earlier versions of rows: from the changes of their key, the latest first.

The connection answers with changes that are made by hand; what PostgreSQL selects is a question for
the integration tests.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.audit.history import (
    DEPTH_MAX,
    Known,
    TrailRow,
    columns_of,
    exact_of,
    gap_between,
    is_unsure,
    key_columns,
    known_of,
    later_change,
    row_at,
    written_before,
)
from headrace.audit.query import TrailPosition
from headrace.audit.table import AuditTable
from headrace.lsn import Position

TABLE = AuditTable("public", "changes", partitioned=False)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("public", "users")


def change(operation: str = "UPDATE", key: str = "1", **fields: Any) -> dict[str, Any]:
    return {
        "operation": operation,
        "primary_key": key,
        "after": json.dumps(fields.pop("after", {})),
        "before": json.dumps(fields.pop("before", {})),
        "unchanged": fields.pop("unchanged", None),
        "exact": fields.pop("exact", None),
        "position": 100,
        "ordinal": 0,
        "id": "00000000-0000-8000-8000-000000000001",
        "source": "s",
        "database": "db",
        "schema": "public",
        "table": "users",
        "created_at": NOW,
        **fields,
    }


class Trail:
    """Answers each query with what the test has, and notes the queries."""

    def __init__(self, *changes: dict[str, Any], key: tuple[str, ...] = ("id",)) -> None:
        self.changes = list(changes)
        self.key = key
        self.value: Any = None
        self.queries: list[tuple[str, tuple[object, ...]]] = []

    async def fetchval(self, query: str, *arguments: object) -> Any:
        self.queries.append((query, arguments))
        if query.startswith("SELECT key"):
            return list(self.key)
        return self.value

    async def fetch(self, query: str, *arguments: object) -> list[dict[str, Any]]:
        self.queries.append((query, arguments))
        return self.changes

    async def fetchrow(self, query: str, *arguments: object) -> dict[str, Any] | None:
        self.queries.append((query, arguments))
        return self.changes[0] if self.changes else None


async def was(
    *changes: dict[str, Any], key: str = "1", columns: tuple[str, ...] = ("id",)
) -> TrailRow:
    trail: Any = Trail(*changes, key=columns)
    return await row_at(trail, TABLE, NAMES, key, NOW)


async def test_a_row_is_its_latest_change() -> None:
    latest = change(after={"id": 1, "a": 2})
    found = await was(latest, change(after={"id": 1, "a": 1}))
    assert (found.values, found.unknown) == ({"id": 1, "a": 2}, [])
    assert found.change is latest
    assert found.oldest is latest


async def test_values_that_were_not_sent_are_those_of_the_change_before() -> None:
    latest = change(after={"id": 1, "a": 3}, unchanged=["b", "c"])
    middle = change(after={"id": 1, "a": 2, "b": "x"}, unchanged=["c"])
    first = change("CREATE", after={"id": 1, "a": 1, "b": "w", "c": "y"})
    too_far = change("CREATE", after={"id": 1, "a": 0, "b": "v", "c": "z"})
    found = await was(latest, middle, first, too_far)
    assert (found.values, found.unknown) == ({"id": 1, "a": 3, "b": "x", "c": "y"}, [])
    assert found.change is latest
    assert found.oldest is first
    short = await was(latest, middle)
    assert (short.values, short.unknown) == ({"id": 1, "a": 3, "b": "x"}, ["c"])
    assert short.oldest is middle


async def test_a_change_that_fills_nothing_in_is_not_what_the_row_rests_on() -> None:
    latest = change(after={"id": 1}, unchanged=["b"])
    found = await was(latest, change(after={"id": 1}, unchanged=["b"]))
    assert (found.oldest is latest, found.unknown) == (True, ["b"])


@pytest.mark.parametrize("operation", ["DELETE", "TRUNCATE"])
async def test_a_row_that_was_deleted_did_not_exist(operation: str) -> None:
    ended = change(operation)
    found = await was(ended, change(after={"id": 1}))
    assert found.values is None
    assert found.change is ended


async def test_a_row_that_moved_to_another_key_did_not_exist_under_its_old_one() -> None:
    moved = change(key="2", after={"id": 2}, before={"id": 1})
    found = await was(moved, change(after={"id": 1}))
    assert found.values is None
    assert found.change is moved


@pytest.mark.parametrize(
    "ended",
    [
        change("DELETE"),
        change("TRUNCATE"),
        change(key="2", after={"id": 2, "b": "other"}),
        change(after={"id": 3, "b": "other"}),
    ],
    ids=["deleted", "truncated", "moved", "of another key's column"],
)
async def test_values_of_an_earlier_row_of_the_same_key_are_not_taken(
    ended: dict[str, Any],
) -> None:
    found = await was(
        change(after={"id": 1}, unchanged=["b"]),
        ended,
        change("CREATE", after={"id": 1, "b": "old"}),
    )
    assert (found.values, found.unknown) == ({"id": 1}, ["b"])


async def test_a_row_without_its_key_may_be_the_one() -> None:
    found = await was(change(after={"a": 1}), columns=("id",))
    assert found.values == {"a": 1}


async def test_a_key_that_the_trail_has_nothing_of_has_no_row() -> None:
    assert await was() == TrailRow(None)


async def test_texts_and_doubts_are_those_of_the_change_that_gave_the_value() -> None:
    latest = change(after={"id": 1, "a": 1.5}, unchanged=["b"], exact='{"after": {"a": "1.50"}}')
    older = change(
        after={"id": 1, "a": 9.5, "b": 2.5}, exact='{"after": {"a": "9.50", "b": "2.50"}}'
    )
    found = await was(latest, older)
    assert (found.exact, found.unsure) == ({"a": "1.50", "b": "2.50"}, set())
    earlier_version = change(after={"id": 1, "a": 9.5, "b": 2.5}, exact="null")
    assert (await was(latest, earlier_version)).unsure == {"b"}
    assert (await was(earlier_version)).unsure == {"id", "a", "b"}


def conditions(trail: Trail, at: int = -1) -> str:
    return trail.queries[at][0]


async def test_changes_are_looked_for_up_to_a_time_or_before_a_place_and_in_one_database() -> None:
    trail: Any = Trail()
    await row_at(trail, TABLE, NAMES, "1", NOW)
    query, arguments = trail.queries[-1]
    assert "committed_at <= $5" in query
    assert "database" not in query.partition("WHERE")[2]
    assert "before ->> $4" in query
    assert query.endswith(f"LIMIT {DEPTH_MAX}")
    assert arguments == ("public", "users", "1", "id", NOW)
    await row_at(trail, TABLE, NAMES, "1", TrailPosition(100, 2, "id"), database="db")
    query, arguments = trail.queries[-1]
    assert "committed_at <=" not in query
    assert query.count("database = $8") == 1
    assert arguments == ("public", "users", "1", "id", 100, "id", 2, "db")


async def test_a_table_without_a_key_has_no_rows_that_moved() -> None:
    trail: Any = Trail(key=())
    await row_at(trail, TABLE, NAMES, "1", NOW)
    assert "(operation = 'UPDATE' AND false)" in conditions(trail)
    await later_change(trail, TABLE, change(), [])
    assert "(operation = 'UPDATE' AND false)" in conditions(trail)


async def test_the_old_key_of_several_columns_is_compared_as_their_array() -> None:
    trail: Any = Trail(key=("a", "b"))
    await later_change(trail, TABLE, change(), ["x"])
    query, arguments = trail.queries[-1]
    assert "array_to_json(ARRAY[before ->> $6, before ->> $7])::text" in query
    assert arguments[:7] == ("public", "users", "1", ["x"], "db", "a", "b")
    assert "position >= $8" in query
    assert arguments[7] == 100


async def test_the_last_written_row_is_of_any_time_or_before_a_change() -> None:
    trail: Any = Trail()
    assert await written_before(trail, TABLE, ("db", *NAMES)) is None
    assert trail.queries[-1][1] == ("db", *NAMES)
    found = change()
    trail.changes = [found]
    assert await written_before(trail, TABLE, ("db", *NAMES), found) is found
    assert "position <= $4" in conditions(trail)
    assert trail.queries[-1][1][3:] == (100, found["id"], 0)


def test_the_columns_of_a_row_are_those_that_were_sent_and_those_that_were_not() -> None:
    assert columns_of(None) == set()
    assert columns_of(change(after={"a": 1, "b": None}, unchanged=["c"])) == {"a", "b", "c"}
    assert columns_of(change(after={"a": 1})) == {"a"}


async def test_a_tables_key_is_the_one_that_this_source_noted_first() -> None:
    trail: Any = Trail(key=("a", "b"))
    assert await key_columns(trail, TABLE, *NAMES, "s") == ("a", "b")
    assert trail.queries[-1][1] == (*NAMES, "s")
    await key_columns(trail, TABLE, *NAMES)
    assert trail.queries[-1][1] == (*NAMES, "")


def test_the_trail_has_all_changes_from_a_place_of_its_own_source_on() -> None:
    known = Known(1, Position(100, 5), "1:1")
    assert known.has(change(ordinal=5), "s")
    assert known.has(change(position=101), "s")
    assert not known.has(change(ordinal=4), "s")
    assert not known.has(change(ordinal=5), "t")
    assert not known.has(change(ordinal=None), "s"), "an older auditor's"


@pytest.mark.parametrize(
    ("row", "known"),
    [
        (
            {"since_position": 100, "since_ordinal": 5, "files": "1:1", "relation_id": 7},
            Known(7, Position(100, 5), "1:1"),
        ),
        ({"since_position": None, "since_ordinal": None, "files": "1:1", "relation_id": 7}, None),
        ({"since_position": 100, "since_ordinal": 5, "files": "", "relation_id": 7}, None),
        ({"key": ["id"]}, None),
        (None, None),
    ],
    ids=["all", "not certain", "gone", "of an earlier version", "none"],
)
async def test_what_is_certain_of_a_table_is_noted_beside_the_trail(
    row: dict[str, Any] | None, known: Known | None
) -> None:
    trail: Any = Trail()
    trail.value = None if row is None else json.dumps(row)
    assert await known_of(trail, TABLE, *NAMES, "s") == known
    assert trail.queries[-1][1] == ("s", *NAMES)


async def test_a_gap_counts_from_the_first_row_to_the_second() -> None:
    trail: Any = Trail()
    trail.value = "slot_moved"
    later = datetime(2026, 1, 2, tzinfo=UTC)
    assert await gap_between(trail, TABLE, change(), change(created_at=later)) == "slot_moved"
    assert trail.queries[-1][1] == (NOW, later)


def test_exact_texts_are_those_of_a_side() -> None:
    stored = change(exact='{"after": {"a": "1.50"}}')
    assert exact_of(stored, "after") == {"a": "1.50"}
    assert exact_of(stored, "before") == exact_of(change(), "after") == {}
    assert exact_of(change(exact="null"), "after") == {}
    assert [is_unsure(change(exact=text)) for text in ("null", None, "{}")] == [True, False, False]
