"""Every feature of docs/sql-support.md is what the page says, on PostgreSQL 16 and 18."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.testing.servers import SessionServers
from tests.support import sql_tables
from tests.support.sql_features import FEATURES, Feature, Support
from tests.support.sql_pair import SqlPair, difference, same, sql_pair

LISTED = [feature for features in FEATURES.values() for feature in features]


@pytest.fixture(scope="module", params=[18, 16])
def pair(request: pytest.FixtureRequest, session_servers: SessionServers) -> Iterator[SqlPair]:
    server = session_servers.shared_postgres(request.param)
    with sql_pair(server, *sql_tables.statements()) as made:
        yield made


@pytest.mark.parametrize("feature", LISTED, ids=lambda feature: feature.name)
def test_a_feature_is_what_the_page_says(pair: SqlPair, feature: Feature) -> None:
    expected, found = pair.expected(feature.statement), pair.answered(feature.statement)
    assert expected.sqlstate[:2] != "42", expected.message
    assert bool(found.refused) == (feature.support in (Support.EXACT, Support.REFUSED)), (
        found.refused
    )
    if feature.support is Support.WORKS:
        ordered = "ORDER BY" in feature.statement.rpartition(")")[2]
        assert same(expected, found, ordered=ordered), difference(
            feature.statement, expected, found
        )
    if feature.support is Support.DIFFERS:
        assert bool(expected.sqlstate) != bool(found.sqlstate)
