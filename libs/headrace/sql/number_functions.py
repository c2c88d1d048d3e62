"""Functions and operators on integers and floats. Pure.

Integers overflow with an error in both. DuckDB gives null where PostgreSQL reports a division by
zero, and infinity where PostgreSQL reports that a float overflows; here both are errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final

from headrace.sql.calls import (
    Call,
    Functions,
    Handler,
    error_sql,
    guarded,
    refuse_texts,
    template,
)
from headrace.sql.forms import Expression, Form, form_of, value

DIVISION_BY_ZERO: Final = error_sql("22012", "division by zero")
_FLOAT_OVERFLOW = error_sql("22003", "value out of range: overflow")
_FLOAT_UNDERFLOW = error_sql("22003", "value out of range: underflow")
_SIZES: Final = {"int2": 2, "int4": 4, "int8": 8}


def _cast(number: Expression, form: Form) -> str:
    if number.form.duckdb == form.duckdb:
        return number.kept
    return f"CAST({number.kept} AS {form.duckdb})"


def _binary(operator: str) -> Handler:
    """An operator in the wider type of the operands, which is the result's."""

    def handle(call: Call) -> Expression:
        refuse_texts(call)
        form = form_of(call.result_oid)
        left, right = (_cast(arg, form) for arg in call.args)
        return Expression(f"({left} {operator} {right})", form, may_fail=True)

    return handle


def _division(call: Call) -> Expression:
    plain = _binary("//")(call)
    return value(checked_divisor(call, plain.sql), call.result_oid)


def _modulo(call: Call) -> Expression:
    plain = _binary("%")(call)
    divisor = call.args[1]
    if isinstance(divisor.constant, int) and divisor.constant not in (0, -1):
        return plain
    # DuckDB takes the remainder of the least integer by -1 for an overflow.
    sql = f"(CASE WHEN {divisor.sql} = -1 THEN {call.sql(0)} - {call.sql(0)} ELSE {plain.sql} END)"
    return value(checked_divisor(call, sql), call.result_oid)


def checked_divisor(call: Call, sql: str) -> str:
    """The division, or an error if the divisor is zero and no operand is null."""
    dividend, divisor = call.args
    if isinstance(divisor.constant, int) and divisor.constant:
        return sql
    condition = f"{divisor.sql} = 0 AND {dividend.sql} IS NOT NULL"
    return guarded(condition, DIVISION_BY_ZERO, sql)


def _float(operator: str) -> Handler:
    plain = _binary(operator)

    def handle(call: Call) -> Expression:
        result = plain(call)
        left, right = call.sql(0), call.sql(1)
        checks = _float_checks(operator, left, right, result.sql)
        cases = " ".join(f"WHEN {condition} THEN {error}" for condition, error in checks)
        return value(f"(CASE {cases} ELSE {result.sql} END)", call.result_oid)

    return handle


def _float_checks(operator: str, left: str, right: str, sql: str) -> list[tuple[str, str]]:
    """The errors of float8pl and its siblings, in their order."""
    finite = f"isinf({sql}) AND NOT isinf({left})"
    both = f"{finite} AND NOT isinf({right})"
    if operator in "+-":
        return [(both, _FLOAT_OVERFLOW)]
    if operator == "*":
        vanished = f"{sql} = 0 AND {left} <> 0 AND {right} <> 0"
        return [(both, _FLOAT_OVERFLOW), (vanished, _FLOAT_UNDERFLOW)]
    zero = f"{right} = 0 AND NOT isnan({left})"
    vanished = f"{sql} = 0 AND {left} <> 0 AND NOT isinf({right})"
    return [(zero, DIVISION_BY_ZERO), (finite, _FLOAT_OVERFLOW), (vanished, _FLOAT_UNDERFLOW)]


def _square_root(call: Call) -> Expression:
    refuse_texts(call)
    negative = error_sql("2201F", "cannot take square root of a negative number")
    # Negative zero is its own root, and NaN is no negative number.
    root = f"sqrt({call.sql(0)})"
    return value(guarded(f"{call.sql(0)} < 0", negative, root), call.result_oid)


def _pairs() -> Iterator[tuple[str, str, str, int]]:
    """The names in PostgreSQL of pairs of integer types."""
    for left, left_size in _SIZES.items():
        for right, right_size in _SIZES.items():
            sizes = str(left_size) if left == right else f"{left_size}{right_size}"
            yield sizes, left, right, max(left_size, right_size)


def _integers() -> Iterator[tuple[str, Handler]]:
    operators = {"pl": "+", "mi": "-", "mul": "*"}
    for sizes, left, right, _ in _pairs():
        for name, operator in operators.items():
            yield f"int{sizes}{name}({left},{right})", _binary(operator)
        yield f"int{sizes}div({left},{right})", _division
    for name, size in _SIZES.items():
        yield f"int{size}mod({name},{name})", _modulo
        yield f"mod({name},{name})", _modulo
        yield f"int{size}um({name})", template("-{0}")
        yield f"int{size}up({name})", template("{0}")
        yield f"int{size}abs({name})", template("abs({0})")
        yield f"abs({name})", template("abs({0})")
        yield f"int{size}and({name},{name})", template("{0} & {1}")
        yield f"int{size}or({name},{name})", template("{0} | {1}")
        yield f"int{size}xor({name},{name})", template("xor({0}, {1})")
        yield f"int{size}not({name})", template("~{0}")


def _floats() -> Iterator[tuple[str, Handler]]:
    operators = {"pl": "+", "mi": "-", "mul": "*", "div": "/"}
    types = {"float4": 4, "float8": 8}
    for left, left_size in types.items():
        for right, right_size in types.items():
            sizes = str(left_size) if left == right else f"{left_size}{right_size}"
            for name, operator in operators.items():
                yield f"float{sizes}{name}({left},{right})", _float(operator)
    for name, size in types.items():
        yield f"float{size}um({name})", template("-{0}")
        yield f"float{size}up({name})", template("{0}")
        yield f"float{size}abs({name})", template("abs({0})")
        yield f"abs({name})", template("abs({0})")


NUMBER_FUNCTIONS: Final[Functions] = MappingProxyType(
    {
        **dict(_integers()),
        **dict(_floats()),
        "sqrt(float8)": _square_root,
        "dsqrt(float8)": _square_root,
        "ceil(float8)": template("ceil({0})"),
        "ceiling(float8)": template("ceil({0})"),
        "floor(float8)": template("floor({0})"),
        "trunc(float8)": template("trunc({0})"),
        "round(float8)": template("round_even({0}, 0)"),
    }
)
