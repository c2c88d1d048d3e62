"""Statements from a grammar on PostgreSQL, and translated on DuckDB: never a different answer."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from headrace.embedded.postgres_install import PostgresVersion
from headrace.testing.servers import SessionServers
from tests.support import sql_tables
from tests.support.sql_grammar import Grammar
from tests.support.sql_pair import SqlPair, Tally, sql_pair

# In `./taskw test:sql`, more statements and another seed.
STATEMENTS = int(os.environ.get("SQL_STATEMENTS", "2400"))
SEED = int(os.environ.get("SQL_SEED", "1"))
# Shares of all statements. The grammar uses little that is refused.
REFUSED_MAX = 0.1
OPEN_MAX = 0.02


@pytest.fixture(scope="module", params=[18, 16])
def pair(
    request: pytest.FixtureRequest, session_servers: SessionServers
) -> Iterator[tuple[PostgresVersion, SqlPair]]:
    version: PostgresVersion = request.param
    with sql_pair(session_servers.shared_postgres(version), *sql_tables.statements()) as made:
        yield version, made


@pytest.mark.slow
def test_generated_statements_have_postgresqls_answers(
    pair: tuple[PostgresVersion, SqlPair],
) -> None:
    version, both = pair
    grammar = Grammar(SEED * 100 + version)
    tally = Tally()
    for _ in range(STATEMENTS // 3):
        statement = grammar.statement()
        tally.compare(both, statement.sql, ordered=statement.ordered)
    _judge(tally)


def test_single_expressions_have_postgresqls_errors(pair: tuple[PostgresVersion, SqlPair]) -> None:
    version, both = pair
    grammar = Grammar(SEED * 100 + version)
    tally = Tally()
    for _ in range(STATEMENTS // 6):
        statement = grammar.single()
        tally.compare(both, statement.sql, ordered=True, strict=True)
    _judge(tally)


def _judge(tally: Tally) -> None:
    print(f"seed {SEED}: {tally.equal} equal, {len(tally.open)} open, {tally.refused}")
    assert not tally.different, "\n\n".join(tally.different[:5])
    assert tally.refused.total() <= tally.count * REFUSED_MAX, tally.refused
    assert len(tally.open) <= tally.count * OPEN_MAX, "\n".join(tally.open)
