"""Without REPLICA IDENTITY FULL, `headrace audit revert` takes a row's old values from its earlier
changes only where nothing else can have changed the row in between.

The tables change by real DDL. The oracle is the source's own text of the row.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.audit.revert import IrreversibleError
from headrace.cli.audit import read
from headrace.testing.database import Database
from headrace.testing.line import running_line
from headrace.testing.plugin import OwnNats
from tests.support.audit_trail import Trail, opened_trail, undo, written


@async_fixture
async def trail(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Trail]:
    async with opened_trail(database, monkeypatch) as opened:
        yield opened


# Ways to change the rows of a table without an event for each of them.
UNSEEN = {
    "swapped by a rename": "CREATE TABLE next (id int PRIMARY KEY, n int, note text);"
    "INSERT INTO next SELECT id, n * 10, note FROM t; ALTER TABLE t RENAME TO last;"
    "ALTER TABLE next RENAME TO t",
    "dropped and made again": "CREATE TABLE next AS SELECT id, n * 10 AS n, note FROM t;"
    "DROP TABLE t; ALTER TABLE next RENAME TO t; ALTER TABLE t ADD PRIMARY KEY (id)",
    "rewritten": "ALTER TABLE t ALTER n TYPE int USING n * 10",
    "emptied and filled again": "TRUNCATE t; INSERT INTO t VALUES (1, 10, 'a')",
    "emptied and filled by another type": "TRUNCATE t; ALTER TABLE t ALTER n TYPE bigint;"
    "INSERT INTO t VALUES (1, 10, 'a')",
}


@pytest.mark.parametrize("apply", [True, False])
@pytest.mark.parametrize("happened", UNSEEN)
async def test_a_row_from_before_the_table_changed_unseen_is_not_taken_for_what_was(
    trail: Trail, happened: str, apply: bool
) -> None:
    database = trail.database
    await database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, note text)")
    await database.execute("INSERT INTO t VALUES (1, 1, 'a')")
    await trail.change("INSERT", data={"id": 1, "n": 1, "note": "a"})
    await database.execute(UNSEEN[happened])
    await database.execute("UPDATE t SET note = 'b'")
    updated = await trail.change("UPDATE", data={"id": 1, "n": 10, "note": "b"})
    with pytest.raises(IrreversibleError, match="rows may have changed without the trail"):
        await undo(updated, apply=apply)
    # Whenever the publisher finds it: what the trail has by now is no longer of these files.
    await trail.schema("table_rewritten", resync=True)
    with pytest.raises(IrreversibleError, match="rows may have changed without the trail"):
        await undo(updated, apply=apply)
    assert await trail.text() == ["(1,10,b)"]
    await database.execute("UPDATE t SET note = 'c'")
    await trail.change("UPDATE", data={"id": 1, "n": 10, "note": "c"})
    await database.execute("UPDATE t SET note = 'd'")
    latest = await trail.change("UPDATE", data={"id": 1, "n": 10, "note": "d"})
    await undo(latest)
    assert await trail.text() == ["(1,10,c)"]


async def test_a_change_that_the_writer_was_not_to_audit_ends_what_is_certain(trail: Trail) -> None:
    database = trail.database
    await database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, note text)")
    await trail.change("INSERT", data={"id": 1, "n": 1, "note": "a"})
    await trail.skip("UPDATE", data={"id": 1, "n": 10, "note": "a"})
    await database.execute("INSERT INTO t VALUES (1, 10, 'b')")
    change = await trail.change("UPDATE", data={"id": 1, "n": 10, "note": "b"})
    with pytest.raises(IrreversibleError, match="rows may have changed without the trail"):
        await undo(change)
    assert await trail.text() == ["(1,10,b)"]


async def test_a_deleted_rows_added_column_is_not_guessed_from_todays_default(trail: Trail) -> None:
    """Of the deleted row only the key was sent; it had 7, and the default is another by now."""
    database = trail.database
    await database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    await trail.change("INSERT", data={"id": 1, "n": 1})
    await database.execute("ALTER TABLE t ADD COLUMN added int DEFAULT 7")
    await trail.schema("column_added")
    deleted = await trail.change("DELETE", data={"id": 1, "n": None, "added": None})
    await database.execute("ALTER TABLE t ALTER COLUMN added SET DEFAULT 9")
    await trail.change("INSERT", data={"id": 2, "n": 1, "added": 9})
    with pytest.raises(IrreversibleError, match="given a column"):
        await undo(deleted)
    assert await trail.text() == []


async def test_a_deleted_rows_key_is_not_all_of_it_because_a_table_of_this_name_had_no_more(
    trail: Trail,
) -> None:
    database = trail.database
    await database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    await trail.change("INSERT", data={"id": 1})
    await database.execute("DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, n int)")
    deleted = await trail.change("DELETE", data={"id": 1, "n": None})
    await trail.change("INSERT", data={"id": 2, "n": 1})
    with pytest.raises(IrreversibleError, match="rows may have changed without the trail"):
        await undo(deleted)
    assert await trail.text() == []


async def test_a_deleted_rows_key_is_not_all_of_it_beyond_a_gap(trail: Trail) -> None:
    """The column that it had may have been added and filled there."""
    database = trail.database
    await database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    await trail.change("INSERT", data={"id": 1})
    await database.execute("INSERT INTO headrace_audit_gaps VALUES ('s', now(), 7, 'moved')")
    await database.execute("ALTER TABLE t ADD n int")
    deleted = await trail.change("DELETE", data={"id": 1, "n": None})
    with pytest.raises(IrreversibleError, match="may be missing"):
        await undo(deleted)
    assert await trail.text() == []


async def test_old_values_of_a_table_that_is_published_in_part_are_not_known(trail: Trail) -> None:
    database = trail.database
    await database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, note text)")
    await trail.change("INSERT", data={"id": 1, "n": 1, "note": "a"})
    await database.execute("INSERT INTO t VALUES (1, 10, 'b')")
    updated = await trail.change("UPDATE", data={"id": 1, "n": 10, "note": "b"})
    await database.execute("CREATE PUBLICATION p FOR TABLE t WITH (publish = 'insert, delete')")
    with pytest.raises(IrreversibleError, match="its publication leaves out updates"):
        await undo(updated)
    await database.execute("CREATE PUBLICATION q FOR TABLE t")
    await undo(updated)
    assert await trail.text() == ["(1,1,a)"]


@pytest.mark.parametrize(
    "publication",
    ["FOR TABLE t", "FOR TABLES IN SCHEMA public", "FOR TABLE t, TABLES IN SCHEMA public"],
)
async def test_a_table_that_left_its_publication_for_a_moment_is_certain_from_then_on(
    trail: Trail, publication: str
) -> None:
    """It is back when the writer reads the catalog, for a change from before that."""
    database = trail.database
    await database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, note text)")
    await database.execute(f"CREATE PUBLICATION p {publication}")
    inserted = await database.fetchval(
        "INSERT INTO t VALUES (1, 1, 'a') RETURNING xmin::text::int8"
    )
    listed = publication.removeprefix("FOR ")
    await database.execute(f"ALTER PUBLICATION p DROP {listed}")
    await database.execute("UPDATE t SET n = 10")
    await database.execute(f"ALTER PUBLICATION p ADD {listed}")
    await trail.change("INSERT", data={"id": 1, "n": 1, "note": "a"}, tx=trail.tx(inserted))
    await database.execute("UPDATE t SET note = 'b'")
    updated = await trail.change("UPDATE", data={"id": 1, "n": 10, "note": "b"})
    with pytest.raises(IrreversibleError, match="rows may have changed without the trail"):
        await undo(updated)
    assert await trail.text() == ["(1,10,b)"]


async def test_a_table_that_was_published_before_its_first_change_is_certain_from_there(
    trail: Trail,
) -> None:
    database = trail.database
    await database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    await database.execute("CREATE PUBLICATION p FOR TABLE t")
    inserted = await database.fetchval("INSERT INTO t VALUES (1, 1) RETURNING xmin::text::int8")
    await trail.change("INSERT", data={"id": 1, "n": 1}, tx=trail.tx(inserted))
    await database.execute("UPDATE t SET n = 2")
    updated = await trail.change("UPDATE", data={"id": 1, "n": 2})
    await undo(updated)
    assert await trail.text() == ["(1,1)"]


async def test_a_row_at_a_time_is_marked_where_the_table_may_have_changed_unseen(
    trail: Trail, capsys: pytest.CaptureFixture[str]
) -> None:
    await trail.database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    await trail.change("INSERT", data={"id": 1, "n": 1})
    await read.at("2030-01-01", "t", "1")
    assert capsys.readouterr().err == ""
    await trail.schema("table_rewritten", resync=True)
    await trail.change("INSERT", data={"id": 2, "n": 2})
    await read.at("2030-01-01", "t", "1")
    shown = capsys.readouterr()
    assert '"n": 1' in shown.out
    assert "Not certain: the table was rewritten" in shown.err


async def test_another_rows_values_under_a_key_of_other_columns_are_not_what_was(
    trail: Trail,
) -> None:
    """The key was `a`, then `id`, and is `a` again: 2 was a key of either."""
    database = trail.database
    await database.execute("CREATE TABLE t (a int PRIMARY KEY, id int, n int)")
    await database.execute("INSERT INTO t VALUES (5, 2, 8)")
    await trail.change("INSERT", data={"a": 2, "id": 9, "n": 1}, key=["a"])
    change = await trail.change("UPDATE", data={"a": 5, "id": 2, "n": 8}, key=["id"])
    await trail.change("INSERT", data={"a": 7, "id": 7, "n": 7}, key=["a"])
    with pytest.raises(IrreversibleError, match="rows may have changed without the trail"):
        await undo(change)
    assert await trail.text() == ["(5,2,8)"]


async def test_a_trail_of_an_earlier_version_is_certain_from_its_next_change_on(
    trail: Trail,
) -> None:
    database = trail.database
    await database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    await database.execute("INSERT INTO t VALUES (1, 2)")
    await trail.change("INSERT", data={"id": 1, "n": 1})
    change = await trail.change("UPDATE", data={"id": 1, "n": 2})
    await database.execute(
        "ALTER TABLE headrace_audit_tables DROP COLUMN relation_id, DROP COLUMN since_position,"
        " DROP COLUMN since_ordinal, DROP COLUMN files"
    )
    for _ in range(2):
        with pytest.raises(IrreversibleError, match="an earlier version wrote the trail"):
            await undo(change)
        # The writer's start gives the trail what it lacks.
        await trail.destination.prepare()
    trail.forget()
    await trail.change("UPDATE", data={"id": 1, "n": 3})
    latest = await trail.change("UPDATE", data={"id": 1, "n": 4})
    await database.execute("UPDATE t SET n = 4")
    await undo(latest)
    assert await trail.text() == ["(1,3)"]


@pytest.mark.slow
async def test_a_row_from_before_a_rewrite_is_refused_through_the_whole_suite(
    trail: Trail, own_nats: OwnNats, tmp_path: Path
) -> None:
    """Also before the publisher has read in the catalog that there was a rewrite."""
    database, server = trail.database, await own_nats()
    await database.execute(
        "DROP TABLE changes, headrace_audit_state, headrace_audit_tables, headrace_audit_gaps"
    )
    await database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, note text)")
    settings = {"HEADRACE_CATALOG_INTERVAL_S": "300"}
    async with running_line(database, server, tmp_path, settings, "FOR TABLE t") as line:
        await line.suite.start("audit-writer")
        await database.execute("INSERT INTO t VALUES (1, 1, 'a')")
        await database.execute("UPDATE t SET note = 'b'")
        _, updated = await written(line, 2)
        await database.execute("ALTER TABLE t ALTER n TYPE int USING n * 10")
        await database.execute("UPDATE t SET note = 'c'")
        *_, rewritten = await written(line, 3)
        with pytest.raises(IrreversibleError, match="rows may have changed without the trail"):
            await undo(rewritten)
        assert await trail.text() == ["(1,10,c)"]
        await database.execute("CREATE TABLE other (id int PRIMARY KEY, n int, note text)")
        await database.execute("INSERT INTO other VALUES (1, 2, 'z')")
        await database.execute("ALTER TABLE t RENAME TO t_old; ALTER TABLE other RENAME TO t")
        await database.execute("ALTER PUBLICATION headrace ADD TABLE t")
        await database.execute("UPDATE t SET note = 'y'")
        await database.execute("UPDATE t SET note = 'x'")
        *_, first, latest = await written(line, 5)
        await undo(latest)
        assert await trail.text() == ["(1,2,y)"]
        for change in (first, updated):
            with pytest.raises(IrreversibleError):
                await undo(change)
        assert await trail.text() == ["(1,2,y)"]
