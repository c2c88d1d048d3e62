"""Aggregate functions, also over windows. Pure.

DuckDB's sums of integers and decimals are exact; averages are quotients as numeric_div computes
them. Sums of floats are refused: their last digits depend on the order of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from headrace.contract import type_oids
from headrace.sql.calls import cast
from headrace.sql.comparisons import ordered, require_groups
from headrace.sql.constants import text_literal
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.forms import DIGITS_MAX, Expression, decimal_form, form_of, value
from headrace.sql.numeric_functions import printed, quotient
from headrace.sql.storage_types import BPCHAR_OID, Meaning


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """An aggregate: its arguments, and what stands within and after its brackets.

    `order` has the terms of ORDER BY, and `suffix` FILTER and OVER.
    """

    signature: str
    args: tuple[Expression, ...]
    result_oid: int
    distinct: bool
    order: tuple[str, ...]
    suffix: str
    # Sums have to be computed with 128 bits.
    wide: bool = False

    def sql(self, function: str, *args: str, order: Sequence[str] = ()) -> str:
        """A call of DuckDB's function on these arguments."""
        word = "DISTINCT " if self.distinct else ""
        terms = f" ORDER BY {', '.join(order)}" if order else ""
        return f"{function}({word}{', '.join(args)}{terms}){self.suffix}"

    def refuse(self, why: str = "") -> NotProvenEqualError:
        return NotProvenEqualError(f"aggregate {self.signature}", why)

    @property
    def argument(self) -> Expression:
        return self.args[0]


Aggregate: TypeAlias = Callable[[AggregateCall], Expression]


def _count_rows(call: AggregateCall) -> Expression:
    return value(f"count(*){call.suffix}", type_oids.INT8)


def _count(call: AggregateCall) -> Expression:
    if call.distinct:
        # Equal values may be stored differently, as -0 and 0 or with other blanks, and count once.
        return value(call.sql("count", ordered(call.argument)), type_oids.INT8)
    return value(call.sql("count", call.argument.kept), type_oids.INT8)


def _sum_to_bigint(call: AggregateCall) -> Expression:
    # DuckDB's sum is a HUGEINT; PostgreSQL's type for sums of smaller integers is bigint.
    return value(f"CAST({call.sql('sum', call.argument.sql)} AS BIGINT)", type_oids.INT8)


def _sum_of_bigints(call: AggregateCall) -> Expression:
    form = decimal_form(DIGITS_MAX, 0)
    argument = call.argument.sql
    if call.wide:
        argument = f"CAST({argument} AS HUGEINT)"
    return Expression(cast(call.sql("sum", argument), form), form)


def _sum_of_numerics(call: AggregateCall) -> Expression:
    argument = call.argument
    if not argument.form.is_decimal:
        raise NotProvenEqualError(f"{call.signature} of numeric without precision")
    form = decimal_form(DIGITS_MAX, argument.form.scale, varies=argument.form.varies)
    summand = argument.sql
    if call.wide:
        summand = f"CAST({summand} AS {form.duckdb})"
    total = cast(call.sql("sum", summand), form)
    if argument.scale is None:
        return Expression(total, form)
    if call.distinct:
        # Of 1.0 and 1.00, only one is summed: which one it is would decide the digits of the sum.
        raise call.refuse("DISTINCT numerics whose display scales differ.")
    # PostgreSQL shows a sum with the largest display scale of its numbers. A NULL has none.
    scales = f"CASE WHEN {argument.sql} IS NOT NULL THEN {argument.scale} END"
    return Expression(total, form, call.sql("max", scales))


def _average(call: AggregateCall) -> Expression:
    total = _TOTALS[call.argument.form.type_oid](call)
    count = call.sql("count", call.argument.sql)
    form = decimal_form(19, 0)
    return quotient(total, Expression(count, form))


def _deviation(kind: str) -> Aggregate:
    def handle(call: AggregateCall) -> Expression:
        argument = call.argument
        if call.distinct:
            # A DISTINCT sum of squares would take -1 and 1 for one number.
            raise call.refuse("DISTINCT.")
        total = _TOTALS[argument.form.type_oid](call)
        if argument.form.is_decimal:
            form = decimal_form(DIGITS_MAX, 2 * argument.form.scale)
            wide = f"CAST({argument.sql} AS DECIMAL({DIGITS_MAX},{argument.form.scale}))"
            squares = f"CAST({wide} * {argument.sql} AS {form.duckdb})"
        else:
            squares = f"CAST({argument.sql} AS HUGEINT) * CAST({argument.sql} AS HUGEINT)"
        parts = (call.sql("count", argument.sql), total.sql, call.sql("sum", squares))
        texts = ", ".join(f"CAST({part} AS VARCHAR)" for part in parts)
        scale = f"CAST({total.scale_sql} AS INTEGER)"
        return printed(f"headrace_deviation({texts}, {scale}, '{kind}')")

    return handle


def _least_or_greatest(function: str) -> Aggregate:
    def handle(call: AggregateCall) -> Expression:
        argument = call.argument
        require_groups(argument)
        if argument.form.type_oid == BPCHAR_OID:
            sql = call.sql(f"arg_{function}", argument.sql, ordered(argument))
        else:
            sql = call.sql(function, argument.sql)
        return Expression(sql, argument.form)

    return handle


def _plain(function: str) -> Aggregate:
    def handle(call: AggregateCall) -> Expression:
        return value(call.sql(function, call.argument.sql), call.result_oid)

    return handle


def _joined(call: AggregateCall) -> Expression:
    delimiter = call.args[1].constant
    if not isinstance(delimiter, str):
        # PostgreSQL takes the delimiter of each row; DuckDB has one for all of them.
        raise call.refuse("The delimiter has to be a constant.")
    if not call.order:
        raise call.refuse("The order of rows decides; add ORDER BY.")
    sql = call.sql("string_agg", call.argument.sql, text_literal(delimiter), order=call.order)
    return value(sql, call.result_oid)


def _array(call: AggregateCall) -> Expression:
    argument = call.argument
    if not call.order:
        raise call.refuse("The order of rows decides; add ORDER BY.")
    form = form_of(call.result_oid)
    plain = argument.form.meaning is not Meaning.TEXT and not argument.form.is_decimal
    if not plain or form.duckdb != f"{argument.form.duckdb}[]":
        raise call.refuse("Its element type.")
    return Expression(call.sql("list", argument.sql, order=call.order), form)


_TOTALS: Final[Mapping[int, Aggregate]] = MappingProxyType(
    {
        type_oids.INT2: _sum_of_bigints,
        type_oids.INT4: _sum_of_bigints,
        type_oids.INT8: _sum_of_bigints,
        type_oids.NUMERIC: _sum_of_numerics,
    }
)
# Of the types with min and max in PostgreSQL, those that DuckDB orders in the same way.
_COMPARED: Final = (
    "int2", "int4", "int8", "oid", "float4", "float8", "numeric", "date", "timestamp",
    "timestamptz", "time", "text", "bpchar", "bytea",
)  # fmt: skip


def _aggregates() -> Iterator[tuple[str, Aggregate]]:
    for name in _COMPARED:
        yield f"min({name})", _least_or_greatest("min")
        yield f"max({name})", _least_or_greatest("max")
    for name in ("int2", "int4", "int8", "numeric"):
        yield f"avg({name})", _average
        for kind in ("var_samp", "var_pop", "stddev_samp", "stddev_pop"):
            yield f"{kind}({name})", _deviation(kind)
        yield f"variance({name})", _deviation("var_samp")
        yield f"stddev({name})", _deviation("stddev_samp")


AGGREGATES: Final[Mapping[str, Aggregate]] = MappingProxyType(
    {
        **dict(_aggregates()),
        "count()": _count_rows,
        "count(any)": _count,
        "sum(int2)": _sum_to_bigint,
        "sum(int4)": _sum_to_bigint,
        "sum(int8)": _sum_of_bigints,
        "sum(numeric)": _sum_of_numerics,
        "bool_and(bool)": _plain("bool_and"),
        "bool_or(bool)": _plain("bool_or"),
        "every(bool)": _plain("bool_and"),
        "string_agg(text,text)": _joined,
        "array_agg(anynonarray)": _array,
    }
)
"""All aggregates that may be called, by signature."""
