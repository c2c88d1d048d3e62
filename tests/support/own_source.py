"""A source that a test has for itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headrace.testing.database import Database

# A published table `t` with a key, and one with a key and a text.
KEYS_ONLY = "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION headrace FOR TABLE t"
KEYS_OF_ALL = "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION headrace FOR ALL TABLES"
WITH_TEXT = "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION headrace FOR TABLE t"
ORDERS = "CREATE TABLE orders (id bigint PRIMARY KEY); CREATE PUBLICATION headrace FOR ALL TABLES"


class OwnSource(Protocol):
    """Gives the database of a PostgreSQL that only this test uses, and may kill."""

    async def __call__(self, setup: str, settings: Mapping[str, str] | None = None) -> Database:
        """Start a server, and run the SQL."""
        ...
