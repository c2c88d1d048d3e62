"""`headrace verify --repair` writes exactly the rows that differ into SQLite, DuckDB and MariaDB,
while source and mirror move. The oracles are SQL of the source, and each target's own client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.testing.process import command
from headrace.testing.seeded import World, running, seed, world
from headrace.testing.servers import SessionServers
from tests.support.database_copies import DatabaseCopy, database_copy
from tests.support.meanwhile import written_meanwhile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

KINDS = ("sqlite", "duckdb", "mariadb")
ONCE = ("--wait", "60", "--repair")
NAMES = ["things", "keyless", "odd"]
TABLES = """
CREATE TABLE things (id int, kind text, n int, price numeric(9, 2), body text, note text, moment timestamptz,
    size float8, bits bit(3), data bytea, tags text[], doc jsonb, plain json, spot point,
    active boolean, day date, uid uuid, whole numeric, PRIMARY KEY (id, kind));
CREATE TABLE keyless (n int, t text);
ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE TABLE odd ("i`d %s" int PRIMARY KEY, "te""xt ?" text);
"""
THINGS = """INSERT INTO things SELECT g, 'k ' || g % 3, g, g / 3.0, 'it''s "' || g,
    E'\\\\ %s \\n',
    '2026-01-01Z'::timestamptz + g * interval '1.5 s', g / 3.0, '101', decode(md5(g::text), 'hex'),
    ARRAY['a"b', NULL, g::text], '{{"a": 1.50}}', '{{ "b" : 1e2 }}', point(g, 1), g % 2 = 0,
    '2026-01-01'::date + g, md5(g::text)::uuid, g * 1e20 FROM generate_series({}, {}) g"""
# Columns that SQL of every server prints alike.
SHOWN = ("id", "kind", "n", "price", "body")
# All columns, with bytes that each client can print.
WHOLE = """id, kind, n, price, body, note, moment, size, bits, hex(data), tags, doc, plain, spot,
    active, day, uid, whole"""
DAMAGE = {
    "things": (
        "DELETE FROM {0} WHERE id = 17",
        "UPDATE {0} SET data = NULL, tags = NULL, price = 1.25, moment = NULL WHERE id IN (18, 400)",
        "UPDATE {0} SET kind = 'other' WHERE id = 19",
        "INSERT INTO {0} (id, kind) VALUES (9999, 'extra')",
        """UPDATE {0} SET doc = NULL, plain = NULL, size = NULL, uid = NULL, whole = NULL,
        bits = NULL, spot = NULL, active = NULL, day = NULL, note = NULL WHERE id = 20""",
    ),
    "keyless": (
        "INSERT INTO {0} VALUES (1, 'x'), (5, NULL)",
        "DELETE FROM {0} WHERE t = 'once'",
    ),
    "odd": ("UPDATE {0} SET {1}te{2}xt ?{1} = 'changed'",),
}


@async_fixture(scope="module", loop_scope="module", name="world")
async def the_world(
    session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    settings = {"HEADRACE_CATALOG_INTERVAL_S": "0.2"}
    folder = tmp_path_factory.mktemp("world")
    async with world(session_servers, folder, TABLES, settings=settings) as made:
        await made.source.execute(
            f"{THINGS.format(1, 500)}; "
            "INSERT INTO keyless VALUES (1, 'x'), (2, 'once'), (2, 'y'), (2, 'y'); "
            """INSERT INTO odd VALUES (1, 'it''s \\ 100 %s "x" `y`')"""
        )
        yield made


@async_fixture(params=KINDS, loop_scope="module", name="copy")
async def the_copy(
    world: World, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[DatabaseCopy]:
    async with database_copy(request.param, world, tmp_path, request) as made:
        yield made


async def whole_rows(copy: DatabaseCopy, table: str) -> list[Any]:
    """Every column of the rows that the load leaves alone, as the target's own client shows it."""
    columns, test = {
        "things": (WHOLE, "id NOT BETWEEN 100 AND 110"),
        "keyless": ("n, t", "n < 100"),
        "odd": ("*", "1 = 1"),
    }[table]
    found = await asyncio.to_thread(copy.read, f"SELECT {columns} FROM {table} WHERE {test}")
    return sorted(map(repr, found))


async def run(copy: DatabaseCopy, statements: Sequence[str]) -> None:
    for statement in statements:
        await asyncio.to_thread(copy.read, statement)


def damage(copy: DatabaseCopy, table: str) -> list[str]:
    quote, doubled = ("`", '"') if copy.kind == "mariadb" else ('"', '""')
    return [statement.format(table, quote, doubled) for statement in DAMAGE[table]]


async def observe(copy: DatabaseCopy) -> None:
    """Let the server note each row that is written, where it can. The load's are not counted."""
    if copy.kind == "duckdb":
        return
    await run(copy, ["CREATE TABLE written (what text, id int)"])
    for what, row in (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
        note = f"INSERT INTO written VALUES ('{what}', {row}.id)"
        body = f"BEGIN {note}; END" if copy.kind == "sqlite" else note
        trigger = f"CREATE TRIGGER on_{what} AFTER {what} ON things FOR EACH ROW {body}"
        await run(copy, [trigger])


async def written(copy: DatabaseCopy) -> list[tuple[str, int]]:
    others = "SELECT what, id FROM written WHERE id NOT BETWEEN 100 AND 110"
    found = await asyncio.to_thread(copy.read, others)
    return sorted((what, int(number)) for what, number in found)


def load(number: int) -> str:
    return (
        f"UPDATE things SET n = {number} WHERE id BETWEEN 100 AND 110; "
        f"INSERT INTO keyless VALUES ({number + 100}, 'w')"
    )


async def test_exactly_the_rows_that_differ_are_written(
    world: World, copy: DatabaseCopy, tmp_path: Path
) -> None:
    await seed(
        copy.to, world.source, world.environment["HEADRACE_SLOT"], [("public", n) for n in NAMES]
    )
    mirror = world.mirror(tmp_path, copy.to, *NAMES)
    async with running(mirror):
        await copy.equals(world, "things", SHOWN)
        await copy.equals(world, "keyless", ("n", "t"))
        before = {name: await whole_rows(copy, name) for name in NAMES}
        for name in NAMES:
            await run(copy, damage(copy, name))
        await observe(copy)
        async with written_meanwhile(world.source, load, pause_s=0.2):
            code, verdicts = await mirror.verified(*ONCE)
        assert (code, {one["table"]: one["repaired"] for one in verdicts}) == (
            0,
            {"things": 7, "keyless": 3, "odd": 1},
        ), verdicts
        await copy.equals(world, "things", SHOWN)
        await copy.equals(world, "keyless", ("n", "t"))
        # All columns are what the mirror itself had written.
        assert {name: await whole_rows(copy, name) for name in NAMES} == before
        if copy.kind != "duckdb":
            # 19 has another key: one row goes, and another one comes.
            assert await written(copy) == [
                ("DELETE", 19),
                ("DELETE", 9999),
                ("INSERT", 17),
                ("INSERT", 19),
                *(("UPDATE", number) for number in (18, 20, 400)),
            ]
        assert "row_missing" not in mirror.log

    # The mirror may be away, and continues after a repair as if nothing had happened.
    await run(copy, damage(copy, "things")[:1])
    done = await command(world.environment, "verify", "--to", copy.to, "--table", "things", *ONCE)
    assert done.code == 0, done.err
    shown, _, result = done.out.partition("= things")
    assert "missing  id=17 kind='k 2'" in shown, done.out
    assert "1 repaired" in result
    await world.source.execute("UPDATE things SET body = 'after' WHERE id = 17")
    async with running(mirror):
        await copy.equals(world, "things", SHOWN)
        assert "row_missing" not in mirror.log
    await world.source.execute(
        "UPDATE things SET n = id WHERE n <> id; DELETE FROM keyless WHERE t = 'w'; "
        "UPDATE things SET body = 'before' WHERE id = 17"
    )
