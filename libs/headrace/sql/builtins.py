"""PostgreSQL's built-in functions, operators and types by OID, as the private server names them.

A function's signature is its name with the names of its argument types: `int4div(int4,int4)`. Only
objects that initdb makes are in it: a function of an extension or a user is never translated. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

QUERY: Final = """
SELECT 'function', oid::int8, proname || '(' || coalesce((
    SELECT string_agg(t.typname, ',' ORDER BY a.number)
    FROM unnest(proargtypes) WITH ORDINALITY a(oid, number) JOIN pg_type t ON t.oid = a.oid), '')
    || ')' FROM pg_proc WHERE oid < 16384 AND pronamespace = 'pg_catalog'::regnamespace
UNION ALL SELECT 'volatile', oid::int8, proname::text FROM pg_proc
    WHERE oid < 16384 AND provolatile = 'v'
UNION ALL SELECT 'operator', oid::int8, oprname::text FROM pg_operator WHERE oid < 16384
UNION ALL SELECT 'type', oid::int8, typname::text FROM pg_type WHERE oid < 16384
UNION ALL SELECT 'c collation', oid::int8, collname::text FROM pg_collation
    WHERE collname IN ('C', 'POSIX') AND collnamespace = 'pg_catalog'::regnamespace
UNION ALL SELECT 'c collation', 100, 'default' FROM pg_database
    WHERE datname = current_database() AND datcollate IN ('C', 'POSIX')
    AND datctype IN ('C', 'POSIX') AND datlocprovider = 'c'
    AND getdatabaseencoding() = 'UTF8'
"""
"""Three columns of each row for `Builtins.of`, on PostgreSQL 15 and newer."""


@dataclass(frozen=True, slots=True)
class Builtins:
    """The meaning of a tree's OIDs. `c_collations` compare texts by their bytes."""

    functions: Mapping[int, str]
    operators: Mapping[int, str]
    types: Mapping[int, str]
    volatile: frozenset[int]
    c_collations: frozenset[int]

    @classmethod
    def of(cls, rows: Iterable[tuple[str, int, str]]) -> Builtins:
        """From the rows of `QUERY`."""
        kinds: dict[str, dict[int, str]] = {}
        for kind, oid, name in rows:
            kinds.setdefault(kind, {})[oid] = name
        return cls(
            functions=MappingProxyType(kinds.get("function", {})),
            operators=MappingProxyType(kinds.get("operator", {})),
            types=MappingProxyType(kinds.get("type", {})),
            volatile=frozenset(kinds.get("volatile", {})),
            c_collations=frozenset(kinds.get("c collation", {})),
        )

    def function(self, oid: int) -> str:
        """The signature of a function; a name that no list contains if it is not built in."""
        return self.functions.get(oid, f"function {oid}")

    def type_name(self, oid: int) -> str:
        return self.types.get(oid, f"type {oid}")
