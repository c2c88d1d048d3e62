"""Every value of the contract's table, out of the copy, has PostgreSQL's own text and binary form.

The oracle is the server that has the values, for the same session settings.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
import pytest_asyncio

from headrace.lake.catalog import TableName
from headrace.sql.copy_from_stdin import CopyLines, rows_query
from headrace.sql.errors import NotProvenEqualError
from headrace.testing.database import Database
from headrace.testing.value_cases import ARRAYS, CASES, TEXT, Case
from tests.support.copied_lake import ReadableCopy
from tests.support.copied_table import (
    Described,
    data_rows,
    lake_of,
    parsed,
    sent_by_copy,
    sent_by_postgres,
)

# Values that DuckDB, Arrow or PostgreSQL treat differently from others of their types.
EDGES = (
    Case("amount", "numeric(6, 2)", (("1.5", TEXT), ("-9999.99", TEXT), ("NULL", None))),
    Case("tiny", "numeric(12, 10)", (("0", TEXT), ("-0.0000000001", TEXT), ("1.5", TEXT))),
    Case("widest", "numeric(38, 10)", (("'1e27'", TEXT), ("0", TEXT), ("-0.0000000001", TEXT))),
    Case("whole", "numeric(18, 0)", (("999999999999999999", TEXT), ("-10000", TEXT), ("0", TEXT))),
    Case("part", "numeric(18, 16)", (("99.0000000000000001", TEXT), ("0.00010000", TEXT))),
    Case("amounts", "numeric(6, 2)[]", (("'{1.5,NULL}'", TEXT), ("'{}'", TEXT), ("NULL", None))),
    Case("halves", "float4[]", (("'{0.1,NaN,-Infinity,-0}'", TEXT), ("'{}'", TEXT))),
    Case(
        "singles",
        "float4",
        tuple(
            (f"'{text}'", TEXT)
            for text in ("1e6", "999999", "1e-4", "9.9e-5", "123456.7", "16777216", "0.00012345")
        ),
    ),
    Case(
        "doubles",
        "float8",
        tuple(
            (f"'{text}'", TEXT)
            for text in (
                *("1e10", "12345678901.5", "999999999999999", "1e14", "123456789012345.6"),
                *("0.0001", "0.00009999", "1e-5", "-1e15", "9007199254740993", "1e100", "2e-100"),
            )
        ),
    ),
    Case("days", "date[]", (("'{2025-12-12,infinity,0044-03-15 BC}'", TEXT), ("'{}'", TEXT))),
    Case("moments", "timestamp[]", (("'{-infinity,2025-12-12 12:00:00.5}'", TEXT),)),
    Case("spans", "interval[]", (("'{1 day,NULL,-1 mons -2 days +03:00}'", TEXT), ("'{}'", TEXT))),
    Case(
        "intervals",
        "interval",
        tuple(
            (f"'{text}'", TEXT)
            for text in (
                *("1 mon", "-1 mon", "-1 year -1 mon", "1 year -1 day", "-1 day 00:00:01"),
                *("-00:00:01.5", "100 hours", "2147483647 months", "-2147483648 days"),
                *("2562047788 hours", "-2562047788 hours", "1 day -00:00:00.000001", "13 mons"),
            )
        ),
    ),
    Case("clocks", "time[]", (("'{24:00,12:00:00.25,NULL}'", TEXT),)),
    Case("zoned", "timetz[]", (("'{12:00+02,12:00:01.5-05:30,NULL}'", TEXT),)),
    Case("bit_array", "bit(3)[]", (("'{101,NULL}'", TEXT),)),
    Case("cents", "money", (("'92233720368547758.07'", TEXT), ("'-1234567.5'", TEXT))),
    Case("addresses", "inet[]", (("'{10.0.0.1,::1/64,NULL}'", TEXT),)),
    Case("small", "int2[]", (("'{-1,NULL,32767}'", TEXT), ("'{}'", TEXT))),
    Case(
        "quoted", "varchar[]", (("""ARRAY['a b', 'null', '', 'x"y', E'\\\\', '{', 'é']""", TEXT),)
    ),
    Case(
        "moment",
        "timestamptz",
        tuple(
            (f"'{text}'", TEXT)
            for text in (
                *("2025-03-30 00:59:59.999999+00", "2025-03-30 01:00:00+00", "1900-01-01 00:00+00"),
                *("2025-10-26 00:59:59+00", "2025-10-26 01:00:00.5+00", "1893-03-31 23:06:31+00"),
                *("2040-07-01 00:00+00", "0044-03-15 12:00+00 BC", "20000-07-01 12:00+00"),
                *("0001-01-01 00:00:00+00", "9999-12-31 23:59:59+00"),
            )
        ),
    ),
)
EVERY = (*CASES, *ARRAYS, *EDGES)
ROWS = max(len(case.values) for case in EVERY)
# Domains stand in the contract's form of their base type.
DOMAINS = {case.name for case in EVERY if "CREATE DOMAIN" in case.setup}
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "<+02>-02", "<-03:30>+03:30")
# Values that no type of DuckDB holds, so that statements that read them are refused.
UNHELD = {
    "timestamptz": [b"294276-12-31 23:59:59.999999+00"],
    "int_array_nested": [b"{{1,2},{3,NULL}}"],
    "int_array_bounds": [b"[0:1]={1,2}"],
    "text_array_nested": [b'{{{"a","b c"}},{{"",NULL}}}'],
}


def quoted(name: str) -> str:
    return f'"{name}"'


@pytest_asyncio.fixture
async def copied(database: Database, tmp_path: Path) -> Any:
    """The copy of a table with a column for each case."""
    columns = ", ".join(f"{quoted(case.name)} {case.type}" for case in EVERY)
    for case in EVERY:
        if case.setup:
            await database.execute(case.setup)
    await database.execute(f"CREATE TABLE every (id int PRIMARY KEY, {columns})")
    for row in range(ROWS):
        values = ", ".join(case.values[min(row, len(case.values) - 1)][0] for case in EVERY)
        await database.execute(f"INSERT INTO every VALUES ({row}, {values})")
    copy = await lake_of(database, tmp_path, "every")
    yield copy
    copy.close()


def own(case: Case) -> bool:
    """Whether the type is a user's: the private PostgreSQL has text instead."""
    return bool(case.setup)


def differences(
    copy: ReadableCopy, database: Database, binary: bool, settings: dict[str, str]
) -> list[str]:
    """Values that differ from PostgreSQL's; without those that are not held, or refused."""
    wrong = []
    shown = [
        case for case in EVERY if case.name not in DOMAINS and case.name not in REFUSED[binary]
    ]
    selected = ", ".join(
        f"format('%s', {quoted(case.name)})" if own(case) else quoted(case.name) for case in shown
    )
    query = f"SELECT {selected} FROM every ORDER BY id"
    _, expected = sent_by_postgres(database.dsn, query, binary, settings)
    found = sent_by_copy(copy, "every", [case.name for case in shown], binary, settings)
    for place, case in enumerate(shown):
        for row, (theirs, ours) in enumerate(zip(expected, found, strict=True)):
            unheld = ours[place] is None and case.name in UNHELD
            if theirs[place] != ours[place] and not unheld:
                wrong.append(f"{case.name} row {row}: {theirs[place]!r} is not {ours[place]!r}")
    return wrong


# By the format: what depends on names in the source's catalog, and binary forms of texts.
BINARY_REFUSED = {
    "point",
    "polygon",
    "box_array",
    "int4range",
    "range_array",
    "tstzrange",
    "multirange",
    "tsvector",
    "int2vector",
}
# Their texts in the lake are in UTC: a range is refused, a user's type is a text there.
ZONED = {"tstzrange", "composite"}
REFUSED: dict[bool, set[str]] = {False: set(), True: BINARY_REFUSED}


async def test_texts_are_postgresqls_in_every_time_zone(
    copied: ReadableCopy, database: Database
) -> None:
    for zone in ZONES:
        settings = {"TimeZone": zone}
        zoned = REFUSED[False] | (ZONED if zone != "UTC" else set())
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(REFUSED, False, zoned)
            assert differences(copied, database, False, settings) == []


async def test_iso_intervals_are_postgresqls(copied: ReadableCopy, database: Database) -> None:
    assert differences(copied, database, False, {"IntervalStyle": "iso_8601"}) == []


async def test_binary_forms_are_postgresqls(copied: ReadableCopy, database: Database) -> None:
    assert differences(copied, database, True, {}) == []


async def test_columns_with_values_that_the_copy_lacks_are_not_held(copied: ReadableCopy) -> None:
    with copied.copy.pin() as pin:
        relation = copied.relation(pin, TableName("public", "every"))
    assert {column.name for column in relation.columns if not column.held} == set(UNHELD)


async def test_postgresql_gets_every_value_back_also_those_that_the_copy_lacks(
    copied: ReadableCopy, database: Database
) -> None:
    shown = [case for case in EVERY if case.name not in DOMAINS]
    kinds = {case.name: "text" if own(case) else case.type for case in EVERY} | {"id": "int"}
    with copied.copy.pin() as pin, pin.using() as cursor, psycopg.connect(database.dsn) as back:
        relation = copied.relation(pin, TableName("public", "every"))
        listed = ", ".join(f"{quoted(each.name)} {kinds[each.name]}" for each in relation.columns)
        back.execute(f"CREATE TEMP TABLE back ({listed})")
        lines = CopyLines(relation.columns)
        reader = cursor.execute(rows_query(relation, relation.columns)).to_arrow_reader(3)
        with back.cursor() as target, target.copy("COPY back FROM STDIN") as copy:
            for batch in reader:
                copy.write(lines.of(batch))
        for case in shown:
            name = quoted(case.name)
            wrong = back.execute(
                f"SELECT e.id, e.{name}::text, b.{name}::text FROM every e FULL JOIN back b USING (id)"
                f" WHERE e.{name}::text IS DISTINCT FROM b.{name}::text OR b.id IS NULL OR e.id IS NULL"
            ).fetchall()
            assert wrong == [], case.name


async def test_what_is_not_proven_is_refused(copied: ReadableCopy) -> None:
    for name in BINARY_REFUSED:
        with pytest.raises(NotProvenEqualError):
            sent_by_copy(copied, "every", [name], True, {})
    for name, settings in (
        ("float8", {"extra_float_digits": "0"}),
        ("bytea", {"bytea_output": "escape"}),
        ("date", {"DateStyle": "German, DMY"}),
        ("timestamptz", {"TimeZone": "EST5EDT4,M3.2.0,M11.1.0"}),
        ("interval", {"IntervalStyle": "sql_standard"}),
        ("tstzrange", {"TimeZone": "Europe/Berlin"}),
    ):
        with pytest.raises(NotProvenEqualError):
            sent_by_copy(copied, "every", [name], False, settings)


def same_texts(database: Database, type_name: str, type_oid: int, values: pa.Array[Any]) -> None:
    """PostgreSQL's texts and bytes of these values are those of `data_rows`."""
    column = [Described("v", type_oid, -1)]
    messages = data_rows(pa.table([values], ["v"]), column, [0])
    literals = "','".join(bytes(row[0] or b"").decode() for row in parsed(messages))
    query = f"SELECT v::{type_name} FROM unnest(ARRAY['{literals}']) v"
    settings = {"TimeZone": "America/New_York"}
    for binary in (False, True):
        _, expected = sent_by_postgres(database.dsn, query, binary, settings)
        messages = data_rows(pa.table([values], ["v"]), column, [int(binary)], settings)
        assert parsed(messages) == expected


async def test_random_numbers_and_moments_are_postgresqls(database: Database) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    print("seed", seed)
    rng = np.random.default_rng(seed)
    doubles = rng.integers(-(2**63), 2**63, 3000, np.int64).view(np.float64)
    doubles[np.isnan(doubles)] = np.nan
    near = np.round(rng.random(3000) * 10.0 ** rng.integers(-6, 18, 3000), 3)
    same_texts(database, "float8", 701, pa.array(np.concatenate([doubles, near, np.rint(near)])))
    singles = rng.integers(-(2**31), 2**31, 3000).astype(np.int32).view(np.float32)
    singles[np.isnan(singles)] = np.nan
    same_texts(
        database, "float4", 700, pa.array(np.concatenate([singles, near.astype(np.float32)]))
    )
    moments = rng.integers(-210_000_000_000_000_000, 9_000_000_000_000_000_000, 3000)
    usual = rng.integers(-5_000_000_000_000_000, 9_000_000_000_000_000, 3000)
    both = np.concatenate([moments, usual])
    same_texts(database, "timestamptz", 1184, pa.array(both).cast(pa.timestamp("us", "UTC")))
    same_texts(database, "timestamp", 1114, pa.array(both).cast(pa.timestamp("us")))
    days = rng.integers(-2_440_588, 2_145_043_000, 3000).astype(np.int32)
    same_texts(database, "date", 1082, pa.array(days).cast(pa.date32()))
