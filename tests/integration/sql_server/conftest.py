"""One SQL server for the tests that change neither it nor its lake."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.sql_front import SqlServer, sql_server


@pytest.fixture(scope="session")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlServer]:
    """A server over a lake with the table `numbers`: id from 0 to 99, note."""
    with sql_server(tmp_path_factory.mktemp("sql")) as server:
        yield server
