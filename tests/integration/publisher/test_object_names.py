"""Names of objects, also inside containers, have one text in events and in snapshots, with any
setting of the database.
"""

from __future__ import annotations

import pytest

from headrace.postgres.connection import connect
from headrace.postgres.replication import conninfo
from headrace.settings import PostgresSettings
from headrace.spark.session import COPY_SESSION
from headrace.testing.line import Lines

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETUP = """
    CREATE TABLE users (id int PRIMARY KEY); CREATE TYPE mood AS ENUM ('sad'); CREATE SCHEMA "Odd";
    CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql AS 'SELECT $1 * 2';
    CREATE TEXT SEARCH CONFIGURATION plain (COPY = simple);
    CREATE TYPE spot AS (at interval, seen timestamptz, of regclass)
"""
VALUES = {
    "a": ("regclass", "'users'", "public.users"),
    "b": ("regtype", "'mood'", "public.mood"),
    "c": ("regproc", "'twice'", "public.twice"),
    "d": ("regprocedure", "'twice(int)'", "public.twice(integer)"),
    "e": ("regconfig", "'plain'", "public.plain"),
    "f": ("regnamespace", "'\"Odd\"'", '"Odd"'),
    "g": ("regclass", "'pg_class'", "pg_class"),
    "h": ("regtype", "'int4'", "integer"),
    "i": ("regoper", "'pg_catalog.||/'", "||/"),
    "j": ("regdictionary", "'simple'", "simple"),
    "k": ("regclass[]", "'{users,pg_class}'", "{public.users,pg_class}"),
    "l": ("interval[]", "'{1 year 2 mons,-1 days}'", "{P1Y2M,P-1D}"),
    "m": (
        "spot",
        "ROW('1 day', '2020-01-01 02:00:00+02', 'users')",
        '(P1D,"2020-01-01 00:00:00+00",public.users)',
    ),
    "n": ("interval", "'1 year 2 mons'", "P1Y2M"),
}


async def test_an_event_and_a_snapshot_print_the_same_name(lines: Lines) -> None:
    line = await lines(18)
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in VALUES.items())
    await line.execute(f"{SETUP}; CREATE TABLE named (id int PRIMARY KEY, {columns})")
    await line.execute(
        f"INSERT INTO named VALUES (1, {', '.join(literal for _, literal, _ in VALUES.values())})"
    )
    expected = {name: text for name, (_, _, text) in VALUES.items()}
    (event,) = [found for found in await line.rows() if found.payload["table"] == "named"]
    assert {name: event.row[name] for name in VALUES} == expected

    database = line.database
    for setting in (
        "search_path = 'public'",
        "quote_all_identifiers = on",
        "IntervalStyle = 'sql_standard'",
    ):
        await database.execute(f'ALTER DATABASE "{database.name}" SET {setting}')
    settings = PostgresSettings("127.0.0.1", database.port, database.name, database.user)
    reader = await connect(settings, "a snapshot's reader", **COPY_SESSION)
    printed = ", ".join(f"format('%s', {name}) AS {name}" for name in VALUES)
    assert dict(await reader.fetchrow(f"SELECT {printed} FROM public.named")) == expected
    await reader.close()


async def test_a_walsender_is_given_the_settings_of_snapshots() -> None:
    """At its start, so that neither a role's nor a database's own count."""
    given = conninfo(PostgresSettings("127.0.0.1", 1, "d", "u"), "x")
    for setting in (
        "search_path=pg_catalog",
        "quote_all_identifiers=off",
        "IntervalStyle=iso_8601",
    ):
        assert f"-c {setting}" in given
