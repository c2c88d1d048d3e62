"""How `headrace audit` shows the trail, and what it refuses to look for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any, ClassVar

import asyncpg
import pytest

from headrace.audit.history import TrailRow
from headrace.audit.query import LIMIT_MAX, Search
from headrace.audit.revert import IrreversibleError
from headrace.audit.table import AuditTable
from headrace.cli.audit import read
from headrace.cli.audit.read import NotFoundError, moment, searched
from headrace.errors import HeadraceError, SettingError
from headrace.settings import load

TABLE = AuditTable("public", "changes", partitioned=False)
ID = "00000000-0000-8000-8000-000000000001"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def change(operation: str = "UPDATE", **fields: Any) -> dict[str, Any]:
    before = json.dumps(fields.pop("before", {}))
    after = json.dumps(fields.pop("after", {}))
    return {
        "id": ID,
        "schema": "public",
        "table": "users",
        "operation": operation,
        "primary_key": "1",
        "committed_at": NOON.astimezone(timezone(timedelta(hours=2))),
        "context": "{}",
        "exact": None,
        "unchanged": None,
        "source": "s",
        "before": before,
        "after": after,
        **fields,
    }


class Trail:
    """The connection: answers every search with the same rows."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.rows = list(rows)
        self.searches: list[tuple[str, tuple[object, ...]]] = []
        self.tables: dict[str, list[dict[str, Any]]] = {}

    async def fetch(self, query: str, *arguments: object) -> list[dict[str, Any]]:
        self.searches.append((query, arguments))
        return next((rows for name, rows in self.tables.items() if name in query), self.rows)


@pytest.fixture
def trail(monkeypatch: pytest.MonkeyPatch) -> Trail:
    made = Trail()

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        yield made, TABLE, load({"PG_DB": "app"})

    monkeypatch.setattr(read, "_trail", opened)
    return made


def said(capsys: pytest.CaptureFixture[str], work: Any) -> list[str]:
    asyncio.run(work)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("30s", timedelta(seconds=30)),
        ("5m", timedelta(minutes=5)),
        ("2h", timedelta(hours=2)),
        ("7d", timedelta(days=7)),
    ],
)
def test_a_time_may_be_so_long_ago(text: str, ago: timedelta) -> None:
    before = datetime.now(UTC)
    found = moment(text)
    assert before - ago <= found <= datetime.now(UTC) - ago


def test_a_time_without_a_zone_is_utcs_and_another_text_is_refused() -> None:
    assert moment("2026-01-01T12:00") == NOON
    assert moment("2026-01-01T13:00+01:00") == NOON
    for text in ("yesterday", "2w", "m"):
        with pytest.raises(SettingError, match="is not a time"):
            moment(text)


def test_options_are_the_criteria_and_their_errors_come_when_they_are_used() -> None:
    nothing = searched(None, None, None, None, None, operation=None, limit=3)()
    assert nothing == Search(limit=3)
    everything = searched(
        "t", "k", "c=1", "2026-01-01T12:00", "2026-01-01T12:00", operation="delete", limit=1
    )
    assert everything() == Search(
        table="t", key="k", context="c=1", operation="DELETE", since=NOON, until=NOON, limit=1
    )
    wrong = searched(None, None, None, "yesterday", None, operation=None, limit=1)
    with pytest.raises(SettingError):
        wrong()


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (
            change(before={"id": 1, "a": 1, "b": "x"}, after={"id": 1, "a": 2, "b": "x"}),
            "UPDATE   users 1  a: 1 → 2",
        ),
        (change("CREATE", after={"id": 1, "a": "ä"}), 'CREATE   users 1  id: 1, a: "ä"'),
        (change("INSERT", after={"id": 1}), "INSERT   users 1  id: 1"),
        (change("DELETE", before={"id": 1, "a": None}), "DELETE   users 1  id: 1, a: null"),
        (
            change(schema="app", primary_key=None, context='{"user": 1}'),
            'UPDATE   app.users     {"user": 1}',
        ),
        # PostgreSQL sent no old row.
        (change(after={"id": 1, "a": 2}), "UPDATE   users 1  id: ? → 1, a: ? → 2"),
        (
            change(before={"id": 1}, after={"id": 2, "a": 2}),
            "UPDATE   users 1  id: 1 → 2",
        ),
        (
            change(before={"id": 1}, after={"id": 1, "a": 2}),
            "UPDATE   users 1  id: 1 → 1, a: ? → 2",
        ),
        # A column that is gone from the new row.
        (change(before={"id": 1, "a": 2}, after={"id": 1}), "UPDATE   users 1  a: 2 → ?"),
    ],
)
def test_a_line_has_the_time_in_utc_and_what_changed(row: dict[str, Any], line: str) -> None:
    assert read._line(row) == f"2026-01-01 12:00:00  {ID}  {line}"


def test_long_values_and_long_lines_are_cut() -> None:
    exactly = "x" * 58
    line = read._line(change("CREATE", after={"a": exactly}))
    assert line.endswith(f'a: "{exactly}"')
    line = read._line(change("CREATE", after={"a": exactly + "x"}))
    assert line.endswith(f'a: "{exactly}…')
    many = read._line(change("CREATE", after={f"c{number}": 1 for number in range(99)}))
    assert len(many.partition("users 1  ")[2]) == 160
    assert many.endswith("…")
    context = json.dumps({"a": "x" * 99})
    assert read._line(change(context=context)).endswith(f"  {context[:59]}…")


async def test_a_change_is_found_by_its_id_only(trail: Trail) -> None:
    for wrong in ("1", "users"):
        with pytest.raises(SettingError, match="is not a change's id"):
            await read.show(wrong, as_json=True)
    assert trail.searches == []
    with pytest.raises(NotFoundError, match="contains no change"):
        await read.show(ID, as_json=True)
    assert trail.searches[0][1] == (ID,)


def test_a_change_is_shown_as_a_document(trail: Trail, capsys: pytest.CaptureFixture[str]) -> None:
    trail.rows = [change(after={"a": "ä"}, exact=None)]
    (line,) = said(capsys, read.show(ID, as_json=True))
    assert json.loads(line)["after"] == {"a": "ä"}
    assert json.loads(line)["exact"] is None
    assert json.loads(line)["committed_at"] == "2026-01-01 14:00:00+02:00"
    assert json.loads(line)["id"] == ID
    readable = said(capsys, read.show(ID, as_json=False))
    assert '    "a": "ä"' in readable


def test_a_log_has_a_line_for_each_change(trail: Trail, capsys: pytest.CaptureFixture[str]) -> None:
    trail.rows = [change(after={"a": 1}), change("DELETE")]
    assert len(said(capsys, read.log(Search(), as_json=False))) == 2
    documents = [json.loads(line) for line in said(capsys, read.log(Search(), as_json=True))]
    assert [document["operation"] for document in documents] == ["UPDATE", "DELETE"]


@pytest.mark.parametrize(
    ("row", "lines"),
    [
        (
            change(before={"a": 1}, after={"a": 2}, unchanged=["big"]),
            ["- a: 1", "+ a: 2", "  big: unchanged"],
        ),
        (change("CREATE", after={"a": 2}), ["+ a: 2"]),
        (change("DELETE", before={"a": 2}), ["- a: 2"]),
    ],
)
def test_a_difference_has_what_was_and_what_is(
    trail: Trail, capsys: pytest.CaptureFixture[str], row: dict[str, Any], lines: list[str]
) -> None:
    trail.rows = [row]
    assert said(capsys, read.diff(ID))[-len(lines) :] == lines


class Rows:
    """In the place of `row_at`: answers in turn, and notes the databases that it is asked for."""

    def __init__(self, *found: TrailRow) -> None:
        self.found = list(found)
        self.databases: list[str | None] = []

    async def __call__(self, *_: object, database: str | None = None) -> TrailRow:
        self.databases.append(database)
        return self.found.pop(0)


def test_a_row_is_looked_for_in_the_sources_database_and_then_in_any(
    trail: Trail, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = TrailRow({"a": "ä"}, ["big"], change())
    rows = Rows(there)
    monkeypatch.setattr(read, "row_at", rows)

    async def certain(*_: object) -> Any:
        return SimpleNamespace(has=lambda *_: True)

    monkeypatch.setattr(read, "known_of", certain)
    shown = said(capsys, read.at("2026-01-01", "users", "1"))
    assert shown == ["{", '  "a": "ä"', "}", "unknown: big"]
    assert rows.databases == ["app"]
    rows = Rows(TrailRow(None), TrailRow({"a": 1}, [], change()))
    monkeypatch.setattr(read, "row_at", rows)
    assert said(capsys, read.at("2026-01-01", "users", "1")) == ["{", '  "a": 1', "}"]
    assert rows.databases == ["app", None]


@pytest.mark.parametrize(
    ("row", "why"),
    [(TrailRow(None, change=change("DELETE")), "DELETE before"), (TrailRow(None), "has nothing")],
)
async def test_a_row_that_did_not_exist_is_an_error_with_its_reason(
    trail: Trail, monkeypatch: pytest.MonkeyPatch, row: TrailRow, why: str
) -> None:
    monkeypatch.setattr(read, "row_at", Rows(row, row))
    with pytest.raises(NotFoundError, match=f"did not exist at that time.*{why}"):
        await read.at("2026-01-01", "users", "1")


class Run:
    """In the place of `Reverting`."""

    made: ClassVar[list[Any]] = []

    def __init__(self, *given: Any) -> None:
        self.given = given
        self.applied = False
        Run.made.append(self)

    async def script(self) -> str:
        return "BEGIN;"

    async def apply(self) -> None:
        self.applied = True


@pytest.fixture
def reverts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    @asynccontextmanager
    async def opened(*_: object) -> AsyncIterator[str]:
        yield "source"

    monkeypatch.setattr(read, "postgres", opened)
    monkeypatch.setattr(read, "Reverting", Run)
    Run.made.clear()
    return Run.made


@pytest.mark.parametrize(
    ("change", "position", "context"),
    [(None, None, None), (ID, 5, None), (ID, None, "a=1"), (ID, 5, "a=1")],
)
async def test_a_revert_takes_exactly_one_criterion(
    change: str | None, position: int | None, context: str | None
) -> None:
    with pytest.raises(SettingError, match="one of --id, --transaction, --context"):
        await read.revert(change, position, context, None, apply=False)


async def test_a_revert_refuses_an_id_that_is_none_and_a_search_without_a_change(
    trail: Trail, reverts: list[Any]
) -> None:
    with pytest.raises(SettingError, match="is not a change's id"):
        await read.revert("1", None, None, None, apply=False)
    with pytest.raises(NotFoundError, match="nothing in the trail matches"):
        await read.revert(None, 5, None, None, apply=False)
    assert reverts == []


async def test_a_revert_refuses_more_changes_than_it_can_see(
    trail: Trail, reverts: list[Any]
) -> None:
    trail.rows = [change()] * (LIMIT_MAX - 1)
    await read.revert(None, 5, None, None, apply=True)
    trail.rows = [change()] * LIMIT_MAX
    with pytest.raises(IrreversibleError, match=f"more than {LIMIT_MAX - 1} changes match"):
        await read.revert(None, 5, None, None, apply=True)
    assert len(reverts) == 1


def test_a_revert_prints_its_script_and_writes_only_when_it_is_applied(
    trail: Trail, reverts: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    trail.rows = [change()]
    since = "2026-01-01T12:00"
    assert said(capsys, read.revert(None, None, "a=1", since, apply=False)) == ["BEGIN;"]
    assert NOON in trail.searches[0][1]
    assert said(capsys, read.revert(ID, None, None, None, apply=True)) == [
        "1 change was reverted, and its row reads back as it was before"
    ]
    trail.rows = [change()] * 2
    (left,) = said(capsys, read.revert(None, 5, None, None, leave=["a", "b"], apply=True))
    assert left.startswith(
        "2 changes were reverted in one transaction, and their rows read back as"
    )
    assert left.endswith(" they were before, but for a, b")
    assert [run.applied for run in reverts] == [False, True, True]
    assert reverts[2].given[4:] == (trail.rows, ["a", "b"])


def test_statistics_name_tables_positions_and_gaps(
    trail: Trail, capsys: pytest.CaptureFixture[str]
) -> None:
    trail.rows = [
        {
            "schema": "public",
            "table": "users",
            "operation": "UPDATE",
            "changes": 3,
            "with_context": 2,
            "first": NOON,
            "last": NOON,
        }
    ]
    trail.tables = {
        "headrace_audit_state": [{"source": "s", "position": 255, "updated_at": NOON}],
        "headrace_audit_gaps": [{"source": "s", "noticed_at": NOON, "reason": "lost"}],
    }
    counted, state, gap = said(capsys, read.stats(as_json=False))
    assert counted.split()[:4] == ["public.users", "UPDATE", "3", "2"]
    assert state == "s: written up to 0/FF at 2026-01-01 12:00:00"
    assert gap == "GAP s 2026-01-01 12:00:00: lost"
    document = json.loads(said(capsys, read.stats(as_json=True))[0])
    assert {name: len(rows) for name, rows in document.items()} == {
        "tables": 1,
        "state": 1,
        "gaps": 1,
    }


@pytest.mark.parametrize(
    ("error", "kind", "match"),
    [
        (asyncpg.UndefinedColumnError("no column"), HeadraceError, "written by an earlier version"),
        (asyncpg.UndefinedTableError("no table"), NotFoundError, "there is no trail: no table"),
        (asyncpg.PostgresError("refused"), HeadraceError, "the audit's destination: refused"),
    ],
)
async def test_an_error_of_the_destination_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], match: str
) -> None:
    ended: list[bool] = []

    async def connect(*_: object) -> Any:
        return SimpleNamespace(terminate=lambda: ended.append(True))

    monkeypatch.setattr(read, "connect", connect)
    with pytest.raises(kind, match=match):
        async with read._trail():
            raise error
    assert ended


def test_the_sql_for_an_administrator_creates_every_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_AUDIT_SCHEMA", "trail")
    text = "\n".join(said(capsys, read.sql()))
    assert text.count("CREATE TABLE IF NOT EXISTS") == 4
    assert '"trail"."changes"' in text
