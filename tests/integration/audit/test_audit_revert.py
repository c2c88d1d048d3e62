"""`headrace audit revert` restores what was, to the last byte, or undoes nothing and says why.

The oracle is the source's own text of the row, taken before the change. Most trails are written
here as the audit-writer writes them, from events as the contract has them: without a suite.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.audit.revert import IrreversibleError
from headrace.cli.audit import read
from headrace.contract.selection import Selection
from headrace.errors import SettingError
from headrace.testing.database import Database
from tests.support.audit_trail import Trail, opened_trail, undo


@async_fixture
async def trail(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Trail]:
    async with opened_trail(database, monkeypatch) as opened:
        yield opened


DOCUMENTS: dict[str, Any] = {
    "null": None,
    '{"n": 12345678901234567890123}': {"n": "12345678901234567890123"},
    '{"price": 1.50}': {"price": 1.5},
    "18446744073709551616": "18446744073709551616",
    '{"deep": 0.1234567890123456789}': {"deep": "0.1234567890123456789"},
    '"\\\\ \\" é"': '\\ " é',
    '[1, "a", null, {}]': [1, "a", None, {}],
}


@pytest.mark.parametrize("data_type", ["json", "jsonb"])
@pytest.mark.parametrize(("text", "native"), DOCUMENTS.items(), ids=range(len(DOCUMENTS)))
async def test_a_document_comes_back_as_its_own_text(
    trail: Trail, text: str, native: Any, data_type: str
) -> None:
    """After an UPDATE, and after a DELETE; what its native form does not have of it is in `exact`."""
    database = trail.database
    await database.execute(f"CREATE TABLE t (id int PRIMARY KEY, doc {data_type} NOT NULL)")
    exact = {} if native in (DOCUMENTS['"\\\\ \\" é"'], [1, "a", None, {}]) else {"doc": text}
    await database.execute(f"INSERT INTO t VALUES (1, $1::text::{data_type})", text)
    was = await trail.text()
    first = {"id": 1, "doc": native}
    await trail.change("INSERT", data=first, **({"exact": exact} if exact else {}))
    await database.execute("UPDATE t SET doc = '{}'")
    updated = await trail.change(
        "UPDATE", data={"id": 1, "doc": {}}, old=first, **({"exact_old": exact} if exact else {})
    )
    await undo(updated)
    assert await trail.text() == was
    await database.execute("DELETE FROM t")
    deleted = await trail.change(
        "DELETE", data={"id": 1, "doc": None}, old=first, **({"exact_old": exact} if exact else {})
    )
    await undo(deleted)
    assert await trail.text() == was
    assert await database.fetchval("SELECT doc IS NULL FROM t") is False


async def test_sqls_null_stays_one_beside_a_documents_null(trail: Trail) -> None:
    await trail.database.execute("CREATE TABLE t (id int PRIMARY KEY, a jsonb, b jsonb)")
    await trail.database.execute("INSERT INTO t VALUES (1, 'null', NULL)")
    was = await trail.text()
    old = {"id": 1, "a": None, "b": None}
    await trail.database.execute("UPDATE t SET a = NULL, b = 'null'")
    change = await trail.change(
        "UPDATE", data=old, old=old, exact={"b": "null"}, exact_old={"a": "null"}
    )
    await undo(change)
    assert await trail.text() == was


@pytest.mark.parametrize("form", ["hex", "base64"])
async def test_bytea_comes_back_whichever_form_the_trail_has(trail: Trail, form: str) -> None:
    await trail.database.execute(
        "CREATE DOMAIN blob AS bytea; CREATE TABLE t (id int PRIMARY KEY, b bytea, d blob)"
    )
    await trail.database.execute("INSERT INTO t VALUES (1, 'hello', '\\x00ff')")
    was = await trail.text()

    def told(value: bytes) -> Any:
        return value if form == "hex" else base64.b64encode(value).decode()

    await trail.database.execute("DELETE FROM t")
    old = {"id": 1, "b": told(b"hello"), "d": told(b"\0\xff")}
    await undo(await trail.change("DELETE", data={"id": 1, "b": None, "d": None}, old=old))
    assert await trail.text() == was


async def two_changes(trail: Trail) -> tuple[str, str]:
    """n goes from 0 to 1, and from 1 to 2."""
    await trail.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 2)"
    )
    first = await trail.change(
        "UPDATE", '{"who": 1}', data={"id": 1, "n": 1}, old={"id": 1, "n": 0}
    )
    second = await trail.change(
        "UPDATE", '{"who": 2}', data={"id": 1, "n": 2}, old={"id": 1, "n": 1}
    )
    return first, second


@pytest.mark.parametrize("apply", [True, False])
async def test_a_row_that_changed_later_is_left_alone_and_the_change_is_named(
    trail: Trail, apply: bool
) -> None:
    first, second = await two_changes(trail)
    with pytest.raises(
        IrreversibleError, match=f"n changed since .UPDATE {second} at 2026-01-01 .*transaction 300"
    ):
        await undo(first, apply=apply)
    assert await trail.text() == ["(1,2)"]
    await undo(second)
    await undo(first)
    assert await trail.text() == ["(1,0)"]


@pytest.mark.parametrize("apply", [True, False])
async def test_another_change_between_two_that_are_undone_is_named(
    trail: Trail, apply: bool
) -> None:
    _, between = await two_changes(trail)
    await trail.database.execute("UPDATE t SET n = 3")
    await trail.change("UPDATE", '{"who": 1}', data={"id": 1, "n": 3}, old={"id": 1, "n": 2})
    with pytest.raises(IrreversibleError, match=between):
        await undo(context="who=1", apply=apply)
    assert await trail.text() == ["(1,3)"]


async def test_changes_of_one_row_are_undone_together_the_latest_first_also_across_keys(
    trail: Trail,
) -> None:
    await trail.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (5, 2)"
    )
    await trail.change("INSERT", '{"who": 1}', data={"id": 1, "n": 1})
    await trail.change("UPDATE", '{"who": 1}', data={"id": 1, "n": 2}, old={"id": 1, "n": 1})
    await trail.change("UPDATE", '{"who": 1}', data={"id": 5, "n": 2}, old={"id": 1, "n": 2})
    await undo(context="who=1", apply=False)
    assert await trail.text() == ["(5,2)"]
    await undo(context="who=1")
    assert await trail.text() == []


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ("DELETE FROM t", "the row no longer exists"),
        ("UPDATE t SET note = 'z'", "note changed since"),
    ],
)
async def test_a_change_that_the_trail_has_not_yet_is_noticed_in_the_row(
    trail: Trail, now: str, said: str
) -> None:
    await trail.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, note text); INSERT INTO t VALUES (1, 'a')"
    )
    change = await trail.change("INSERT", data={"id": 1, "note": "a"})
    await trail.database.execute(now)
    left = await trail.text()
    with pytest.raises(IrreversibleError, match=f"{said} .the trail has no later change"):
        await undo(change)
    assert await trail.text() == left


async def test_what_a_trigger_writes_otherwise_is_read_back_and_undone(trail: Trail) -> None:
    await trail.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, at int DEFAULT 0); INSERT INTO t VALUES (1, 2);"
        "CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.at := NEW.at + 1; "
        "RETURN NEW; END';"
        "CREATE TRIGGER touched BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION touch()"
    )
    old, new = {"id": 1, "n": 1, "at": 0}, {"id": 1, "n": 2, "at": 0}
    change = await trail.change("UPDATE", data=new, old=old)
    with pytest.raises(IrreversibleError, match="read back from t, at would not be what it was"):
        await undo(change)
    assert await trail.text() == ["(1,2,0)"]


async def test_a_column_that_a_trigger_sets_can_be_left_as_it_is(trail: Trail) -> None:
    """Also between two changes of the row; one that comes back has what the trail has."""
    await trail.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, at int NOT NULL); INSERT INTO t VALUES (1, 3, "
        "7);"
        "CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.at := OLD.at + 1; "
        "RETURN NEW; END';"
        "CREATE TRIGGER touched BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION touch()"
    )
    rows = [{"id": 1, "n": n, "at": at} for n, at in ((1, 5), (2, 6), (3, 7))]
    await trail.change("UPDATE", '{"who": 1}', data=rows[1], old=rows[0])
    await trail.change("UPDATE", '{"who": 1}', data=rows[2], old=rows[1])
    await trail.change(
        "DELETE",
        '{"who": 1}',
        data={"id": 2, "n": None, "at": None},
        old={"id": 2, "n": 8, "at": 9},
    )
    for slip in ("att", "other.at"):
        with pytest.raises(
            SettingError, match=f"--leave {slip}: no table of these changes has this column"
        ):
            await undo(context="who=1", leave=[slip, "n", "at"])
    await undo(context="who=1", leave=["t.at"])
    assert await trail.text() == ["(1,1,9)", "(2,8,9)"]


CASCADES = {
    "children": "CREATE TABLE child (id int PRIMARY KEY, t int REFERENCES t ON DELETE CASCADE)",
    "nulls": "CREATE TABLE child (id int PRIMARY KEY, t int REFERENCES t ON DELETE SET NULL)",
}


@pytest.mark.parametrize("apply", [True, False])
@pytest.mark.parametrize("kind", CASCADES)
async def test_rows_of_a_cascade_come_back_behind_the_row_that_they_refer_to(
    trail: Trail, capsys: pytest.CaptureFixture[str], kind: str, apply: bool
) -> None:
    database = trail.database
    await database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, up int REFERENCES t ON DELETE "
        f"CASCADE);{CASCADES[kind]}"
    )
    await database.execute(
        "INSERT INTO t VALUES (1, NULL), (2, 1), (3, 2); INSERT INTO child VALUES (1, 1), (2, 3)"
    )
    was, children = (
        await trail.text(),
        await database.fetch("SELECT child::text FROM child ORDER BY id"),
    )
    await database.execute("DELETE FROM t WHERE id = 1")
    # In the log's order: what a DELETE cascades to comes behind it.
    for row, up in ((1, None), (2, 1), (3, 2)):
        await trail.change(
            "DELETE", '{"who": 1}', data={"id": row, "up": None}, old={"id": row, "up": up}
        )
    for row, parent in ((1, 1), (2, 3)):
        old, new = {"id": row, "t": parent}, {"id": row, "t": None}
        if kind == "children":
            await trail.change("DELETE", '{"who": 1}', "child", data=new, old=old)
        else:
            await trail.change("UPDATE", '{"who": 1}', "child", data=new, old=old)
    await undo(context="who=1", apply=apply)
    if not apply:
        await database.execute(capsys.readouterr().out)
    assert await trail.text() == was
    assert await database.fetch("SELECT child::text FROM child ORDER BY id") == children


@pytest.mark.parametrize("apply", [True, False])
async def test_a_row_is_not_removed_while_others_would_go_with_it(
    trail: Trail, apply: bool
) -> None:
    await trail.database.execute(f"CREATE TABLE t (id int PRIMARY KEY);{CASCADES['children']}")
    await trail.database.execute("INSERT INTO t VALUES (1); INSERT INTO child VALUES (5, 1)")
    inserted = await trail.change("INSERT", '{"who": 1}', data={"id": 1})
    with pytest.raises(
        IrreversibleError, match=r"1 rows of public\.child refer to t 1, and would be deleted"
    ):
        await undo(inserted, apply=apply)
    await trail.change("INSERT", '{"who": 1}', "child", data={"id": 5, "t": 1})
    await undo(context="who=1", apply=apply)
    assert await trail.text() == ([] if apply else ["(1)"])


@pytest.mark.parametrize("apply", [True, False])
async def test_only_rows_that_are_removed_themselves_may_refer_to_a_removed_one(
    trail: Trail, apply: bool
) -> None:
    """Neither other removed rows count, nor one that only gets another key."""
    database = trail.database
    await database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY); {CASCADES['children']};"
        "CREATE TABLE other (id int PRIMARY KEY); INSERT INTO other VALUES (1);"
        "INSERT INTO t VALUES (1), (2); INSERT INTO child VALUES (5, 1), (6, NULL), (8, 2)"
    )
    await trail.change("INSERT", '{"who": 1}', data={"id": 1})
    await trail.change("INSERT", '{"who": 1}', "other", data={"id": 1})
    await trail.change("INSERT", '{"who": 1}', "child", data={"id": 6, "t": None})
    await trail.change("INSERT", '{"who": 2}', data={"id": 2})
    await trail.change(
        "UPDATE", '{"who": 2}', "child", data={"id": 8, "t": 2}, old={"id": 7, "t": 2}
    )
    for context, row in (("who=1", 1), ("who=2", 2)):
        with pytest.raises(
            IrreversibleError, match=rf"1 rows of public\.child refer to t {row}, and would be"
        ):
            await undo(context=context, apply=apply)
    assert await trail.text() == ["(1)", "(2)"]
    assert await database.fetchval("SELECT count(*) FROM child") == 3


@pytest.mark.parametrize("apply", [True, False])
async def test_a_row_may_refer_to_a_removed_one_if_it_is_removed_before_also_under_another_key(
    trail: Trail, capsys: pytest.CaptureFixture[str], apply: bool
) -> None:
    database = trail.database
    await database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY); {CASCADES['children']};"
        "INSERT INTO t VALUES (2); INSERT INTO child VALUES (6, 2)"
    )
    await trail.change("INSERT", '{"who": 1}', data={"id": 2})
    await trail.change("INSERT", '{"who": 1}', "child", data={"id": 5, "t": 2})
    await trail.change(
        "UPDATE", '{"who": 1}', "child", data={"id": 6, "t": 2}, old={"id": 5, "t": 2}
    )
    await undo(context="who=1", apply=apply)
    if not apply:
        await database.execute(capsys.readouterr().out)
    assert await trail.text() == []
    assert await database.fetchval("SELECT count(*) FROM child") == 0


@pytest.mark.parametrize("apply", [True, False])
async def test_a_row_under_another_key_than_in_the_change_is_not_removed_with_those_that_refer_to_it(
    trail: Trail, apply: bool
) -> None:
    database = trail.database
    await database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE child (id int PRIMARY KEY,"
        " t int REFERENCES t ON DELETE CASCADE ON UPDATE CASCADE);"
        "INSERT INTO t VALUES (2); INSERT INTO child VALUES (6, 2)"
    )
    await trail.change("INSERT", '{"who": 1}', data={"id": 1})
    await trail.change("UPDATE", '{"who": 1}', data={"id": 2}, old={"id": 1})
    with pytest.raises(
        IrreversibleError, match=r"1 rows of public\.child refer to t 1, and would be"
    ):
        await undo(context="who=1", apply=apply)
    assert await database.fetchval("SELECT count(*) FROM child") == 1


async def test_a_document_that_an_earlier_version_may_have_changed_is_not_restored(
    trail: Trail,
) -> None:
    """It kept neither JSON's null nor long numbers nor zeros (`1.50`); others are as they were."""
    database = trail.database
    await database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, doc jsonb, n int); INSERT INTO t VALUES (1, '{}', 2)"
    )
    new = {"id": 1, "doc": {}, "n": 2}
    changes = [
        await trail.change("UPDATE", data=new, old={"id": 1, "doc": doc, "n": 1})
        for doc in (
            None,
            {"n": ["12345678901234567890123"]},
            [{"price": 1.5}],
            {"zip": "12345", "null": None, "n": 7},
        )
    ]
    sent_before = await trail.change("INSERT", data={"id": 2, "doc": None, "n": 1})
    await database.execute("ALTER TABLE changes DROP COLUMN exact, DROP COLUMN source")
    await trail.destination.prepare()
    for change in changes[:3]:
        with pytest.raises(
            IrreversibleError, match="earlier version that wrote the change stored neither"
        ):
            await undo(change)
    assert await trail.text() == ["(1,{},2)"]
    await undo(changes[3])
    assert (
        await database.fetchval("SELECT doc::text FROM t")
        == '{"n": 7, "zip": "12345", "null": null}'
    )
    # The earlier row is in a change of the earlier version, which this one undoes.
    await database.execute("INSERT INTO t VALUES (2, '1', 2)")
    later = await trail.change("UPDATE", data={"id": 2, "doc": 1, "n": 2})
    with pytest.raises(IrreversibleError, match="earlier version"):
        await undo(later)
    await read.show(sent_before, as_json=True)


async def test_a_type_that_rounds_what_was_is_read_back_and_undone(trail: Trail) -> None:
    await trail.database.execute("CREATE TABLE t (id int PRIMARY KEY, n numeric(10, 1))")
    change = await trail.change("DELETE", data={"id": 1, "n": None}, old={"id": 1, "n": "1.25"})
    with pytest.raises(IrreversibleError, match="n would not be what it was"):
        await undo(change)
    assert await trail.text() == []


async def test_a_column_that_the_trail_does_not_have_is_not_made_up(trail: Trail) -> None:
    await trail.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, hidden text, n int); INSERT INTO t VALUES (2, 'h', 2)"
    )
    await trail.change("INSERT", data={"id": 1, "n": 1})
    deleted = await trail.change("DELETE", data={"id": 1, "n": None}, old={"id": 1, "n": 1})
    updated = await trail.change("UPDATE", data={"id": 2, "n": 2}, old={"id": 2, "n": 1})
    for change in (deleted, updated):
        with pytest.raises(IrreversibleError, match="does not have these columns of t: hidden"):
            await undo(change)
    assert await trail.text() == ["(2,h,2)"]


async def test_a_column_that_was_added_since_takes_its_default(trail: Trail) -> None:
    await trail.database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    await trail.change("INSERT", data={"id": 1, "n": 1})
    deleted = await trail.change("DELETE", data={"id": 1, "n": None}, old={"id": 1, "n": 1})
    await trail.database.execute("ALTER TABLE t ADD COLUMN added int DEFAULT 7")
    with pytest.raises(IrreversibleError, match="added"):
        await undo(deleted)
    await trail.change("INSERT", data={"id": 9, "n": 1, "added": 7})
    await undo(deleted)
    assert await trail.text() == ["(1,1,7)"]


async def test_a_redacted_value_is_not_undone(trail: Trail) -> None:
    await trail.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n text); INSERT INTO t VALUES (1, 'b')"
    )
    trail.redact = Selection(exclude_columns=("t.n",))
    change = await trail.change("UPDATE", data={"id": 1, "n": "b"}, old={"id": 1, "n": "a"})
    with pytest.raises(IrreversibleError, match="HEADRACE_AUDIT_REDACT"):
        await undo(change)
    assert await trail.text() == ["(1,b)"]


async def test_a_column_that_was_renamed_is_named(trail: Trail) -> None:
    await trail.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, mail text); INSERT INTO t VALUES (1, 'b')"
    )
    change = await trail.change("UPDATE", data={"id": 1, "email": "b"}, old={"id": 1, "email": "a"})
    with pytest.raises(
        IrreversibleError, match="t no longer has the column email: it was renamed or dropped"
    ):
        await undo(change)
    assert await trail.text() == ["(1,b)"]


async def test_a_key_that_moved_since_still_finds_the_row(trail: Trail) -> None:
    await trail.database.execute(
        "CREATE TABLE t (a int, id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 100, 2)"
    )
    old, new = {"a": 1, "id": 100, "n": 1}, {"a": 1, "id": 100, "n": 2}
    await undo(await trail.change("UPDATE", data=new, old=old, key=["a"]))
    assert await trail.text() == ["(1,100,1)"]


async def test_a_row_with_a_key_over_1000_bytes_is_looked_at_and_undone(
    trail: Trail, capsys: pytest.CaptureFixture[str]
) -> None:
    long, longer = "é" * 800, "é" * 900
    await trail.database.execute("CREATE TABLE t (a text, id int, n int, PRIMARY KEY (a, id))")
    await trail.database.execute("INSERT INTO t VALUES ($1, 1, 2)", longer)
    key = ["a", "id"]
    await trail.change("INSERT", data={"a": long, "id": 1, "n": 0}, key=key)
    await trail.change("UPDATE", data={"a": long, "id": 1, "n": 1}, key=key)
    moved = await trail.change(
        "UPDATE", data={"a": longer, "id": 1, "n": 2}, old={"a": long, "id": 1, "n": None}, key=key
    )
    keys = [
        row["primary_key"]
        for row in await trail.database.fetch("SELECT primary_key FROM changes ORDER BY position")
    ]
    await read.at("1h", "t", keys[2])
    assert '"n": 2' in capsys.readouterr().out
    with pytest.raises(read.NotFoundError, match="UPDATE before"):
        await read.at("1h", "t", keys[0])
    # Of the old row only the key was sent: the rest is what the changes before left.
    await trail.database.execute(
        "UPDATE changes SET before = before - 'n' WHERE id = $1::text::uuid", moved
    )
    await undo(moved)
    assert await trail.database.fetchval("SELECT a = $1 AND n = 1 FROM t", long)


async def test_another_databases_row_and_one_from_before_a_gap_are_not_taken_for_what_was(
    trail: Trail,
) -> None:
    await trail.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 3)"
    )
    await trail.change("INSERT", data={"id": 1, "n": 1})
    others = await trail.change("INSERT", data={"id": 1, "n": 2})
    await trail.database.execute(
        "UPDATE changes SET database = 'other' WHERE id = $1::text::uuid", others
    )
    change = await trail.change("UPDATE", data={"id": 1, "n": 3})
    await undo(change)
    assert await trail.text() == ["(1,1)"]
    await trail.database.execute("UPDATE t SET n = 3")
    gap = (
        "INSERT INTO headrace_audit_gaps SELECT 's', max(created_at), 1, 'slot_moved' FROM changes"
    )
    await trail.database.execute(gap)
    with pytest.raises(IrreversibleError, match=r"may be missing \(slot_moved"):
        await undo(change)
    with pytest.raises(IrreversibleError, match="of the database other"):
        await undo(others)
    assert await trail.text() == ["(1,3)"]


async def test_an_id_that_is_none_is_refused_in_the_commands_own_words(trail: Trail) -> None:
    with pytest.raises(SettingError, match="'nonsense' is not a change's id"):
        await undo("nonsense")
