"""A parameter's value in DuckDB is the one that PostgreSQL sent: back on the wire, it is the same."""

from __future__ import annotations

import duckdb
import pytest

from headrace.sql import duckdb_session
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.parameters import parameter_values
from headrace.sql.storage_types import exported, storage
from headrace.testing.database import Database
from tests.support.copied_table import data_rows, parsed, sent_by_postgres

LITERALS = {
    "bool": ("true", "false"),
    "int2": ("-32768", "32767"),
    "int4": ("-2147483648", "7"),
    "int8": ("-9223372036854775808", "9223372036854775807"),
    "oid": ("4294967295",),
    "float4": ("0.1", "'NaN'", "'-Infinity'", "'1e-45'", "'-0'"),
    "float8": ("0.1", "'NaN'", "'Infinity'", "'5e-324'", "'-0'", "9007199254740993"),
    "numeric": ("0", "0.00", "-1.10", "100000000", "0.00010000", "12345678901234567890.123456789"),
    "money": ("'-92233720368547758.08'", "'0.5'"),
    "text": ("''", "'é \U0001f600'", "'it''s'"),
    "varchar": ("'x'",),
    "bytea": (r"'\x00ff'", "''"),
    "date": ("'infinity'", "'-infinity'", "'0044-03-15 BC'", "'5874897-12-31'", "'2024-02-29'"),
    "timestamp": ("'infinity'", "'0044-03-15 12:00:00.5 BC'", "'294246-12-31 23:59:59.999999'"),
    "timestamptz": ("'-infinity'", "'2024-02-29 12:00:00.000001+02'", "'4713-01-01 00:00+00 BC'"),
    "time": ("'24:00'", "'00:00:00.000001'"),
    "interval": ("'1 year -3 days 04:05:06.7'", "'2562047788 hours'", "'-2147483648 days'"),
    "uuid": ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",),
    "int4[]": ("'{1,NULL,-3}'", "'{}'"),
    "text[]": ("ARRAY['a', NULL, '']",),
    "float8[]": ("'{NaN,0.1,NULL}'",),
    "date[]": ("'{infinity,0044-03-15 BC}'",),
    "uuid[]": ("'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'",),
}


@pytest.fixture
def engine() -> duckdb.DuckDBPyConnection:
    opened = duckdb.connect()
    duckdb_session.prepare(opened)
    return opened


async def test_a_parameter_keeps_its_value(
    database: Database, engine: duckdb.DuckDBPyConnection
) -> None:
    for name, literals in LITERALS.items():
        for literal in literals:
            query = f"SELECT ({literal})::{name}"
            (column,), ((sent,),) = sent_by_postgres(database.dsn, query, True, {})
            kind = storage(column.type_oid, -1).duckdb
            given = "$1" if name == "numeric" else f"CAST($1 AS {kind})"
            values = parameter_values([column.type_oid], [sent])
            found = engine.execute(f"SELECT {exported(given, kind)}", values).to_arrow_table()
            for binary in (False, True):
                _, expected = sent_by_postgres(database.dsn, query, binary, {})
                assert parsed(data_rows(found, [column], [int(binary)])) == expected, query


def test_null_is_null(engine: duckdb.DuckDBPyConnection) -> None:
    found = engine.execute("SELECT CAST($1 AS DATE)", parameter_values([1082], [None]))
    assert found.fetchall() == [(None,)]


async def test_a_value_that_duckdb_lacks_is_refused(database: Database) -> None:
    for literal in (
        "'NaN'::numeric",
        "'1e40'::numeric",
        "'294276-12-31'::timestamp",
        "'{{1},{2}}'::int[]",
        "'[0:0]={1}'::int[]",
        "'[1,2]'::int4range",
    ):
        (column,), ((sent,),) = sent_by_postgres(database.dsn, f"SELECT {literal}", True, {})
        with pytest.raises(NotProvenEqualError):
            parameter_values([column.type_oid], [sent])
