"""TPC-H and ClickBench: every query has PostgreSQL's answer, except those that are refused by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.testing.servers import SessionServers
from tests.support import clickbench, tpch
from tests.support.sql_pair import SqlPair, difference, same, sql_pair

REFUSED = {29: "function regexp_replace(text,text,text)"}


@pytest.fixture(scope="module", params=[18, 16])
def pair(request: pytest.FixtureRequest, session_servers: SessionServers) -> Iterator[SqlPair]:
    server = session_servers.shared_postgres(request.param)
    rows = (*tpch.TABLES, *tpch.rows(), *clickbench.TABLES, *clickbench.rows())
    with sql_pair(server, *rows) as made:
        yield made


@pytest.mark.parametrize("number", range(1, len(tpch.QUERIES) + 1))
def test_tpch_has_postgresqls_answer(pair: SqlPair, number: int) -> None:
    sql = tpch.QUERIES[number - 1]
    expected, found = pair.expected(sql), pair.answered(sql)
    assert not found.refused, found.refused
    assert same(expected, found, ordered="order by" in sql), difference(sql, expected, found)


@pytest.mark.parametrize("number", range(1, len(clickbench.QUERIES) + 1))
def test_clickbench_has_postgresqls_answer_or_is_refused_by_name(
    pair: SqlPair, number: int
) -> None:
    sql = clickbench.QUERIES[number - 1]
    expected, found = pair.expected(sql), pair.answered(sql)
    assert found.refused == REFUSED.get(number, "")
    if not found.refused:
        assert same(expected, found, ordered="ORDER BY" in sql), difference(sql, expected, found)
