"""A revert's run: which rows it reads, writes and proves, and what it refuses.

The trail and the source are made by hand; their SQL is a question for the integration tests.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.audit.ordering import Reference
from headrace.audit.revert import IrreversibleError
from headrace.cli.audit.revert import Reverting
from headrace.contract.values import JsonForm
from headrace.errors import SettingError
from tests.support.reverted_rows import (
    DELETE,
    INSERT,
    INT,
    IS,
    TABLE,
    TEXT,
    UPDATE,
    WAS,
    Row,
    Source,
    Trail,
    change,
)

pytestmark = pytest.mark.usefixtures("described_tables")


def reverting(source: Any, *changes: dict[str, Any], leave: tuple[str, ...] = ()) -> Reverting:
    nothing: Any = None
    return Reverting(nothing, source, TABLE, JsonForm.NATIVE, changes, leave)


@pytest.mark.parametrize(
    ("one", "found", "then", "written"),
    [
        (UPDATE, IS, WAS, 'UPDATE "public"."users" AS t SET "a" = \'was\' WHERE'),
        (INSERT, IS, None, 'DELETE FROM "public"."users" AS t WHERE'),
        (DELETE, None, WAS, 'INSERT INTO "public"."users" ("id", "a") OVERRIDING'),
    ],
    ids=["update", "insert", "delete"],
)
async def test_a_change_is_undone_and_its_row_is_read_back(
    trail: Trail, one: dict[str, Any], found: Row | None, then: Row | None, written: str
) -> None:
    source = Source(found, then)
    await reverting(source, one).apply()
    assert source.outcome == "committed"
    (statement,) = source.written
    assert statement.startswith(written)
    assert len(source.read) == 2
    assert all(query.endswith(" FOR UPDATE OF t") for query in source.read)
    context = next(arguments for text, arguments in source.executed if "emit_message" in text)
    assert context == (json.dumps({"revert_of": [one["id"]]}),)


@pytest.mark.parametrize(
    ("one", "found", "why"),
    [
        (UPDATE, WAS, "a changed since"),
        (UPDATE, None, "the row no longer exists"),
        (INSERT, None, "the row no longer exists"),
        (DELETE, IS, "the row exists again"),
    ],
)
async def test_a_row_that_is_not_what_the_change_left_is_not_written(
    trail: Trail, one: dict[str, Any], found: Row | None, why: str
) -> None:
    source = Source(found, found)
    with pytest.raises(IrreversibleError, match=f"{why} .the trail has no later change of it"):
        await reverting(source, one).apply()
    assert (source.outcome, source.written) == ("rolled back", [])
    trail.later = change(number=9)
    with pytest.raises(IrreversibleError, match=r"UPDATE \S+9 at 2026-01-01 00:00:00 UTC, .* 7"):
        await reverting(Source(found), one).script()
    assert trail.asked[-1][-1] == [one["id"]]


@pytest.mark.parametrize(
    ("one", "found", "then", "wrong"),
    [
        (UPDATE, IS, IS, "a would not be what it was"),
        (UPDATE, IS, None, "the row is not there"),
        (INSERT, IS, IS, "the row still exists"),
        (DELETE, None, None, "the row is not there"),
        (DELETE, None, IS, "a would not be what it was"),
    ],
)
async def test_a_row_that_is_read_back_otherwise_undoes_nothing(
    trail: Trail, one: dict[str, Any], found: Row | None, then: Row | None, wrong: str
) -> None:
    source = Source(found, then)
    with pytest.raises(IrreversibleError, match=f"read back from users, {wrong}"):
        await reverting(source, one).apply()
    assert source.outcome == "rolled back"


@pytest.mark.parametrize("status", ["UPDATE 0", "UPDATE 2", "UPDATE 11"])
async def test_a_statement_that_writes_another_number_of_rows_undoes_nothing(
    trail: Trail, status: str
) -> None:
    source = Source(IS)
    source.status = status
    with pytest.raises(IrreversibleError, match=f"a statement wrote {status.split()[1]} rows"):
        await reverting(source, UPDATE).apply()
    assert source.outcome == "rolled back"


async def test_a_key_that_several_rows_have_is_refused(trail: Trail) -> None:
    source = Source()
    source.rows = [[IS, IS]]
    with pytest.raises(IrreversibleError, match="2 rows of users have the key of one"):
        await reverting(source, UPDATE).apply()


async def test_an_update_that_changed_nothing_writes_nothing(trail: Trail) -> None:
    same = change(before={"id": 1, "a": "is"}, after={"id": 1, "a": "is"})
    source = Source(IS, IS)
    await reverting(source, same).apply()
    assert source.written == []


async def test_a_script_reads_each_row_once_without_a_lock_and_writes_nothing(
    trail: Trail,
) -> None:
    later = change(number=2, before={"id": 1, "a": "is"}, after={"id": 1, "a": "late"})
    source = Source({"id": "1", "a": "late"})
    script = await reverting(source, later, UPDATE).script()
    lines = script.splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("BEGIN;", "COMMIT;", 4)
    assert "'is'" in lines[1]
    assert "'was'" in lines[2]
    assert source.written == []
    assert [query.endswith("FOR UPDATE OF t") for query in source.read] == [False]


async def test_a_script_refuses_a_row_that_another_change_wrote_in_between(trail: Trail) -> None:
    later = change(number=2, before={"id": 1, "a": "other"}, after={"id": 1, "a": "late"})
    with pytest.raises(IrreversibleError, match="another change of the row is in between"):
        await reverting(Source({"id": "1", "a": "late"}), later, UPDATE).script()


async def test_a_script_knows_the_row_that_its_own_statements_remove(trail: Trail) -> None:
    """A row was deleted, and inserted again."""
    again = change("CREATE", number=2, after={"id": 1, "a": "is"})
    source = Source(IS)
    lines = (await reverting(source, again, DELETE).script()).splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["DELETE", "INSERT"]
    assert len(source.read) == 1


async def test_a_script_knows_the_row_under_the_key_that_it_gives_back(trail: Trail) -> None:
    moved = change(
        number=2, primary_key="2", before={"id": 1, "a": "is"}, after={"id": 2, "a": "is"}
    )
    source = Source({"id": "2", "a": "is"})
    lines = (await reverting(source, moved, UPDATE).script()).splitlines()
    assert len(lines) == 4
    assert len(source.read) == 1


async def test_changes_of_another_database_are_refused(trail: Trail) -> None:
    elsewhere = change(database="other", before={"id": 1}, after={"id": 1})
    with pytest.raises(IrreversibleError, match="of the database other, but this is db"):
        await reverting(Source(IS), elsewhere).script()


async def test_a_truncate_is_refused(trail: Trail) -> None:
    with pytest.raises(IrreversibleError, match="a TRUNCATE of"):
        await reverting(Source(), change("TRUNCATE")).script()


@pytest.mark.parametrize("one", [INSERT, UPDATE, DELETE], ids=["insert", "update", "delete"])
async def test_a_column_that_is_gone_is_named(trail: Trail, one: dict[str, Any]) -> None:
    source = Source(IS)
    source.columns = {"id": INT}
    with pytest.raises(IrreversibleError, match="no longer has the column a"):
        await reverting(source, one).script()


async def test_the_context_of_many_changes_names_the_first_hundred(trail: Trail) -> None:
    for number, named in ((100, 100), (101, 101)):
        changes = [
            change(number=one, before={"id": 1, "a": "is"}, after={"id": 1, "a": "is"})
            for one in range(number)
        ]
        source = Source(*[IS] * (2 * number))
        await reverting(source, *changes).apply()
        (said,) = [text for sql, text in source.executed if "emit_message" in sql]
        told = json.loads(str(said[0]))["revert_of"]
        assert len(told) == named
        assert told[99] == changes[99]["id"]
        assert (told[-1] == "and 1 more") is (number > 100)


def reference(on_delete: str = "c", child: str = "orders") -> Reference:
    return Reference(("public", child), ("user_id",), ("public", "users"), ("id",), on_delete)


async def test_a_row_that_others_would_go_with_is_not_deleted(trail: Trail) -> None:
    trail.references = [reference()]
    source = Source(IS)
    source.referring = 2
    with pytest.raises(IrreversibleError, match=r"2 rows of public\.orders refer to users 1"):
        await reverting(source, INSERT).apply()
    assert source.written == []
    assert 'c."user_id" = t."id" WHERE' in source.counted[0]
    source = Source(IS, None)
    await reverting(source, INSERT).apply()
    assert len(source.counted) == 1


async def test_what_refers_to_a_row_is_counted_only_where_it_would_go_with_it(
    trail: Trail,
) -> None:
    other = Reference(("public", "a"), ("b",), ("public", "c"), ("d",), "c")
    trail.references = [reference("a"), other]
    source = Source(IS, None)
    source.referring = 2
    await reverting(source, INSERT).apply()
    trail.references = [reference()]
    for one, rows in ((UPDATE, (IS, WAS)), (DELETE, (None, WAS))):
        source = Source(*rows)
        source.referring = 2
        await reverting(source, one).apply()
    assert source.counted == []


async def test_a_row_that_refers_to_itself_does_not_count(trail: Trail) -> None:
    trail.references = [reference(child="users")]
    source = Source(IS, None)
    await reverting(source, INSERT).apply()
    assert "(c.tableoid, c.ctid) <> (t.tableoid, t.ctid)" in source.counted[0]
    trail.references = [reference()]
    source = Source(IS, None)
    await reverting(source, INSERT).apply()
    assert "c.ctid) <> (t.tableoid" not in source.counted[0]


@pytest.mark.parametrize("leave", ["a", "users.a", "public.users.a"])
async def test_a_column_that_is_left_is_neither_compared_nor_written(
    trail: Trail, leave: str
) -> None:
    both = change(before={"id": 1, "a": "was", "b": "x"}, after={"id": 1, "a": "is", "b": "y"})
    source = Source({"id": "1", "a": "trigger", "b": "y"}, {"id": "1", "a": "again", "b": "x"})
    source.columns["b"] = TEXT
    await reverting(source, both, leave=(leave,)).apply()
    assert source.written[0].startswith('UPDATE "public"."users" AS t SET "b" = \'x\' WHERE')


async def test_a_column_that_no_table_has_is_a_typing_error(trail: Trail) -> None:
    for wrong in ("b", "orders.a", "app.users.a"):
        with pytest.raises(SettingError, match=f"--leave {wrong}: no table"):
            await reverting(Source(IS), UPDATE, leave=("a", wrong)).script()
        source = Source(IS, WAS)
        with pytest.raises(SettingError, match=f"--leave {wrong}: no table"):
            await reverting(source, UPDATE, leave=(wrong,)).apply()
        assert source.outcome == "rolled back"


async def test_a_deleted_rows_columns_have_to_be_there_too(trail: Trail) -> None:
    source = Source(None)
    source.columns = {"id": INT, "a": TEXT, "hidden": TEXT}
    with pytest.raises(IrreversibleError):
        await reverting(source, DELETE).script()
    trail.written = [change(after={"id": 1, "a": 1}), change(after={"id": 1, "a": 1, "hidden": 1})]
    source = Source(None)
    source.columns = {"id": INT, "a": TEXT, "hidden": TEXT}
    lines = (await reverting(source, DELETE).script()).splitlines()
    assert lines[1].startswith("INSERT")
