"""A lake with a shop's tables behind a SQL server, and a PostgreSQL with the same rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.testing.servers import SessionServers
from tests.support.shop_lake import Shop, shop


@pytest.fixture(scope="session")
def shop_on_both(
    session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    """The shop, for clients that only read."""
    postgres = session_servers.new_postgres(18)
    postgres.start_blocking()
    with shop(tmp_path_factory.mktemp("shop"), postgres) as made:
        yield made
