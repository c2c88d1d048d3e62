"""An event names the key that its table had when the row was written, however far the catalog is
ahead by then.
"""

from __future__ import annotations

import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.testing.line import Line, Lines, only

pytestmark = pytest.mark.asyncio(loop_scope="module")
TO_B = "ALTER TABLE {0} DROP CONSTRAINT {0}_pkey; ALTER TABLE {0} ADD PRIMARY KEY (b)"


@async_fixture(loop_scope="module")
async def line(lines: Lines) -> Line:
    """A line that publishes all tables; nothing of an earlier test is left in it."""
    found = await lines()
    await found.take()
    return found


async def behind(line: Line, *statements: str) -> list[tuple[str, list[str]]]:
    """The events of these statements, read after all of them: each row's table and key."""
    await line.suite.stop("publisher")
    for statement in statements:
        await line.execute(statement)
    await line.suite.start("publisher")
    rows = only(await line.take(timeout_s=60), "INSERT", "UPDATE", "DELETE", "TRUNCATE")
    return [(row.payload["table"], row.payload["key"]) for row in rows]


async def test_a_key_that_moved_to_another_column_is_named_as_each_row_had_it(line: Line) -> None:
    await line.execute(
        "CREATE TABLE moved (a int PRIMARY KEY, b int NOT NULL);"
        "CREATE TABLE whole (a int PRIMARY KEY, b int NOT NULL); ALTER TABLE whole REPLICA "
        "IDENTITY FULL;"
        "INSERT INTO whole VALUES (0, 0)"
    )
    await line.take()
    found = await behind(
        line,
        "INSERT INTO moved VALUES (1, 100); INSERT INTO whole VALUES (1, 100)",
        TO_B.format("moved"),
        TO_B.format("whole"),
        "INSERT INTO moved VALUES (2, 200); INSERT INTO whole VALUES (2, 200)",
    )
    assert found == [("moved", ["a"]), ("whole", ["a"]), ("moved", ["b"]), ("whole", ["b"])]


async def test_a_table_that_is_gone_by_then_still_has_the_key_of_its_rows(line: Line) -> None:
    await line.execute(
        "CREATE TABLE gone (a int, b int, c int, PRIMARY KEY (c, a)); INSERT INTO gone VALUES (1, "
        "2, 3)"
    )
    await line.take()
    found = await behind(
        line,
        "CREATE TABLE quick (n int, id int PRIMARY KEY); INSERT INTO quick VALUES (1, 2); UPDATE "
        "quick SET n = 3;"
        "DELETE FROM quick; DROP TABLE quick",
        "INSERT INTO gone VALUES (4, 5, 6)",
        "DROP TABLE gone",
    )
    assert found == [("quick", ["id"])] * 3 + [("gone", ["c", "a"])]


async def test_the_keys_columns_come_in_its_order_and_included_ones_are_none_of_them(
    line: Line,
) -> None:
    await line.execute(
        "CREATE TABLE covering (note text, a int, b int, PRIMARY KEY (b, a) INCLUDE (note));"
        "CREATE TABLE by_index (a int NOT NULL, b int NOT NULL); CREATE UNIQUE INDEX by_b ON "
        "by_index (b) INCLUDE (a);"
        "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_b; CREATE TABLE keyless (a int);",
        "INSERT INTO covering VALUES ('x', 1, 2); UPDATE covering SET a = 3; DELETE FROM covering",
        "INSERT INTO by_index VALUES (1, 2); INSERT INTO keyless VALUES (1); TRUNCATE covering",
    )
    rows = only(await line.take(), "INSERT", "UPDATE", "DELETE", "TRUNCATE")
    keys = [(row.payload["table"], row.payload["key"]) for row in rows]
    covering = ("covering", ["b", "a"])
    assert keys == [covering] * 3 + [("by_index", ["b"]), ("keyless", []), covering]
    assert rows[1].payload["old"] == {"a": 1, "b": 2}


async def test_a_key_of_which_a_column_is_left_out_is_no_key(lines: Lines) -> None:
    line = await lines(HEADRACE_EXCLUDE_COLUMNS="tenants.tenant")
    await line.take()
    (row,) = await line.rows(
        "CREATE TABLE tenants (tenant int, id int, PRIMARY KEY (tenant, id))",
        "INSERT INTO tenants VALUES (1, 2)",
    )
    assert (row.row, row.payload["key"]) == ({"id": 2}, [])
