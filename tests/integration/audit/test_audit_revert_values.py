"""A value of any type is undone to the last byte, from the source through the suite to the trail."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.testing.database import Database
from headrace.testing.line import running_line
from headrace.testing.plugin import OwnNats
from tests.support.audit_trail import Trail, opened_trail, undo, written


@async_fixture
async def trail(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Trail]:
    async with opened_trail(database, monkeypatch) as opened:
        yield opened


VALUES = [
    ("bool", "true"),
    ("int8", "-9223372036854775808"),
    ("float8", "1e23"),
    ("float4", "'NaN'"),
    ("numeric", "1.500"),
    ("money", "-1234.5"),
    ("text", "'O''Brien \\ \"x\" é'"),
    ("char(5)", "'ab'"),
    ("bytea", "'\\x00ff5c'"),
    ("timestamptz", "'2026-01-31 12:00:00.5+02'"),
    ("timestamp", "'infinity'"),
    ("date", "'0044-03-15 BC'"),
    ("timetz", "'12:00:34.5+02'"),
    ("interval", "'-1 year 2 mons -3 days 04:05:06.7'"),
    ("int[]", "'{{1,2},{3,NULL}}'"),
    ("text[]", """'{"a,b",NULL,"NULL","\\\\"}'"""),
    ("bytea[]", """'{"\\\\x00ff"}'"""),
    ("jsonb", """'{"a": [1, 2.5, null], "é": "\\\\"}'"""),
    ("json", "'[true]'"),
    ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
    ("inet", "'10.0.0.1/8'"),
    ("int4range", "'[1,5)'"),
    ("mood", "'sad'"),
    ("pair", "ROW(1, 'x,\"y')::pair"),
    ("blob", "'\\x68656c6c6f'"),
    ("doc", "'{}'"),
    ("bit(3)", "B'101'"),
    ("regtype", "'integer'"),
    # Native forms lose a part of these.
    ("jsonb", "'null'"),
    (
        "jsonb",
        """'{"n": 12345678901234567890123, "price": 1.50, "small": 0.1234567890123456789}'""",
    ),
    ("jsonb", f"'{'[' * 600}{']' * 600}'"),
    ("doc", "'null'"),
    ("json", """'{"a": 1, "a": 1e400}'"""),
    ("json", """'{"nul": "\\u0000", "half": "\\ud800"}'"""),
    ("jsonb[]", "ARRAY['[1, 2]'::jsonb, 'null', NULL, '1.50']"),
    ("int[]", "'[0:1]={1,2}'"),
    ("box[]", "'{(1,1),(0,0);(2,2),(1,1)}'"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{}, {"HEADRACE_ENCODING": "json", "HEADRACE_ARRAYS": "list"}],
    ids=["plain", "json"],
)
async def test_values_of_every_type_come_back_through_the_whole_suite(
    trail: Trail, own_nats: OwnNats, tmp_path: Path, settings: dict[str, str]
) -> None:
    database, server = trail.database, await own_nats()
    await database.execute(
        "DROP TABLE changes, headrace_audit_state, headrace_audit_tables, headrace_audit_gaps"
    )
    await database.execute(
        "CREATE TYPE mood AS ENUM ('sad'); CREATE TYPE pair AS (a int, b text); CREATE DOMAIN blob "
        "AS bytea;"
        "CREATE DOMAIN doc AS jsonb"
    )
    columns = ", ".join(f"c{place} {data_type}" for place, (data_type, _) in enumerate(VALUES))
    await database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, {columns}); ALTER TABLE t REPLICA IDENTITY FULL"
    )
    async with running_line(database, server, tmp_path, settings, "FOR TABLE t") as line:
        await line.suite.start("audit-writer")
        values = ", ".join(value for _, value in VALUES)
        await database.execute(f"INSERT INTO t VALUES (1, {values}); INSERT INTO t (id) VALUES (2)")
        was = await trail.text()
        nulls = ", ".join(f"c{place} = NULL" for place in range(len(VALUES)))
        await database.execute(f"UPDATE t SET {nulls} WHERE id = 1")
        await database.execute("DELETE FROM t")
        ids = await written(line, 5)
        for change in reversed(ids[2:]):
            await undo(change)
        assert await trail.text() == was
