"""A consumer that knows only the contract ends with the same tables as PostgreSQL, for any commits.

A seeded generator creates schemas (types, keys, replica identities, partitions, generated columns,
awkward names) and scripts of transactions with DDL in them; a mirror applies the stream; PostgreSQL
compares the two, value by value. `HEADRACE_DEEP_MINUTES` runs new seeds for that long,
`HEADRACE_SEED` repeats one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest

from headrace.embedded.postgres_install import PostgresVersion
from headrace.testing.database import fresh_database
from headrace.testing.line import Line, Lines
from headrace.testing.names import Names
from headrace.testing.reference_mirror import PostgresMirror, quoted

CATALOG_INTERVAL_S = 0.1
CATALOG_WAIT_S = 60.0
FAST_SEEDS = 12
NAMES = (
    "plain",
    "Mixed Case",
    "dots.in.it",
    'quo"te',
    "naïve_ü",
    "x" * 63,
    "sl/ash",
    "a-b",
    "select",
    "tab\tle",
)

LITERALS: dict[str, tuple[str, ...]] = {
    "integer": ("0", "-2147483648", "2147483647", "42"),
    "bigint": ("9223372036854775807", "-1", "7"),
    "smallint": ("-32768", "3"),
    "boolean": ("true", "false"),
    "text": (
        "''",
        "'it''s'",
        "E'line\\nbreak\\t\\\\'",
        "'𝄞 clef'",
        "repeat('long ', 900)",
        "'null'",
    ),
    "character varying(20)": ("'short'", "''", "'twenty characters ok'"),
    "character varying(40)": ("'wider'", "'forty characters are enough for anybody!'"),
    "character(5)": ("'ab'", "'abcde'"),
    "double precision": ("'NaN'", "'-Infinity'", "1.5e300", "'-0'", "0.1"),
    "real": ("0.25", "'Infinity'", "3.4e38"),
    "numeric": ("'NaN'", "123456789012345678901234567890.123456789", "0.00", "-1e-20"),
    "numeric(10,2)": ("12.30", "-99999999.99"),
    "money": ("-1234.56", "0.01"),
    "date": ("'infinity'", "'0044-03-15 BC'", "'2025-02-28'", "'12025-01-01'"),
    "timestamp without time zone": (
        "'2025-12-12 12:00:34.338547'",
        "'-infinity'",
        "'0001-01-01 00:00:00 BC'",
    ),
    "timestamp with time zone": (
        "'2025-12-12 12:00:34.3+02'",
        "'infinity'",
        "'10000-01-01 00:00:00+00'",
    ),
    "time without time zone": ("'24:00:00'", "'00:00:00.000001'"),
    "time with time zone": ("'12:00:00+05:30'",),
    "interval": ("'1 year -2 days 03:04:05.6'", "'-1 mons'", "'0'"),
    "uuid": ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",),
    "bytea": ("'\\x'", "'\\x00ff5c27'"),
    "jsonb": ('\'{"a": [1, 2.5, null, "x"]}\'', "'\"text\"'", "'[]'", "'1e3'"),
    "json": ('\'{"b": {"c": true}, "d": "é"}\'', "'[1, \"2\"]'"),
    "integer[]": ("'{}'", "'{1,NULL,3}'", "'{{1,2},{3,4}}'"),
    "text[]": ('\'{"a b",NULL,"NULL","q\\"q",""}\'',),
    "inet": ("'10.0.0.1/8'", "'::1'"),
    "int4range": ("'[1,10)'", "'empty'"),
    "bit(4)": ("B'1010'",),
    "tsvector": ("'a fat cat'",),
    "point": ("'(1.5,-2)'",),
}
KEY_TYPES = (
    "integer",
    "bigint",
    "text",
    "uuid",
    "timestamp with time zone",
    "numeric(10,2)",
    "date",
)
RETYPES = {
    "smallint": "integer",
    "integer": "bigint",
    "character varying(20)": "character varying(40)",
}


@dataclass
class Table:
    name: str
    columns: dict[str, str]
    key: list[str]
    identity: str = "default"
    partitioned: bool = False
    generated: set[str] = field(default_factory=set)

    @property
    def updatable(self) -> bool:
        return self.identity in ("full", "index") or (self.identity == "default" and bool(self.key))


class Script:
    """A seed's schema and transactions; what PostgreSQL refuses is undone there, and never reaches
    the stream.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.schema = f"s {seed}"
        self.tables: list[Table] = []
        self.made = 0

    def setup(self) -> list[str]:
        statements = [f"CREATE SCHEMA {quoted(self.schema)}"]
        for name in self.chance.sample(NAMES, self.chance.randint(1, 3)):
            statements += self.create(name)
        return statements

    def at(self, table: Table) -> str:
        return f"{quoted(self.schema)}.{quoted(table.name)}"

    def create(self, name: str) -> list[str]:
        chance = self.chance
        table = Table(name, {}, [])
        for index in range(chance.randint(0, 2)):
            table.columns[f"k{index}"] = chance.choice(KEY_TYPES)
            table.key.append(f"k{index}")
        for _ in range(chance.randint(1, 5)):
            table.columns[self.column_name()] = chance.choice(list(LITERALS))
        table.partitioned = (
            bool(table.key)
            and table.columns["k0"] in ("integer", "bigint")
            and chance.random() < 0.4
        )
        body = [f"{quoted(column)} {kind}" for column, kind in table.columns.items()]
        if chance.random() < 0.3:
            body.append(f"{quoted('gen')} integer GENERATED ALWAYS AS (1 + 1) STORED")
        if table.key:
            body.append(f"PRIMARY KEY ({', '.join(table.key)})")
        suffix = " PARTITION BY HASH (k0)" if table.partitioned else ""
        statements = [f"CREATE TABLE {self.at(table)} ({', '.join(body)}){suffix}"]
        if table.partitioned:
            statements += [
                f"CREATE TABLE {quoted(self.schema)}.{quoted(f'{name[:50]} p{part}')} PARTITION OF "
                f"{self.at(table)} "
                f"FOR VALUES WITH (MODULUS 2, REMAINDER {part})"
                for part in range(2)
            ]
        self.tables.append(table)
        return [*statements, *self.identify(table)]

    def identify(self, table: Table) -> list[str]:
        if table.partitioned or self.chance.random() < 0.5:
            return []
        table.identity = self.chance.choice(["full", "nothing", "default"])
        return [f"ALTER TABLE {self.at(table)} REPLICA IDENTITY {table.identity.upper()}"]

    def column_name(self) -> str:
        self.made += 1
        return (
            f"{self.chance.choice(NAMES)[:40]} {self.made}"
            if self.chance.random() < 0.3
            else f"c{self.made}"
        )

    def transaction(self) -> list[str]:
        """Statements of one transaction; ROLLBACK at its end for some."""
        statements: list[str] = []
        for _ in range(self.chance.randint(1, 6)):
            if not self.tables:
                statements += self.create(self.chance.choice(NAMES))
            statements += self.statement(self.chance.choice(self.tables))
        return statements

    def statement(self, table: Table) -> list[str]:
        chance = self.chance
        kind = chance.choices(
            ["insert", "update", "delete", "truncate", "ddl", "undone"],
            weights=[45, 20, 10, 2, 15, 8],
        )[0]
        if kind in ("update", "delete") and not table.updatable:
            kind = "insert"
        match kind:
            case "update":
                return [self.update(table)]
            case "delete":
                return [f"DELETE FROM {self.at(table)} WHERE {self.some_rows(table)}"]
            case "truncate":
                return [f"TRUNCATE {self.at(table)}"]
            case "ddl":
                return self.ddl(table)
            case "undone":
                return ["SAVEPOINT undone", self.insert(table), "ROLLBACK TO undone"]
        return [self.insert(table)]

    def literal(self, kind: str) -> str:
        if self.chance.random() < 0.15:
            return "NULL"
        if kind in ("integer", "bigint", "numeric(10,2)") and self.chance.random() < 0.7:
            return str(self.chance.randint(0, 500))
        return self.chance.choice(LITERALS[kind])

    def key_literal(self, kind: str) -> str:
        number = self.chance.randint(0, 10_000_000)
        match kind:
            case "text":
                return f"'key {number}'"
            case "uuid":
                return f"'a0eebc99-9c0b-4ef8-bb6d-{number:012d}'"
            case "date" | "timestamp with time zone":
                return f"'2000-01-01'::date + {number % 100_000}"
        return str(number)

    def insert(self, table: Table) -> str:
        rows = []
        for _ in range(self.chance.choice([1, 1, 2, 7])):
            values = [
                self.key_literal(kind) if name in table.key else self.literal(kind)
                for name, kind in table.columns.items()
            ]
            rows.append(f"({', '.join(values)})")
        names = ", ".join(quoted(name) for name in table.columns)
        if not table.columns:
            return f"INSERT INTO {self.at(table)} DEFAULT VALUES"
        return f"INSERT INTO {self.at(table)} ({names}) VALUES {', '.join(rows)} ON CONFLICT DO NOTHING"

    def some_rows(self, table: Table, count: int | None = None) -> str:
        count = count or self.chance.randint(1, 4)
        return f"(tableoid, ctid) IN (SELECT tableoid, ctid FROM {self.at(table)} ORDER BY 1, 2 LIMIT {count})"

    def update(self, table: Table) -> str:
        columns = self.chance.sample(
            list(table.columns), self.chance.randint(1, max(1, len(table.columns) // 2))
        )
        sets = ", ".join(
            f"{quoted(c)} = {self.key_literal(table.columns[c]) if c in table.key else self.literal(table.columns[c])}"
            for c in columns
        )
        # A new key fits one row at most.
        where = self.some_rows(table, 1 if set(columns) & set(table.key) else None)
        return f"UPDATE {self.at(table)} SET {sets} WHERE {where}"

    def ddl(self, table: Table) -> list[str]:
        chance = self.chance
        free = [name for name in table.columns if name not in table.key]
        choice = chance.choice(
            [
                "add",
                "add_default",
                "drop",
                "rename",
                "retype",
                "identity",
                "replace",
                "rename_table",
            ]
        )
        if choice in ("add", "add_default"):
            name, kind = self.column_name(), chance.choice(list(LITERALS))
            table.columns[name] = kind
            default = f" DEFAULT {chance.choice(LITERALS[kind])}" if choice == "add_default" else ""
            return [f"ALTER TABLE {self.at(table)} ADD COLUMN {quoted(name)} {kind}{default}"]
        if choice == "identity":
            return self.identify(table)
        if choice == "replace" and not table.partitioned:
            self.tables.remove(table)
            return [f"DROP TABLE {self.at(table)}", *self.create(table.name)]
        if choice == "rename_table" and not table.partitioned:
            before, table.name = self.at(table), f"renamed {self.made} {chance.randint(0, 99)}"
            return [f"ALTER TABLE {before} RENAME TO {quoted(table.name)}"]
        return self.column_ddl(table, free, choice)

    def column_ddl(self, table: Table, free: list[str], choice: str) -> list[str]:
        if not free:
            return []
        name = self.chance.choice(free)
        if choice == "drop" and len(free) > 1:
            del table.columns[name]
            return [f"ALTER TABLE {self.at(table)} DROP COLUMN {quoted(name)}"]
        if choice == "rename":
            fresh = self.column_name()
            table.columns = {fresh if c == name else c: kind for c, kind in table.columns.items()}
            return [f"ALTER TABLE {self.at(table)} RENAME COLUMN {quoted(name)} TO {quoted(fresh)}"]
        wider = RETYPES.get(table.columns[name])
        if choice == "retype" and wider:
            table.columns[name] = wider
            return [f"ALTER TABLE {self.at(table)} ALTER COLUMN {quoted(name)} TYPE {wider}"]
        return []


async def run(connection: Any, statements: list[str], *, undo: bool) -> None:
    """One transaction; only a statement that PostgreSQL refuses (a duplicate key, say) is undone."""
    outer = connection.transaction()
    await outer.start()
    for statement in statements:
        if statement.startswith(("SAVEPOINT", "ROLLBACK")):
            await connection.execute(statement)
            continue
        with contextlib.suppress(asyncpg.PostgresError):
            async with connection.transaction():
                await connection.execute(statement)
    if undo:
        await outer.rollback()
    else:
        await outer.commit()


async def one_seed(line: Line, mirror: PostgresMirror, seed: int) -> tuple[int, int]:
    """Run a script and compare; how many transactions it had and how many row events were applied."""
    script = Script(seed)
    connection = mirror.source
    before = mirror.changes
    await mirror.target.execute(f"CREATE SCHEMA {quoted(script.schema)}")
    await run(connection, script.setup(), undo=False)
    count = script.chance.randint(3, 12)
    for _ in range(count):
        await run(connection, script.transaction(), undo=False)
    await mirror.apply(await line.take())
    differences = await mirror.differences(script.schema)
    # Changes that only the catalog shows come a little later: once it was read, and the stream has
    # passed the reading.
    deadline = time.monotonic() + CATALOG_WAIT_S
    while differences and time.monotonic() < deadline:
        await asyncio.sleep(CATALOG_INTERVAL_S)
        await mirror.apply(await line.take())
        differences = await mirror.differences(script.schema)
    assert not differences, f"seed {seed}: {differences}"
    await connection.execute(f"DROP SCHEMA {quoted(script.schema)} CASCADE")
    await mirror.target.execute(f"DROP SCHEMA {quoted(script.schema)} CASCADE")
    mirror.tables = {key: table for key, table in mirror.tables.items() if key[0] != script.schema}
    # Of the schema that is gone the catalog may still tell: nobody mirrors it any more.
    mirror.forgotten.add(script.schema)
    return count, mirror.changes - before


def seeds() -> tuple[list[int], float]:
    """Which seeds to run, and for how long at most."""
    if "HEADRACE_SEED" in os.environ:
        return [int(os.environ["HEADRACE_SEED"])], 0.0
    minutes = float(os.environ.get("HEADRACE_DEEP_MINUTES", "0"))
    first = random.SystemRandom().randrange(10**6) if minutes else 1
    return list(range(first, first + (10**6 if minutes else FAST_SEEDS))), minutes * 60


@pytest.mark.timeout(0)
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("version", [18, 16])
async def test_a_mirror_made_from_the_contract_alone_equals_the_source(
    lines: Lines, version: PostgresVersion
) -> None:
    line = await lines(version, HEADRACE_CATALOG_INTERVAL_S=str(CATALOG_INTERVAL_S))
    chosen, seconds = seeds()
    began, done, transactions, changes = time.monotonic(), 0, 0, 0
    async with fresh_database(line.database.server, Names.new().other("mirror")) as target:
        mirror = PostgresMirror(await line.database.connect(), await target.connect())
        await mirror.prepare()
        for seed in chosen:
            print(f"seed {seed}")
            counted = await one_seed(line, mirror, seed)
            done, transactions, changes = done + 1, transactions + counted[0], changes + counted[1]
            if seconds and time.monotonic() - began > seconds / 2:
                break
    print(
        f"{done} scripts, {transactions} transactions, {changes} row events, {mirror.copies} copies"
    )
    assert changes > 0
