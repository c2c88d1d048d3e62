"""A snapshot's values have the forms that an event's have, or the text that COPY prints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.contract.exact import native
from headrace.contract.values import (
    SESSION_SETTINGS,
    Encoding,
    TypeInfo,
    TypeKind,
    ValueOptions,
    converter,
)
from headrace.postgres.connection import connect
from headrace.spark.csv_rows import CsvRows
from headrace.testing.responder import (
    Consumer,
    Responder,
)

pytestmark = pytest.mark.spark


VALUES = {
    "bool": ["true", "false"],
    "int2": ["-32768"],
    "int8": ["9223372036854775807", "-9223372036854775808", "0"],
    "oid": ["4294967295"],
    "float4": ["0.1", "'NaN'", "'-Infinity'"],
    "float8": ["0.1", "'NaN'", "'Infinity'", "'-0'", "1e308", "5e-324", "0.30000000000000004"],
    "numeric": ["'NaN'", "1.10", "'1" + "0" * 400 + ".5'"],
    "money": ["'-1234.50'"],
    "text": [
        "''",
        "'NULL'",
        "'a,b'",
        "'\"'",
        r"E'\\.'",
        r"E'line\nbreak\r\ttab'",
        "'😀ä'",
        r"E'\\N'",
        "' '",
    ],
    "char(5)": ["'ab'"],
    "uuid": ["'f4b0611f-7258-47f8-bceb-0eba9ac5195a'"],
    "jsonb": ['\'{"a": [1, 1e400, null], "b": "x,\\"y"}\'', "'null'"],
    "json": ['\'{"a":1, "a":2}\''],
    "bytea": [r"'\x00ff'", "''"],
    "timestamptz": [
        "'2025-12-12 12:00:34.338547+00'",
        "'2025-12-12 12:00:34+00'",
        "'infinity'",
        "'0044-03-15 BC'",
    ],
    "timestamp": ["'2025-12-12 12:00:34.5'", "'-infinity'", "'12025-01-01'"],
    "date": ["'2025-12-12'", "'infinity'"],
    "timetz": ["'12:00:34.5+02'"],
    "interval": ["'1 year 2 days 03:04:05.678'"],
    "int4[]": ["'{{1,2},{3,NULL}}'"],
    "text[]": ["ARRAY['a,b', NULL, '', '\"']"],
    "mood": ["'so so'"],
    "positive": ["7"],
    "pair": ["ROW(1, 'x,\"y')"],
    "int4range": ["'[1,5)'"],
    "inet": ["'10.0.0.1/8'"],
    "bit(3)": ["B'101'"],
}


async def test_every_value_has_the_form_that_the_converters_give_an_event(
    responder: Responder, consumer: Consumer
) -> None:
    await consumer.sql.execute(
        "CREATE TYPE mood AS ENUM ('so so'); CREATE DOMAIN positive AS int CHECK (VALUE > 0);"
        "CREATE TYPE pair AS (a int, b text)"
    )
    columns = [f"c{place}" for place in range(len(VALUES))]
    definition = ", ".join(f"{name} {kind}" for name, kind in zip(columns, VALUES, strict=True))
    await consumer.publish(f"(id serial, {definition})", "valued")
    await consumer.sql.execute("INSERT INTO valued DEFAULT VALUES")
    for name, literals in zip(columns, VALUES.values(), strict=True):
        for literal in literals:
            await consumer.sql.execute(f"INSERT INTO valued ({name}) VALUES ({literal})")
    plain = await connect(responder.settings(), "test")
    oids = [
        row["oid"]
        for row in await plain.fetch(
            "SELECT atttypid::int8 AS oid FROM pg_attribute WHERE attrelid = 'valued'::regclass "
            "AND attnum > 1 "
            "ORDER BY attnum"
        )
    ]
    printed = await plain.fetch(
        "SELECT id, "
        + ", ".join(f"CASE WHEN {c} IS NOT NULL THEN format('%s', {c}) END" for c in columns)
        + " FROM valued ORDER BY id"
    )
    await plain.close()
    snapshot = await consumer.snapshot("valued")
    converters = [converter(oid, ValueOptions(), _domains(oids, columns)) for oid in oids]
    for row, texts in zip(sorted(snapshot.rows, key=lambda row: row["id"]), printed, strict=True):
        for name, convert, text in zip(columns, converters, list(texts)[1:], strict=True):
            expected = None if text is None else native(convert(text.encode()))
            assert repr(row[name]) == repr(expected), name
    as_text = await consumer.snapshot("valued", {"values": "text"})
    for row, texts in zip(
        sorted(as_text.rows, key=lambda row: int(row["id"])), printed, strict=True
    ):
        assert [row[name] for name in columns] == list(texts)[1:]


def _domains(oids: list[int], columns: list[str]) -> Any:
    positive = oids[list(VALUES).index("positive")]
    return {positive: TypeInfo(TypeKind.DOMAIN, base_oid=23)}.get


def test_json_values_of_a_copy_are_the_converters_too() -> None:
    converters = [
        converter(oid, ValueOptions(Encoding.JSON), lambda _: None) for oid in (23, 701, 17, 1184)
    ]
    rows, exact = CsvRows(["a", "b", "c", "d"], converters).rows(
        b'1,NaN,"\\x00ff",2025-12-12 12:00:34+00\n,,,\n'
    )
    assert rows[0] == {"a": 1, "b": "NaN", "c": "AP8=", "d": "2025-12-12T12:00:34Z"}
    assert rows[1] == dict.fromkeys("abcd")
    assert json.dumps(rows)
    assert not exact
    assert "DateStyle" in SESSION_SETTINGS
