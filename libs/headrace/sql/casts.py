"""Casts between types. Pure.

A cast by a function is in a list like any function. CoerceViaIO writes the value's text
and reads it as the other type: only texts that both write equally are on the list.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final

from headrace.contract import type_oids
from headrace.sql.calls import (
    Call,
    Functions,
    Handler,
    SessionSettings,
    error_sql,
    guarded,
    refuse_texts,
    template,
)
from headrace.sql.constants import UNKNOWN_OID
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.forms import Expression, form_of, value
from headrace.sql.numeric_functions import numeric_text
from headrace.sql.storage_types import NAME_OID, TEXT_OID, UUID_OID, VARCHAR_OID, Meaning

_TEXTS: Final = frozenset({TEXT_OID, VARCHAR_OID, UNKNOWN_OID})
_INTEGERS: Final = frozenset({type_oids.INT2, type_oids.INT4, type_oids.INT8, type_oids.OID})
_ZONED: Final = type_oids.TIMESTAMPTZ
_MOMENTS: Final = frozenset({type_oids.DATE, type_oids.TIMESTAMP, _ZONED})
_RANGE_NAMES: Final = {
    type_oids.INT2: "smallint",
    type_oids.INT4: "integer",
    type_oids.INT8: "bigint",
}


def via_text(
    argument: Expression, result_oid: int, type_name: str, session: SessionSettings
) -> Expression:
    """CoerceViaIO."""
    source = argument.form.type_oid
    if result_oid not in _TEXTS:
        raise NotProvenEqualError(f"a cast from {type_name} to type {result_oid} by its text")
    # A null of any type has no text.
    if argument.is_null:
        return value("CAST(NULL AS VARCHAR)", result_oid)
    if argument.form.meaning is Meaning.TEXT:
        # The copy has PostgreSQL's text of the value.
        if source in (type_oids.NUMERIC, type_oids.JSON, type_oids.JSONB):
            return value(argument.sql, result_oid)
    elif argument.form.is_decimal:
        return value(numeric_text(argument), result_oid)
    elif source in _INTEGERS or source == UUID_OID:
        return value(f"CAST({argument.sql} AS VARCHAR)", result_oid)
    elif source in _TEXTS or source == NAME_OID:
        return value(argument.sql, result_oid)
    elif source in _MOMENTS and session.iso_dates and (session.utc or source != _ZONED):
        return value(moment_text(argument.sql, source), result_oid)
    raise NotProvenEqualError(f"a cast from {type_name} to text")


def moment_text(sql: str, oid: int) -> str:
    """The text of a date or timestamp in ISO form, in UTC."""
    if oid == type_oids.DATE:
        # DuckDB writes (BC).
        return f"replace(CAST({sql} AS VARCHAR), ' (BC)', ' BC')"
    moment = f"({sql} AT TIME ZONE 'UTC')" if oid == _ZONED else sql
    offset = " || '+00'" if oid == _ZONED else ""
    before_christ = error_sql("0A000", "the text of a timestamp before Christ")
    return (
        f"(CASE WHEN NOT isfinite({moment}) THEN CAST({moment} AS VARCHAR) WHEN year({moment}) < 1 "
        f"THEN {before_christ} ELSE CAST({moment} AS VARCHAR){offset} END)"
    )


def relabelled(argument: Expression, result_oid: int, modifier: int, names: str) -> Expression:
    """RelabelType: the same bytes as another type."""
    form = form_of(result_oid, modifier)
    source = argument.form
    if source.type_oid == result_oid:
        return argument
    if source.meaning is form.meaning and source.duckdb == form.duckdb != "VARCHAR":
        return Expression(argument.sql, form, constant=argument.constant, is_null=argument.is_null)
    if source.meaning is form.meaning is Meaning.CHARACTERS:
        return Expression(argument.sql, form, constant=argument.constant, is_null=argument.is_null)
    raise NotProvenEqualError(f"a cast {names}")


def _widened(call: Call) -> Expression:
    refuse_texts(call)
    form = form_of(call.result_oid)
    return Expression(
        f"CAST({call.sql(0)} AS {form.duckdb})", form, constant=_integer(call.args[0])
    )


def _integer(argument: Expression) -> int | None:
    number = argument.constant
    # A boolean is an int in Python.
    if isinstance(number, bool) or not isinstance(number, int):
        return None
    return number


def _narrowed(call: Call) -> Expression:
    """To an integer type: floats round half to even, in both."""
    refuse_texts(call)
    form = form_of(call.result_oid)
    tried = f"TRY_CAST({call.sql(0)} AS {form.duckdb})"
    error = error_sql("22003", f"{_RANGE_NAMES[call.result_oid]} out of range")
    return Expression(guarded(f"{tried} IS NULL AND {call.sql(0)} IS NOT NULL", error, tried), form)


def _to_float4(call: Call) -> Expression:
    refuse_texts(call)
    source = call.sql(0)
    form = form_of(call.result_oid)
    tried = f"TRY_CAST({source} AS FLOAT)"
    too_large = error_sql("22003", "value out of range: overflow")
    too_small = error_sql("22003", "value out of range: underflow")
    sql = (
        f"(CASE WHEN NOT isinf({source}) AND ({tried} IS NULL OR isinf({tried})) THEN {too_large} "
        f"WHEN {tried} = 0 AND {source} <> 0 THEN {too_small} ELSE {tried} END)"
    )
    return Expression(sql, form)


def _integers() -> Iterator[tuple[str, Handler]]:
    sizes = ("int2", "int4", "int8")
    for position, target in enumerate(sizes):
        for source in sizes[:position]:
            yield f"{target}({source})", _widened
        for source in (*sizes[position + 1 :], "float4", "float8"):
            yield f"{target}({source})", _narrowed
        for target_float in ("float4", "float8"):
            yield f"{target_float}({target})", _widened


CASTS: Final[Functions] = MappingProxyType(
    {
        **dict(_integers()),
        "float8(float4)": _widened,
        "float4(float8)": _to_float4,
        "int4(bool)": template("CAST({0} AS INTEGER)"),
        "bool(int4)": template("{0} <> 0"),
    }
)
