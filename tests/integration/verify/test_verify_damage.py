"""The verifier finds any wrong row of a mirror, names it by key and column, and names no other row.

The suite creates the mirrors, PostgreSQL's text shows that they are equal, and the tests stop and
damage them.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import nats
import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.mirror import opened
from headrace.settings import load
from headrace.testing.mirror_process import MirrorProcess, verified
from headrace.testing.seeded import World, running, world
from headrace.testing.servers import SessionServers
from headrace.verify import Patience, Verdict, Verifier

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATIENCE_S = 60.0
SETUP = """
CREATE TABLE wide (id int PRIMARY KEY, t text, c char(5), f float8, r real, b bytea, n numeric, o boolean, i bigint,
                   at timestamptz, local timestamp, d date, z timetz, iv interval, j jsonb, l int[], u uuid);
CREATE TABLE texts (id int PRIMARY KEY, j json);
CREATE TABLE docs (id int PRIMARY KEY, j jsonb);
CREATE TABLE keyless (n int, t text);
ALTER TABLE keyless REPLICA IDENTITY FULL;
"""
ROWS = 3000
FILL = f"""
INSERT INTO wide SELECT g, 'Row ' || g, 'ab', 0.1 * g, 0.1::real * g, decode(lpad(to_hex(g), 8, '0'), 'hex'),
    g * 1.10, g % 2 = 0, g * 4000000000, '2025-01-01'::timestamptz + g * interval '1.000001 s',
    '2025-01-01'::timestamp + g * interval '1 s', '2025-01-01'::date + g, '12:00:00+02', g * interval '1 mon 2 h',
    jsonb_build_object('a', g, 's', 'x'), ARRAY[g, NULL, 3], md5(g::text)::uuid FROM generate_series(1, {ROWS}) g;
UPDATE wide SET t = '', j = NULL WHERE id IN (14, 15);
UPDATE wide SET t = NULL WHERE id = 16;
INSERT INTO texts SELECT g, format('{{"b": %s, "a": [1, "x"]}}', g)::json FROM generate_series(1, 20) g;
INSERT INTO keyless SELECT g / 2, 'k' FROM generate_series(1, 100) g;
"""


@dataclass(frozen=True)
class Damage:
    """A change of row `id` (with a separate statement where a PostgreSQL needs one), and
    where it shows.
    """

    id: int
    column: str
    sqlite: str
    postgresql: str = ""


DAMAGES = (
    Damage(1, "t", "SET t = 'Row 2'"),
    Damage(2, "t", "SET t = 'row 2'"),
    Damage(3, "t", "SET t = 'Row 3 '"),
    Damage(4, "t", "SET t = 'Row\u00a04'"),
    Damage(5, "f", "SET f = 0.5000000000000001"),
    Damage(6, "f", "SET f = 'NaN'"),
    Damage(7, "r", "SET r = 0.70000005"),
    Damage(8, "b", "SET b = x'0000000800'", r"SET b = '\x0000000800'"),
    Damage(9, "b", "SET b = x''", "SET b = ''"),
    Damage(10, "n", "SET n = '11.000'"),
    Damage(11, "n", "SET n = '12.11'"),
    Damage(12, "o", "SET o = 0", "SET o = false"),
    Damage(13, "i", "SET i = i + 1"),
    Damage(14, "t", "SET t = NULL"),
    Damage(15, "j", "SET j = 'null'"),
    Damage(16, "t", "SET t = ''"),
    Damage(17, "at", "SET at = '2025-01-01T00:00:17.000018Z'"),
    Damage(18, "at", "SET at = '2025-01-01T01:00:18.000018Z'"),
    Damage(19, "local", "SET local = NULL"),
    Damage(20, "d", "SET d = '2025-01-22'"),
    Damage(21, "z", "SET z = '12:00:00+03:00'"),
    Damage(22, "iv", "SET iv = 'P1Y10MT44H1S'"),
    Damage(23, "j", """SET j = '{"a": "23", "s": "x"}'"""),
    Damage(24, "j", """SET j = '{"a": 24.0, "s": "x"}'"""),
    Damage(25, "j", """SET j = '{"a": 25, "s": "x", "n": null}'"""),
    Damage(26, "j", """SET j = '"{\\"a\\": 26, \\"s\\": \\"x\\"}"'"""),
    Damage(27, "j", "SET j = NULL"),
    Damage(28, "j", """SET j = '{"a": 12345678901234567890123, "s": "x"}'"""),
    Damage(29, "l", "SET l = '{29,0,3}'"),
    Damage(30, "l", "SET l = '{29,NULL}'"),
    Damage(31, "u", "SET u = '00000000-0000-0000-0000-000000000000'"),
    Damage(32, "c", "SET c = 'ab  x'"),
)
MISSING, EXTRA = 40, 99_999
# Documents that lose something in MessagePack or in a double, and what is then left of them.
DEEP = "[" * 600 + "]" * 600
LOSSY = (
    ("null", None),
    ('{"n": 12345678901234567890123}', '{"n": "12345678901234567890123"}'),
    ("18446744073709551616", '"18446744073709551616"'),
    ('{"price": 0.1234567890123456789}', '{"price": "0.1234567890123456789"}'),
    ('{"price": 0.1234567890123456789}', '{"price": 0.12345678901234568}'),
    ('{"price": 1.50}', '{"price": 1.5}'),
    (DEEP, f'"{DEEP}"'),
)


@async_fixture(scope="module", loop_scope="module")
async def source(
    session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    async with world(session_servers, tmp_path_factory.mktemp("damage"), SETUP) as made:
        yield made


@async_fixture(scope="module", loop_scope="module")
async def mirrors(
    source: World, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, MirrorProcess]:
    """Mirrors that have every row, and are stopped."""
    folder = tmp_path_factory.mktemp("mirrors")
    made = await source.mirrors(folder, "wide", "texts", "keyless", "docs")
    async with running(*made.values()):
        for number, (exact, _) in enumerate(LOSSY):
            await source.source.execute("INSERT INTO docs VALUES ($1, $2::jsonb)", number, exact)
        # Last, so that everything exists once its rows do.
        await source.source.execute(FILL)
        for mirror in made.values():
            tables = ("--table", "wide", "--table", "texts", "--table", "keyless")
            code, verdicts = await mirror.verified("--wait", "60", *tables)
            assert code == 0, (verdicts, mirror.log[-2000:])
            assert sum(verdict["rows"] for verdict in verdicts) == ROWS + 20 + 100
    # The verifier is not believed here: what it calls equal is PostgreSQL's own text of all rows.
    for table in ("wide", "texts", "keyless"):
        whole = f"SELECT md5(string_agg(t::text, '|' ORDER BY t::text)) FROM {table} t"
        whole = whole.replace("t::text", "replace(t::text, ' ', '')") if table == "texts" else whole
        assert await source.source.fetchval(whole) == await source.target.fetchval(whole), table
    return made


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_each_damaged_value_is_found_and_named_and_no_other(
    source: World, mirrors: dict[str, MirrorProcess], kind: str
) -> None:
    statements = [
        f"UPDATE wide {(one.postgresql if kind == 'postgresql' else '') or one.sqlite} WHERE id = {one.id}"
        for one in DAMAGES
    ]
    statements += [
        f"DELETE FROM wide WHERE id = {MISSING}",
        f"INSERT INTO wide (id, t) VALUES ({EXTRA}, 'x')",
    ]
    await do(source, mirrors[kind], statements)
    verdict = await verdict_of(source, mirrors[kind], "wide")
    found = {int(one.key[0]): (str(one.kind), one.columns) for one in verdict.found}
    expected = {one.id: ("changed", (one.column,)) for one in DAMAGES}
    assert found == {**expected, MISSING: ("missing", ()), EXTRA: ("extra", ())}
    assert not verdict.equal


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_document_that_lost_something_on_its_way_is_found(
    source: World, mirrors: dict[str, MirrorProcess], kind: str
) -> None:
    # By hand, so that it does not matter how the mirror came to its rows.
    await write_documents(source, mirrors[kind], [exact for exact, _ in LOSSY])
    assert (await verdict_of(source, mirrors[kind], "docs")).equal
    await write_documents(source, mirrors[kind], [lossy for _, lossy in LOSSY])
    verdict = await verdict_of(source, mirrors[kind], "docs")
    assert {(int(one.key[0]), one.columns) for one in verdict.found} == {
        (n, ("j",)) for n in range(len(LOSSY))
    }


async def write_documents(
    source: World, mirror: MirrorProcess, documents: Sequence[str | None]
) -> None:
    if mirror.to.startswith("sqlite"):
        with contextlib.closing(
            sqlite3.connect(Path(mirror.to.removeprefix("sqlite:///")), timeout=30)
        ) as file:
            file.executemany(
                "UPDATE docs SET j = ? WHERE id = ?",
                [(text, n) for n, text in enumerate(documents)],
            )
            file.commit()
    else:
        for number, text in enumerate(documents):
            await source.target.execute("UPDATE docs SET j = $1::jsonb WHERE id = $2", text, number)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_of_json_the_meaning_counts_with_every_digit(
    source: World, mirrors: dict[str, MirrorProcess], kind: str
) -> None:
    other = """'{"a":[1,"x"],  "b":%s}'"""
    statements = [
        f"UPDATE texts SET j = {other % 3} WHERE id = 3",
        f"UPDATE texts SET j = {other % '4.0'} WHERE id = 4",
    ]
    await do(source, mirrors[kind], statements)
    verdict = await verdict_of(source, mirrors[kind], "texts")
    assert [(int(one.key[0]), one.columns) for one in verdict.found] == [(4, ("j",))]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_doubled_row_and_a_missing_one_of_equal_rows_are_found(
    source: World, mirrors: dict[str, MirrorProcess], kind: str
) -> None:
    row = "rowid" if kind == "sqlite" else "ctid"
    statements = [
        "INSERT INTO keyless VALUES (7, 'k')",
        f"DELETE FROM keyless WHERE {row} = (SELECT max({row}) FROM keyless WHERE n = 9)",
    ]
    await do(source, mirrors[kind], statements)
    verdict = await verdict_of(source, mirrors[kind], "keyless")
    assert {(str(one.kind), str(one.key[0])) for one in verdict.found} == {
        ("extra", "7"),
        ("missing", "9"),
    }


async def test_a_table_that_no_mirror_has_is_said_at_once(
    source: World, mirrors: dict[str, MirrorProcess]
) -> None:
    began = time.monotonic()
    code, (verdict,) = await verified(
        mirrors["sqlite"].environment, mirrors["sqlite"].to, "--table", "nosuch", "--wait", "250"
    )
    assert code == 3
    assert verdict["reason"] == "the mirror has no such table; it has: docs, keyless, texts, wide"
    assert time.monotonic() - began < 200


async def do(source: World, mirror: MirrorProcess, statements: list[str]) -> None:
    """As somebody who writes to the mirror."""
    if mirror.to.startswith("sqlite"):
        with contextlib.closing(
            sqlite3.connect(Path(mirror.to.removeprefix("sqlite:///")), timeout=30)
        ) as file:
            for statement in statements:
                assert file.execute(statement).rowcount == 1, statement
            file.commit()
    else:
        for statement in statements:
            assert (await source.target.execute(statement)).endswith(" 1"), statement


async def verdict_of(source: World, mirror: MirrorProcess, table: str) -> Verdict:
    given = source.environment
    own = {
        "PG_HOST": given["PGHOST"],
        "PG_PORT": given["PGPORT"],
        "POSTGRES_BRIDGE_USER": given["PGUSER"],
    }
    settings = load({**given, **own})
    client = await nats.connect(source.nats_url)
    try:
        async with opened(mirror.to) as target, asyncio.timeout(PATIENCE_S):
            return await Verifier(settings, client, target, Patience(PATIENCE_S, 0.0)).table(table)
    finally:
        await client.close()
