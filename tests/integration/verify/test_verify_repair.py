"""`headrace verify --repair` writes exactly the rows that differ, while source and mirror move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.testing.process import command
from headrace.testing.seeded import World, running, seed, world
from headrace.testing.servers import SessionServers
from tests.support.meanwhile import written_meanwhile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

VERIFY_ONCE = ("--wait", "60")
TABLES = """
CREATE TABLE things (id int, kind text, at timestamptz, size float8, bits bit(3), data bytea,
    tags text[], spot point, active boolean, code char(5), PRIMARY KEY (id, kind));
CREATE TABLE keyless (n int, t text);
ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE TYPE mood AS ENUM ('glad', 'so "so"');
CREATE TABLE documents (id int PRIMARY KEY, body json, mood mood, moods mood[]);
"""
THINGS = """INSERT INTO things SELECT g, 'k ' || g % 3, now() - g * interval '1 s', g / 3.0, '101',
    decode(md5(g::text), 'hex'), ARRAY['a"b', NULL, g::text], point(g, 1), g % 2 = 0, 'x'
    FROM generate_series({}, {}) g"""
DOCUMENTS = """INSERT INTO documents SELECT g, '{ "a":  1.50, "b" : null }', 'so "so"',
    ARRAY['glad', 'so "so"', NULL]::mood[] FROM generate_series(1, 30) g"""
DOCUMENTS_DAMAGE = """
UPDATE documents SET body = '[1]', mood = 'glad', moods = NULL WHERE id = 2;
UPDATE documents SET body = '{ "a":  1.5, "b" : null }' WHERE id = 3;
DELETE FROM documents WHERE id = 4;
INSERT INTO documents VALUES (99, '{}', 'x', '{}');
UPDATE documents SET body = '{"b": null, "a": 1.50}' WHERE id = 5;
"""
DAMAGE = """
DELETE FROM things WHERE id = 17;
UPDATE things SET data = '\\x00', tags = NULL, active = NOT active WHERE id IN (18, 400);
UPDATE things SET kind = 'other' WHERE id = 19;
INSERT INTO things (id, kind) VALUES (9999, 'extra');
INSERT INTO keyless VALUES (1, 'x'), (5, NULL);
DELETE FROM keyless WHERE ctid = (SELECT min(ctid) FROM keyless WHERE n = 2);
"""


@async_fixture(scope="module", loop_scope="module", name="world")
async def the_world(
    session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    settings = {"HEADRACE_CATALOG_INTERVAL_S": "0.2"}
    folder = tmp_path_factory.mktemp("world")
    async with world(session_servers, folder, TABLES, settings=settings) as made:
        yield made


async def rows_of(world: World, table: str) -> tuple[list[str], list[str]]:
    """The rows of source and mirror, as each server prints them."""
    # A mirror keeps the meaning of a json column.
    row = "ROW(id, body::jsonb, mood, moods)" if table == "documents" else "one"
    query = f"SELECT {row}::text FROM {table} one ORDER BY 1"
    source, target = await world.source.fetch(query), await world.target.fetch(query)
    return [row[0] for row in source], [row[0] for row in target]


async def equal(world: World, table: str) -> None:
    async with asyncio.timeout(60):
        while True:
            source, target = await rows_of(world, table)
            if source == target:
                return
            await asyncio.sleep(0.1)


def load(number: int) -> str:
    return (
        f"UPDATE things SET size = {number} WHERE id BETWEEN 100 AND 110; "
        f"INSERT INTO keyless VALUES ({number + 100}, 'w')"
    )


async def test_exactly_the_rows_that_differ_are_written_while_both_sides_move(
    world: World, tmp_path: Path
) -> None:
    names = ["things", "keyless", "documents"]
    to = world.target.dsn
    await seed(to, world.source, world.environment["HEADRACE_SLOT"], [("public", n) for n in names])
    mirror = world.mirror(tmp_path, to, *names)
    async with running(mirror):
        await world.source.execute(
            f"{THINGS.format(1, 500)}; INSERT INTO keyless VALUES (1, 'x'), (2, 'y'), (2, 'y'); "
            f"{DOCUMENTS}"
        )
        for name in names:
            await equal(world, name)
        await world.target.execute(DAMAGE)
        before = await world.target.fetch("SELECT id, xmin::text AS writer FROM things")
        async with written_meanwhile(world.source, load):
            code, verdicts = await mirror.verified(
                *VERIFY_ONCE, "--repair", "--table", "things", "--table", "keyless"
            )
        assert (code, [verdict["repaired"] for verdict in verdicts]) == (0, [6, 3]), verdicts
        for name in names:
            await equal(world, name)
        # Only these rows were written, by one transaction; the mirror has changed 100 to 110.
        after = await world.target.fetch("SELECT id, xmin::text AS writer FROM things")
        known = {(row["id"], row["writer"]) for row in before}
        written = {(r["id"], r["writer"]) for r in after if not 100 <= r["id"] <= 110} - known
        assert {number for number, _ in written} == {17, 18, 19, 400}
        assert len({writer for _, writer in written}) == 1
        assert "row_missing" not in mirror.log

        # For people: the rows first, then the result.
        await world.target.execute("UPDATE things SET size = -1 WHERE id = 3")
        options = ("verify", "--to", to, "--table", "things", *VERIFY_ONCE, "--repair")
        done = await command(world.environment, *options)
        assert done.code == 0, done.err
        shown, _, result = done.out.partition("= things")
        assert "changed  id='3' kind='k 0'  (size)" in shown
        assert "1 repaired" in result
        await equal(world, "things")

        # Columns whose texts may differ although their meaning is equal, as that of row 5 does.
        await world.target.execute(DOCUMENTS_DAMAGE)
        known_documents = await writers(world)
        code, verdicts = await mirror.verified(*VERIFY_ONCE, "--repair", "--table", "documents")
        assert (code, [verdict["repaired"] for verdict in verdicts]) == (0, [4]), verdicts
        assert {number for number, _ in await writers(world) - known_documents} == {2, 3, 4}
        await equal(world, "documents")


async def writers(world: World) -> set[tuple[int, str]]:
    """Each document with the transaction that has written it."""
    found = await world.target.fetch("SELECT id, xmin::text AS writer FROM documents")
    return {(row["id"], row["writer"]) for row in found}


async def test_a_repair_is_not_repeated(world: World) -> None:
    done = await command(
        world.environment, "verify", "--to", world.target.dsn, "--repair", "--every", "5"
    )
    assert (done.code, "--every" in done.err) == (2, True)
