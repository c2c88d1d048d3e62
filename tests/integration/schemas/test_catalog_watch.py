"""DDL that no row follows leaves no trace in the stream: the catalog tells it, after all rows of
the old shape.
"""

from __future__ import annotations

import asyncio

import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.contract.schemas import renamed
from headrace.embedded.postgres_install import PostgresVersion
from headrace.testing.line import Delivered, Line, Lines, only
from tests.support.versions import on_both_versions

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOLD_TIMEOUT_S = 60.0


@async_fixture(loop_scope="module")
async def line(lines: Lines, version: PostgresVersion) -> Line:
    """A line that reads the catalog often; its publication has only what the test adds."""
    found = await lines(version, "FOR TABLE line_marker", HEADRACE_CATALOG_INTERVAL_S="0.05")
    await found.take()
    return found


async def reported(line: Line, table: str, change: str) -> tuple[Delivered, list[Delivered]]:
    """The schema event that tells this of a table, and what came before it."""
    before: list[Delivered] = []
    async with asyncio.timeout(TOLD_TIMEOUT_S):
        while True:
            for event in await line.take():
                if event.payload["table"] == table and change in [
                    c["change"] for c in event.payload.get("changes", ())
                ]:
                    return event, before
                before.append(event)
            await asyncio.sleep(0.05)


async def published(line: Line, table: str) -> None:
    await line.execute(
        f"CREATE TABLE {table} (id int PRIMARY KEY, n int); ALTER PUBLICATION headrace ADD TABLE "
        f"{table}",
        f"INSERT INTO {table} VALUES (1, 1)",
    )
    await line.take()


@on_both_versions
async def test_a_dropped_table_is_reported_and_made_again_is_another(line: Line) -> None:
    await published(line, "gone")
    await line.execute("DROP TABLE gone")
    event, _ = await reported(line, "gone", "table_dropped")
    assert (event.payload["version"], event.payload["columns"], event.payload["primary_key"]) == (
        2,
        [],
        [],
    )
    await line.execute(
        "CREATE TABLE gone (id int PRIMARY KEY); ALTER PUBLICATION headrace ADD TABLE gone",
        "INSERT INTO gone VALUES (2)",
    )
    again, _ = await reported(line, "gone", "table_replaced")
    assert (again.payload["version"], again.payload["resync"]) == (3, True)


async def test_a_table_taken_out_of_the_publication_is_reported_and_again_when_it_comes_back(
    line: Line,
) -> None:
    await published(line, "visitor")
    await line.execute("ALTER PUBLICATION headrace DROP TABLE visitor")
    removed, _ = await reported(line, "visitor", "table_removed")
    assert removed.payload["columns"] == []
    await line.execute("ALTER PUBLICATION headrace ADD TABLE visitor")
    back, _ = await reported(line, "visitor", "publication_changed")
    assert back.payload["resync"]
    assert [column["name"] for column in back.payload["columns"]] == ["id", "n"]


async def test_a_renamed_table_is_reported_under_both_names(line: Line) -> None:
    await published(line, "caterpillar")
    await line.execute("ALTER TABLE caterpillar RENAME TO butterfly")
    old, _ = await reported(line, "caterpillar", "table_renamed")
    assert old.payload["changes"] == [renamed("to", "public", "butterfly")]
    assert old.payload["columns"] == []


@pytest.mark.parametrize("row_after", [True, False])
async def test_a_table_that_took_back_its_name_is_copied_again_for_rows_of_its_other_name(
    line: Line, row_after: bool
) -> None:
    table = f"returned_{row_after}".lower()
    await published(line, table)
    await line.execute(
        f"ALTER TABLE {table} RENAME TO {table}_away; INSERT INTO {table}_away VALUES (2, 2);"
        f"ALTER TABLE {table}_away RENAME TO {table}"
        + (f"; INSERT INTO {table} VALUES (3, 3)" if row_after else "")
    )
    back, before = await reported(line, table, "table_renamed")
    assert back.payload["changes"] == [renamed("from", "public", f"{table}_away")]
    assert back.payload["resync"]
    assert (back.payload["tx"]["xid"] > 0) == row_after
    assert [event.row["id"] for event in only(before, "INSERT")] == [2]
    await line.execute(f"UPDATE {table} SET n = 4")
    assert await drained(line, table) == []


@on_both_versions
async def test_columns_that_change_without_a_row_are_reported(line: Line) -> None:
    await published(line, "quiet")
    await line.execute("ALTER TABLE quiet ADD c int DEFAULT 5")
    event, _ = await reported(line, "quiet", "column_added")
    change = {
        "change": "column_added",
        "column": "c",
        "data_type": "integer",
        "filled": 5,
        "filled_text": "5",
    }
    assert (event.payload["changes"], event.payload["resync"]) == ([change], False)
    assert (event.payload["tx"]["xid"], event.payload["tx"]["ts"]) == (0, None)
    await line.execute("INSERT INTO quiet VALUES (2, 2)")
    assert [event.operation for event in await line.take()] == ["INSERT"]


@on_both_versions
async def test_a_generated_column_that_becomes_a_plain_one_makes_the_table_be_copied_again(
    line: Line,
) -> None:
    await line.execute(
        "CREATE TABLE once_generated (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED);"
        "ALTER PUBLICATION headrace ADD TABLE once_generated",
        "INSERT INTO once_generated VALUES (1)",
    )
    assert await drained(line, "once_generated") == ["table_first_seen"]
    await line.execute(
        "ALTER TABLE once_generated ALTER g DROP EXPRESSION; INSERT INTO once_generated VALUES (2, 3)"
    )
    event, _ = await reported(line, "once_generated", "column_added")
    assert (event.payload["resync"], event.payload["tx"]["xid"] > 0) == (True, True)


async def test_a_rewrite_that_changes_no_type_is_reported(line: Line) -> None:
    await published(line, "rewritten")
    await asyncio.sleep(0.3)
    await line.execute("ALTER TABLE rewritten ALTER n TYPE int USING n * 2")
    event, _ = await reported(line, "rewritten", "table_rewritten")
    assert event.payload["resync"]


@on_both_versions
async def test_a_type_that_prints_existing_values_differently_is_reported_as_a_rewrite(
    line: Line,
) -> None:
    """PostgreSQL writes no row, and reads the same bytes as another text."""
    await line.execute("CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TYPE spot AS (x int)")
    for column in ("mood", "mood[]", "spot", "spot[]"):
        table = f"of_{column.replace('[]', 's')}"
        await line.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, n {column});"
            f" ALTER PUBLICATION headrace ADD TABLE {table}; INSERT INTO {table} VALUES (1)"
        )
    await line.take()
    await asyncio.sleep(0.3)
    await line.execute("ALTER TYPE mood ADD VALUE 'glad'; ALTER TYPE spot RENAME ATTRIBUTE x TO y")
    await asyncio.sleep(0.3)
    assert await line.take() == []
    await line.execute("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
    await line.execute("ALTER TYPE spot ADD ATTRIBUTE z int")
    missing = {"of_mood", "of_moods", "of_spot", "of_spots"}
    async with asyncio.timeout(TOLD_TIMEOUT_S):
        while missing:
            for event in await line.take():
                assert event.payload["changes"] == [{"change": "table_rewritten"}]
                assert event.payload["resync"]
                missing.remove(event.payload["table"])
            await asyncio.sleep(0.05)


async def test_of_two_migrations_between_two_readings_the_second_is_reported_too(
    lines: Lines,
) -> None:
    """The first is reported with its row immediately: a copy made then lacks the second."""
    line = await lines(18, HEADRACE_CATALOG_INTERVAL_S="3")
    tables = [f"twice_{n}" for n in range(4)]
    for table in tables:
        await line.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, a int); INSERT INTO {table} VALUES (1, 1)"
        )
    await line.take()
    for table in tables:
        await line.execute(
            f"ALTER TABLE {table} ADD c float8 DEFAULT random(); INSERT INTO {table} VALUES (2, 2)"
        )
        first = only(await line.take(), "SCHEMA")[-1]
        assert (first.payload["table"], first.payload["resync"]) == (table, True)
        await line.execute(f"ALTER TABLE {table} ALTER a TYPE int USING a * 100")
    missing = set(tables)
    async with asyncio.timeout(TOLD_TIMEOUT_S):
        while missing:
            for event in only(await line.take(), "SCHEMA"):
                if {"change": "table_rewritten"} in event.payload["changes"]:
                    assert event.payload["resync"]
                    missing.discard(event.payload["table"])
            await asyncio.sleep(0.05)


@on_both_versions
@pytest.mark.parametrize(
    "columns", ["id int PRIMARY KEY", "id int PRIMARY KEY, note text"], ids=["narrow", "toasted"]
)
async def test_a_table_that_was_unlogged_for_a_while_must_be_copied_again(
    lines: Lines, version: PostgresVersion, columns: str
) -> None:
    line = await lines(version, HEADRACE_CATALOG_INTERVAL_S="1")
    table = f"paused_{len(columns)}"
    await line.execute(
        f"CREATE TABLE {table} ({columns})",
        f"INSERT INTO {table} VALUES (1), (2)",
    )
    await reported(line, table, "table_first_seen")
    await line.execute(
        f"ALTER TABLE {table} SET UNLOGGED; INSERT INTO {table} VALUES (3); DELETE FROM {table} "
        "WHERE id = 1;"
        f"ALTER TABLE {table} SET LOGGED"
    )
    event, _ = await reported(line, table, "table_rewritten")
    assert event.payload["resync"]


async def test_a_publication_that_publishes_less_and_more_again_is_reported(line: Line) -> None:
    await published(line, "partly")
    await line.execute("ALTER PUBLICATION headrace SET (publish = 'insert, update')")
    less, _ = await reported(line, "partly", "publication_changed")
    change = {"change": "publication_changed", "publishes": ["insert", "update"]}
    assert (less.payload["changes"], less.payload["resync"]) == ([change], False)
    await line.execute(
        "DELETE FROM partly",
        "ALTER PUBLICATION headrace SET (publish = 'insert, update, delete, truncate')",
    )
    more, _ = await reported(line, "partly", "publication_changed")
    change = {
        "change": "publication_changed",
        "publishes": ["insert", "update", "delete", "truncate"],
    }
    assert (more.payload["changes"], more.payload["resync"]) == ([change], True)


async def test_a_publication_that_published_less_between_two_readings_is_reported(
    line: Line,
) -> None:
    await published(line, "blinked")
    await drained(line, "blinked")
    await line.execute(
        "ALTER PUBLICATION headrace SET (publish = 'insert, update'); DELETE FROM blinked;"
        "ALTER PUBLICATION headrace SET (publish = 'insert, update, delete, truncate')"
    )
    event, _ = await reported(line, "blinked", "publication_changed")
    assert event.payload["resync"]


async def test_the_catalog_never_overtakes_a_row_of_the_old_shape(line: Line) -> None:
    await published(line, "slow")
    with line.suite.frozen("wal-reader"):
        await line.execute(
            "INSERT INTO slow SELECT g, g FROM generate_series(2, 500) g",
            "ALTER TABLE slow DROP n",
        )
        await asyncio.sleep(0.5)
    event, before = await reported(line, "slow", "column_dropped")
    assert [row.row["n"] for row in before] == list(range(2, 501))
    assert [column["name"] for column in event.payload["columns"]] == ["id"]


async def drained(line: Line, table: str) -> list[str]:
    """The changes that are reported of a table until nothing more comes."""
    await asyncio.sleep(0.5)
    return [
        change["change"]
        for event in await line.take()
        if event.payload["table"] == table
        for change in event.payload.get("changes", ())
    ]


@on_both_versions
async def test_rows_that_come_and_go_with_a_partition_make_the_root_be_copied_again(
    line: Line,
) -> None:
    await line.execute(
        "ALTER PUBLICATION headrace SET (publish_via_partition_root = true)",
        "CREATE TABLE tree (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE tree_0 PARTITION OF tree FOR VALUES FROM (0) TO (10)",
        "ALTER PUBLICATION headrace ADD TABLE tree; INSERT INTO tree VALUES (1)",
    )
    assert await drained(line, "tree") == ["table_first_seen"]
    # An empty one brings nothing that has no event.
    await line.execute("CREATE TABLE tree_1 PARTITION OF tree FOR VALUES FROM (10) TO (20)")
    assert await drained(line, "tree") == []
    await line.execute(
        "CREATE TABLE tree_2 (id int PRIMARY KEY); INSERT INTO tree_2 VALUES (21)",
        "ALTER TABLE tree ATTACH PARTITION tree_2 FOR VALUES FROM (20) TO (30)",
    )
    attached, _ = await reported(line, "tree", "partitions_changed")
    assert attached.payload["resync"]
    # In one transaction: no reading of the catalog sees that it was away.
    for partition, beyond in (("tree_0", 10), ("tree_2", 30)):
        await line.execute(
            f"ALTER TABLE tree DETACH PARTITION {partition}; DELETE FROM {partition};"
            f"ALTER TABLE tree ATTACH PARTITION {partition} FOR VALUES FROM ({beyond - 10}) TO ({beyond});"
            f"INSERT INTO tree VALUES ({beyond - 1})"
        )
        again, _ = await reported(line, "tree", "partitions_changed")
        assert again.payload["resync"]
    await line.execute("ALTER TABLE tree DETACH PARTITION tree_2")
    detached, _ = await reported(line, "tree", "partitions_changed")
    assert detached.payload["resync"]
    await line.execute("DROP TABLE tree_1")
    dropped, _ = await reported(line, "tree", "partitions_changed")
    assert dropped.payload["version"] == detached.payload["version"] + 1
    await line.execute("ALTER PUBLICATION headrace SET (publish_via_partition_root = false)")


@on_both_versions
async def test_a_partition_truncated_alone_makes_the_root_be_copied_again(line: Line) -> None:
    await line.execute(
        "ALTER PUBLICATION headrace SET (publish_via_partition_root = true)",
        "CREATE TABLE shelf (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);"
        "CREATE TABLE shelf_0 PARTITION OF shelf FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE shelf_1 PARTITION OF shelf FOR VALUES FROM (10) TO (20);"
        "ALTER PUBLICATION headrace ADD TABLE shelf",
        "INSERT INTO shelf VALUES (1), (11)",
    )
    assert await drained(line, "shelf") == ["table_first_seen"]
    await line.execute("TRUNCATE shelf_0")
    event, _ = await reported(line, "shelf", "partitions_changed")
    assert event.payload["resync"]
    # The root's own is an event.
    await line.execute("TRUNCATE shelf")
    assert await drained(line, "shelf") == []
    await line.execute("ALTER PUBLICATION headrace SET (publish_via_partition_root = false)")


@pytest.mark.parametrize("name", ["still", "still_all"])
async def test_what_is_no_change_is_not_told(lines: Lines, line: Line, name: str) -> None:
    if name == "still_all":
        # Every table, unlogged ones to be.
        line = await lines(18, HEADRACE_CATALOG_INTERVAL_S="0.1")
        await line.execute(
            "CREATE TABLE still (id int PRIMARY KEY, n text)",
            "INSERT INTO still VALUES (1, '1')",
        )
    else:
        await published(line, "still")
    assert await drained(line, "still") in ([], ["table_first_seen"])
    await line.database.execute("VACUUM FULL still")
    await line.execute("TRUNCATE still; CREATE INDEX ON still (n); ANALYZE still")
    assert await drained(line, "still") == []


@on_both_versions
async def test_a_domain_is_reported_with_the_type_that_it_stands_on(line: Line) -> None:
    await line.execute(
        "CREATE DOMAIN hours AS timestamptz(3); CREATE DOMAIN shift AS hours; CREATE DOMAIN bag AS "
        "jsonb;"
        "CREATE DOMAIN names AS varchar(9)[]; CREATE TYPE feeling AS ENUM ('sad')"
    )
    await published(line, "stands")
    await line.execute("ALTER TABLE stands ADD s shift, ADD b bag, ADD l names, ADD e feeling")
    by_catalog, _ = await reported(line, "stands", "column_added")
    await line.execute("ALTER TABLE stands ADD t hours; INSERT INTO stands VALUES (2, 2)")
    with_row, _ = await reported(line, "stands", "column_added")
    assert (by_catalog.payload["tx"]["xid"], with_row.payload["tx"]["xid"] > 0) == (0, True)
    bases = {"s": "timestamp(3) with time zone", "b": "jsonb", "l": "character varying(9)[]"}
    for event, more in ((by_catalog, {}), (with_row, {"t": "timestamp(3) with time zone"})):
        columns = event.payload["columns"]
        stood_on = {one["name"]: one["base_type"] for one in columns if "base_type" in one}
        assert stood_on == {**bases, **more}
        assert {one["name"]: one["data_type"] for one in columns}["s"] == "shift"
