"""With the event trigger, changes that leave no trace in the log are reported in order; without a
suite it disturbs no session.
"""

from __future__ import annotations

import asyncpg
import pytest

from headrace.contract.schemas import renamed as renaming
from headrace.embedded.postgres_install import PostgresVersion
from headrace.postgres import ddl_trigger
from headrace.testing.line import Delivered, Line, Lines

pytestmark = pytest.mark.asyncio(loop_scope="module")


def told(messages: list[Delivered]) -> list[tuple[str, str]]:
    """Each message as (table, operation), schema events as (table, change)."""
    return [
        (
            m.payload["table"],
            m.payload["changes"][0]["change"] if m.operation == "SCHEMA" else m.operation,
        )
        for m in messages
    ]


async def with_trigger(lines: Lines, version: PostgresVersion) -> Line:
    line = await lines(version)
    await line.execute(ddl_trigger.INSTALL)
    return line


@pytest.mark.parametrize("version", [16, 18])
async def test_a_drop_is_told_between_the_rows_before_and_after_it(
    lines: Lines, version: PostgresVersion
) -> None:
    line = await with_trigger(lines, version)
    messages = await line.take(
        "CREATE TABLE gone (id int PRIMARY KEY); CREATE TABLE stays (id int PRIMARY KEY)",
        "INSERT INTO gone VALUES (1); INSERT INTO stays VALUES (1)",
        "INSERT INTO stays VALUES (2); DROP TABLE gone; INSERT INTO stays VALUES (3)",
    )
    assert told(messages) == [
        ("gone", "table_first_seen"),
        ("gone", "INSERT"),
        ("stays", "table_first_seen"),
        ("stays", "INSERT"),
        ("stays", "INSERT"),
        ("gone", "table_dropped"),
        ("stays", "INSERT"),
    ]
    positions = [(m.payload["tx"]["lsn"], m.payload["tx"]["seq"]) for m in messages]
    assert positions == sorted(positions)


async def test_a_rename_and_a_rewrite_are_told_in_their_transaction(lines: Lines) -> None:
    line = await with_trigger(lines, 18)
    messages = await line.take(
        "CREATE TABLE early (id int PRIMARY KEY, t text)",
        "INSERT INTO early VALUES (1, 'a')",
        "INSERT INTO early VALUES (2, 'b'); ALTER TABLE early ALTER t TYPE text USING upper(t);"
        "ALTER TABLE early RENAME TO late; INSERT INTO late VALUES (3, 'c')",
    )
    assert told(messages)[1:] == [
        ("early", "INSERT"),
        ("early", "INSERT"),
        ("early", "table_rewritten"),
        ("early", "table_renamed"),
        ("late", "table_renamed"),
        ("late", "INSERT"),
    ]
    rewritten, renamed = messages[3].payload, messages[4].payload
    assert rewritten["resync"] is True
    assert renamed["changes"] == [renaming("to", "public", "late")]
    assert messages[5].payload["resync"] is True


async def test_what_was_rolled_back_is_not_told(lines: Lines) -> None:
    line = await with_trigger(lines, 18)
    await line.execute(
        "CREATE TABLE kept (id int PRIMARY KEY); INSERT INTO kept VALUES (1)",
        "BEGIN; DROP TABLE kept; ROLLBACK; INSERT INTO kept VALUES (2)",
    )
    assert told(await line.take())[1:] == [("kept", "INSERT"), ("kept", "INSERT")]


async def test_what_others_write_under_its_prefix_stops_nothing(lines: Lines) -> None:
    line = await with_trigger(lines, 18)
    await line.execute("CREATE TABLE calm (id int PRIMARY KEY)")
    for content in (
        "",
        "garbage",
        "[]",
        '{"tables": [{"relation": "x"}]}',
        '{"event": "sql_drop", "tables": [7]}',
    ):
        await line.database.execute(
            "SELECT pg_logical_emit_message(true, 'headrace_ddl', $1::text)", content
        )
    await line.execute("INSERT INTO calm VALUES (1)")
    assert told(await line.take())[1:] == [("calm", "INSERT")]


FORGED = (
    '{{"event": "sql_drop", "tables": [{{"relation": {oid}}}]}}',
    '{{"event": "table_rewrite", "tables": [{{"relation": {oid}}}]}}',
    '{{"event": "ddl_command_end", "tables": [{{"relation": {oid}, "schema": "public", "table": "other"}}]}}',
)


@pytest.mark.parametrize("installed", [True, False], ids=["trigger", "no_trigger"])
async def test_what_the_catalog_does_not_bear_out_is_not_believed(
    lines: Lines, installed: bool
) -> None:
    """Anybody who may connect may write under the trigger's prefix, and read the tables' numbers."""
    line = await (with_trigger(lines, 18) if installed else lines(18))
    table = f"true_{installed}".lower()
    await line.execute(
        f"CREATE TABLE {table} (id int PRIMARY KEY, note text)",
        f"INSERT INTO {table} VALUES (1, 'a')",
    )
    await line.take()
    oid = await line.database.fetchval(f"SELECT '{table}'::regclass::oid::int8")
    role = f"nobody_{line.database.name}_{installed}".lower()
    await line.execute(f'CREATE ROLE "{role}"')
    try:
        for content in FORGED:
            forged = content.format(oid=oid)
            await line.execute(
                f"SET LOCAL ROLE \"{role}\"; SELECT pg_logical_emit_message(true, 'headrace_ddl', "
                f"'{forged}')"
            )
        await line.execute(f"INSERT INTO {table} VALUES (2, 'b')")
        assert told(await line.take()) == [(table, "INSERT")]
    finally:
        await line.execute(f'DROP ROLE "{role}"')


async def test_it_is_installed_twice_and_removed_without_a_trace(lines: Lines) -> None:
    database = (await lines(18)).database
    await database.execute(ddl_trigger.INSTALL)
    await database.execute(ddl_trigger.INSTALL)
    assert await database.fetchval(ddl_trigger.INSTALLED, list(ddl_trigger.TRIGGERS))
    await database.execute("CREATE TABLE t (id int); ALTER TABLE t ADD x int; DROP TABLE t")
    await database.execute(ddl_trigger.REMOVE)
    assert await database.fetchval("SELECT count(*) FROM pg_event_trigger") == 0
    with pytest.raises(asyncpg.InvalidSchemaNameError):
        await database.execute("CREATE TABLE headrace_ddl.t ()")


async def test_a_rewrite_during_the_replay_of_another_is_told(lines: Lines) -> None:
    line = await lines(18, HEADRACE_PROGRESS_INTERVAL_S="600")
    await line.execute(ddl_trigger.INSTALL)
    await line.execute("CREATE TABLE twice (id int PRIMARY KEY, t text)")
    await line.execute("INSERT INTO twice VALUES (1, 'a')")
    await line.execute("ALTER TABLE twice ALTER t TYPE text USING upper(t)")
    await line.execute("INSERT INTO twice VALUES (2, 'b')")
    await line.take()
    await line.suite.kill("wal-reader")
    await line.execute("ALTER TABLE twice ALTER t TYPE text USING lower(t)")
    await line.execute("INSERT INTO twice VALUES (3, 'c')")
    await line.suite.start("wal-reader")
    assert told(await line.take()) == [("twice", "table_rewritten"), ("twice", "INSERT")]
