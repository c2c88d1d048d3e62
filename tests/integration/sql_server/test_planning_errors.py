"""An error that PostgreSQL raises while it plans is raised here, on any rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from headrace.testing.servers import SessionServers
from tests.integration.sql_server.test_exact import ROWS, answer
from tests.support.sql_front import SqlServer

# No row of the answer needs the expression that fails.
STATEMENTS = [
    "SELECT 2147483647 + 1 FROM numbers WHERE false",
    "SELECT 1 / 0 FROM numbers WHERE id < 0",
    "SELECT id FROM numbers WHERE id < 0 AND 1 / 0 = 1",
    "SELECT CASE WHEN id < 0 THEN 1 / 0 END FROM numbers ORDER BY 1 LIMIT 1",
    "SELECT substr('a', 1, -1) FROM numbers LIMIT 0",
    "SELECT count(*) FROM (SELECT repeat('x', -1) || (9223372036854775807 * 2) FROM numbers WHERE id < 0) s",
    "SELECT id FROM numbers WHERE id IN (SELECT 1 / (1 - 1) FROM numbers WHERE id < 0)",
    "SELECT date '5874897-12-31' + interval '10000000 years' FROM numbers WHERE false",
    "SELECT sum(1 / 0) FROM numbers WHERE id < 0",
    # PostgreSQL's planner leaves these out, too.
    "SELECT CASE WHEN false THEN 1 / 0 END FROM numbers LIMIT 1",
    "SELECT id FROM numbers WHERE id < 3 AND (true OR 1 / 0 = 1) ORDER BY id",
    "SELECT 1 + 1, date '2026-01-31' + interval '1 month' FROM numbers LIMIT 2",
]


@pytest.fixture(scope="module")
def oracle(session_servers: SessionServers) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(session_servers.shared_postgres(18).dsn()) as connection:
        connection.execute(ROWS.replace("TABLE", "TEMP TABLE"))
        connection.commit()
        connection.autocommit = True
        yield connection


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_fails_in_planning_as_in_postgresql(
    front: SqlServer, oracle: psycopg.Connection[Any], statement: str
) -> None:
    with front.connect() as connection:
        for how in ({}, {"prepare": True}):
            found, expected = (answer(each, statement, **how) for each in (connection, oracle))
            assert found == expected


def test_parameters_fail_in_planning_too(front: SqlServer, oracle: psycopg.Connection[Any]) -> None:
    query = "SELECT 1 / %s::int FROM numbers WHERE id < 0"
    with front.connect() as connection:
        for value in (0, 1, 0, 2):
            found, expected = (
                answer(each, query, params=[value], prepare=False) for each in (connection, oracle)
            )
            assert found == expected


def test_a_table_s_rows_never_decide_whether_planning_fails(front: SqlServer) -> None:
    with front.connect() as connection:
        for _ in range(2):
            with pytest.raises(psycopg.errors.DivisionByZero):
                connection.execute("SELECT 1 / 0 FROM numbers WHERE id < 0", prepare=True)
        assert connection.execute("SELECT count(*) FROM numbers").fetchone() == (100,)
