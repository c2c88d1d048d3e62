"""Fixtures of the verifier's tests."""

from __future__ import annotations

from tests.support.sink_servers import mariadb, mariadb_database, opensearch

__all__ = ["mariadb", "mariadb_database", "opensearch"]
