"""A table's rows in a PostgreSQL, as its text or hashed there: the same statements for source and
mirror.

Promises that equal values have equal texts, with any settings of the roles and databases, and that
the digests of two servers are equal exactly if their rows are.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from headrace.errors import HeadraceError
from headrace.postgres.quoting import quote_name
from headrace.verify.digest import RANGES, Digests, Row

READ_ROWS = 5000
# Every setting that affects how PostgreSQL prints a value, or what a name means.
SESSION = {
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "extra_float_digits": "1",
    "IntervalStyle": "iso_8601",
    "lc_monetary": "C",
    "search_path": "pg_catalog",
    "standard_conforming_strings": "on",
    "statement_timeout": "0",
    "TimeZone": "UTC",
    "xmlbinary": "base64",
}


@dataclass(frozen=True, slots=True)
class SqlRows:
    """`relations` are SQL names, one or (for a partitioned source) several; `where` applies to
    each.
    """

    connection: psycopg.AsyncConnection[Any]
    relations: Sequence[str]
    names: Sequence[str]
    error_of: Callable[[psycopg.Error], HeadraceError]
    key: Sequence[str] = ()
    where: str = "true"

    async def digests(self) -> Digests:
        """Of all rows; no row leaves the server."""
        digests = Digests()
        for relation in self.relations:
            query = (
                "SELECT place, count(*), sum(one), sum(other) FROM (SELECT "  # noqa: S608
                f"{_place('key_hash')} AS place, "
                f"{_number('hash', 1)} AS one, {_number('hash', 9)} AS other FROM "
                f"({self._hashes(relation)}) AS hashed"
                ") AS numbers GROUP BY place"
            )
            with self._explained():
                found = await (await self.connection.execute(query.encode())).fetchall()
            for place, count, one, other in found:
                digests.add_sums(place, count, int(one), int(other))
        return digests

    async def rows(self, ranges: Collection[int] | None = None) -> AsyncIterator[list[Row]]:
        """All rows, or those of some ranges, some at a time."""
        listed = ", ".join(map(quote_name, self.names))
        for relation in self.relations:
            query = f"SELECT {listed} FROM {relation} WHERE {self.where}"  # noqa: S608  # quoted
            if ranges is not None:
                among = ", ".join(map(str, sorted(ranges)))
                query += f" AND {_place(_hash(self.key or self.names))} IN ({among})"
            with self._explained():
                async for some in _copied(self.connection, f"COPY ({query}) TO STDOUT"):
                    yield some

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self.error_of(error) from error

    def _hashes(self, relation: str) -> str:
        row = _hash(self.names)
        key = _hash(self.key or self.names)
        hashes = f"SELECT {row} AS hash, {key} AS key_hash"
        return f"{hashes} FROM {relation} WHERE {self.where}"


def _hash(names: Sequence[str]) -> str:
    # A record's text is written by its types' output functions, unlike a cast to text; and NULL in
    # it differs from ''.
    return f"sha256(convert_to(ROW({', '.join(map(quote_name, names))})::text, 'UTF8'))"


def _place(key_hash: str) -> str:
    # 65,536 is a multiple of RANGES, so no range gets more hashes than another.
    return f"((get_byte({key_hash}, 0) * 256 + get_byte({key_hash}, 1)) % {RANGES})"


def _number(name: str, first: int) -> str:
    # In halves: PostgreSQL's widest integer has 64 bits. Their sums are numeric, which can't
    # overflow.
    return f"('x' || encode(substring({name} FROM {first} FOR 8), 'hex'))::bit(64)::int8"


async def settle(connection: psycopg.AsyncConnection[Any]) -> None:
    """Apply the settings to the connection's transaction."""
    for name, value in SESSION.items():
        # Unlike SET, the function takes parameters; `true` limits it to the transaction.
        await connection.execute("SELECT pg_catalog.set_config(%s, %s, true)", [name, value])


async def _copied(connection: psycopg.AsyncConnection[Any], query: str) -> AsyncIterator[list[Row]]:
    some: list[Row] = []
    async with connection.cursor() as cursor, cursor.copy(query.encode()) as copy:
        async for row in copy.rows():
            some.append(tuple(row))
            if len(some) >= READ_ROWS:
                yield some
                some = []
    if some:
        yield some
