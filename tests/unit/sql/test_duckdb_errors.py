"""DuckDB's errors become PostgreSQL's, even if they quote others."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from headrace.sql import duckdb_session
from headrace.sql.duckdb_errors import postgres_error


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        duckdb_session.prepare(connection)
        yield connection


@pytest.mark.parametrize(
    ("sql", "sqlstate"),
    [
        ("SELECT error('HR22012: division by zero')", "22012"),
        ("SELECT headrace_quotient('1', '0', 0, 0)", "22012"),
        ("SELECT headrace_checked('1' || repeat('0', 40))", "0A000"),
        # The statement and the value are quoted, and neither is the error.
        ("SELECT CASE WHEN x = 0 THEN error('HR22012: y') ELSE (99 + x)::DECIMAL(2,1) END FROM range(1, 3) t(x)", "0A000"),
        ("SELECT CAST(x AS INTEGER) FROM (VALUES ('HR42501: permission denied')) t(x)", "0A000"),
        ("SELECT CAST(x AS INTEGER) FROM (VALUES (chr(10) || 'Invalid Input Error: HR42501: no')) t(x)", "0A000"),
    ],
)  # fmt: skip
def test_an_error_has_the_sqlstate_of_what_failed(
    duck: duckdb.DuckDBPyConnection, sql: str, sqlstate: str
) -> None:
    with pytest.raises(duckdb.Error) as raised:
        duck.execute(sql).fetchall()
    assert postgres_error(str(raised.value)).sqlstate == sqlstate
