"""The type of each PostgreSQL value in the lake, and in DuckDB's copy. Pure.

| PostgreSQL | the lake | the copy |
|---|---|---|
| boolean | boolean | BOOLEAN |
| smallint; integer; bigint, oid | int; int; long | SMALLINT; INTEGER; BIGINT |
| real, double precision | float, double | FLOAT, DOUBLE |
| numeric(p, s) as in Iceberg; money | decimal(p, s); decimal(19, 2) | the same |
| date, timestamp, timestamptz | the same | DATE, TIMESTAMP, TIMESTAMPTZ |
| time, interval, uuid | string | TIME, INTERVAL, UUID |
| bytea | binary | BLOB |
| text, varchar, bpchar (with its padding), name | string | VARCHAR |
| arrays of one dimension | list | LIST of the element's type |
| all others | string | VARCHAR: the text |

DuckDB's dates and timestamps also hold `infinity` and years before Christ and above 9999. A value
that the copy's type can't hold is null there, and the column is not `held`: NaN in a numeric with
bounds, arrays of several dimensions or with other bounds, timestamps after 294247-01-10, the
intervals `infinity`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from headrace.contract import type_oids
from headrace.lake.column_types import numeric_bounds

TEXT_OID: Final = 25
NAME_OID: Final = 19
BPCHAR_OID: Final = 1042
VARCHAR_OID: Final = 1043
TIME_OID: Final = 1083
INTERVAL_OID: Final = 1186
UUID_OID: Final = 2950


class Meaning(StrEnum):
    """The relation of a value in the copy to PostgreSQL's."""

    # DuckDB's type has the values of PostgreSQL's, and the same order and equality.
    VALUE = "value"
    # Characters of a text type: the same order and equality, under the collation C. `bpchar` keeps
    # its padding, which its comparisons have to ignore.
    CHARACTERS = "characters"
    # PostgreSQL's text of a value of another type (of timetz and of domains, the contract's form):
    # its equality and order are not the value's.
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class TypeStorage:
    """The type of a column in the copy; `element` is that of an array's elements."""

    duckdb: str
    meaning: Meaning
    element: TypeStorage | None = None


def _value(duckdb: str) -> TypeStorage:
    return TypeStorage(duckdb, Meaning.VALUE)


_CHARACTERS = TypeStorage("VARCHAR", Meaning.CHARACTERS)
_TEXT = TypeStorage("VARCHAR", Meaning.TEXT)
_SCALARS: Final[Mapping[int, TypeStorage]] = MappingProxyType(
    {
        type_oids.BOOL: _value("BOOLEAN"),
        type_oids.INT2: _value("SMALLINT"),
        type_oids.INT4: _value("INTEGER"),
        type_oids.INT8: _value("BIGINT"),
        type_oids.OID: _value("BIGINT"),
        type_oids.FLOAT4: _value("FLOAT"),
        type_oids.FLOAT8: _value("DOUBLE"),
        type_oids.MONEY: _value("DECIMAL(19,2)"),
        type_oids.BYTEA: _value("BLOB"),
        type_oids.DATE: _value("DATE"),
        type_oids.TIMESTAMP: _value("TIMESTAMP"),
        type_oids.TIMESTAMPTZ: _value("TIMESTAMPTZ"),
        TIME_OID: _value("TIME"),
        INTERVAL_OID: _value("INTERVAL"),
        UUID_OID: _value("UUID"),
        TEXT_OID: _CHARACTERS,
        VARCHAR_OID: _CHARACTERS,
        BPCHAR_OID: _CHARACTERS,
        NAME_OID: _CHARACTERS,
    }
)


def storage(type_oid: int, modifier: int) -> TypeStorage:
    """The copy's storage of a type; types that are not built in are text."""
    element_oid = type_oids.ELEMENT_OIDS.get(type_oid)
    if element_oid is None:
        return _scalar(type_oid, modifier)
    element = _scalar(element_oid, modifier)
    return TypeStorage(f"{element.duckdb}[]", Meaning.VALUE, element)


def exported(expression: str, duckdb: str) -> str:
    """A value of a DuckDB type as it leaves DuckDB whole: Arrow's intervals are in nanoseconds, of
    which 64 bits are 292 years.
    """
    if duckdb == "INTERVAL[]":
        return f"list_transform({expression}, lambda e: {exported('e', 'INTERVAL')})"
    if duckdb != "INTERVAL":
        return expression
    months = f"12 * datepart('year', {expression}) + datepart('month', {expression})"
    us = (
        f"3600000000 * datepart('hour', {expression}) + 60000000 * datepart('minute', "
        f"{expression}) + datepart('microsecond', {expression})"
    )
    fields = f"{{'months': {months}, 'days': datepart('day', {expression}), 'us': {us}}}"
    return f"CASE WHEN ({expression}) IS NOT NULL THEN {fields} END"


def _scalar(type_oid: int, modifier: int) -> TypeStorage:
    if type_oid != type_oids.NUMERIC:
        return _SCALARS.get(type_oid, _TEXT)
    bounds = numeric_bounds(modifier)
    if bounds is None:
        return _TEXT
    precision, scale = bounds
    return _value(f"DECIMAL({precision},{scale})")
