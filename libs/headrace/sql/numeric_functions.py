"""Functions and operators on numeric.

Sums, differences and products are exact in DECIMAL, within 38 digits; a result with more ends with
an error. A quotient has PostgreSQL's scale, which depends on the values: functions of ours compute
it (`numeric_arithmetic`). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final

from headrace.contract import type_oids
from headrace.lake.column_types import numeric_bounds
from headrace.sql.calls import Call, Functions, Handler, cast, error_sql, guarded
from headrace.sql.constants import Numeric, numeric_expression, text_literal
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.forms import DIGITS_MAX, Expression, Form, decimal_form, form_of
from headrace.sql.number_functions import DIVISION_BY_ZERO

# Numbers that functions of ours compute, as DECIMALs; those with more digits are refused.
# Together they are the 38 digits of DuckDB's widest type.
COMPUTED_WHOLE: Final = 14
COMPUTED_SCALE: Final = 24

_INTEGER_DIGITS: Final = {
    type_oids.INT2: 5,
    type_oids.INT4: 10,
    type_oids.INT8: 19,
}
# The digits of a DECIMAL in 64 bits.
_NARROW: Final = 18
_OVERFLOW = error_sql("22003", "numeric field overflow")


def _first(call: Call) -> Expression:
    """The argument before constants."""
    arg = call.args[0]
    if not arg.form.is_decimal:
        raise NotProvenEqualError(f"{call.signature} of numeric without precision")
    return arg


def decimals(call: Call) -> tuple[Expression, ...]:
    """The arguments, all DECIMALs."""
    if not all(arg.form.is_decimal for arg in call.args):
        raise NotProvenEqualError(f"{call.signature} of numeric without precision")
    return call.args


def _scaled(sql: str, form: Form, scale: str) -> Expression:
    return Expression(cast(sql, form), form, scale if form.varies else None, may_fail=True)


def _computed(call: Call, whole: int, scale: int) -> Form:
    """The form of a sum or product with so many digits at most."""
    varies = any(arg.form.varies for arg in call.args)
    form = decimal_form(whole, scale, varies=varies)
    narrow = call.narrow and scale < _NARROW < form.width
    if narrow and all(arg.form.width <= _NARROW for arg in call.args):
        # DuckDB computes with 64 bits, several times as fast as with 128, and checks each value.
        return decimal_form(_NARROW - scale, scale, varies=varies)
    return form


def _sum(operator: str) -> Handler:
    def handle(call: Call) -> Expression:
        left, right = decimals(call)
        scale = max(left.form.scale, right.form.scale)
        whole = max(left.form.whole, right.form.whole) + 1
        form = _computed(call, whole, scale)
        # DuckDB adds in the type of the operands, which is one digit too narrow at its maximum.
        sql = f"{cast(left.sql, form)} {operator} {cast(right.sql, form)}"
        return _scaled(sql, form, f"greatest({left.scale_sql}, {right.scale_sql})")

    return handle


def _product(call: Call) -> Expression:
    left, right = decimals(call)
    scale = left.form.scale + right.form.scale
    form = _computed(call, left.form.whole + right.form.whole, scale)
    factor = left.sql
    # DuckDB multiplies narrow decimals in 64 bits, even if the product needs more.
    if form.width > _NARROW and left.form.width <= _NARROW and right.form.width <= _NARROW:
        factor = f"CAST({factor} AS DECIMAL({_NARROW + 1},{left.form.scale}))"
    return _scaled(f"{factor} * {right.sql}", form, f"({left.scale_sql} + {right.scale_sql})")


def _remainder(call: Call) -> Expression:
    left, right = decimals(call)
    scale = max(left.form.scale, right.form.scale)
    whole = max(left.form.whole, right.form.whole)
    form = decimal_form(whole, scale, varies=left.form.varies or right.form.varies)
    plain = f"{cast(left.sql, form)} % {cast(right.sql, form)}"
    # DuckDB would answer NULL, where PostgreSQL raises an error.
    zero = f"{right.sql} = 0 AND {left.sql} IS NOT NULL"
    scales = f"greatest({left.scale_sql}, {right.scale_sql})"
    return _scaled(guarded(zero, DIVISION_BY_ZERO, plain), form, scales)


def _quotient(call: Call) -> Expression:
    left, right = decimals(call)
    return quotient(left, right)


def quotient(left: Expression, right: Expression) -> Expression:
    """Division as numeric_div: value and display scale come from functions of ours."""
    arguments = (
        f"CAST({left.sql} AS VARCHAR), CAST({right.sql} AS VARCHAR), "
        f"CAST({left.scale_sql} AS INTEGER), CAST({right.scale_sql} AS INTEGER)"
    )
    return printed(f"headrace_quotient({arguments})")


def printed(text: str) -> Expression:
    """A numeric from SQL of its text, by a function of ours."""
    form = decimal_form(COMPUTED_WHOLE, COMPUTED_SCALE, varies=True)
    number = f"CAST(headrace_checked({text}) AS {form.duckdb})"
    return Expression(number, form, f"headrace_scale({text})", text=text)


def _negated(call: Call) -> Expression:
    (arg,) = decimals(call)
    return _scaled(f"-{arg.sql}", arg.form, arg.scale_sql)


def _absolute(call: Call) -> Expression:
    (arg,) = decimals(call)
    return _scaled(f"abs({arg.sql})", arg.form, arg.scale_sql)


def _same(call: Call) -> Expression:
    return decimals(call)[0]


def _sign(call: Call) -> Expression:
    (arg,) = decimals(call)
    return _scaled(f"sign({arg.sql})", decimal_form(1, 0), "0")


def _to_whole(function: str) -> Handler:
    def handle(call: Call) -> Expression:
        (arg,) = decimals(call)
        # The next whole number may have one more digit: ceil(9.5) is 10.
        form = decimal_form(arg.form.whole + 1, 0)
        sql = f"{function}({arg.sql})" if arg.form.scale else arg.sql
        return _scaled(sql, form, "0")

    return handle


def _rounded(call: Call) -> Expression:
    """To a constant number of digits after the point: CAST rounds half away from zero in both."""
    arg = _first(call)
    digits = _digits(call)
    return _scaled(arg.sql, decimal_form(arg.form.whole + 1, digits), "0")


def _truncated(call: Call) -> Expression:
    arg = _first(call)
    digits = _digits(call)
    form = decimal_form(arg.form.whole, digits)
    if digits >= arg.form.scale:
        return _scaled(arg.sql, form, "0")
    unit = f"CAST('{Numeric(1, digits)}' AS DECIMAL({digits + 1},{digits}))"
    # The remainder has the number's sign, so this cuts towards zero, as PostgreSQL does.
    return _scaled(f"({arg.sql} - {arg.sql} % {unit})", form, "0")


def _digits(call: Call) -> int:
    digits = call.integer_constant(1) if len(call.args) > 1 else 0
    if not 0 <= digits <= DIGITS_MAX:
        raise call.refuse(f"The number of digits has to be from 0 to {DIGITS_MAX}.")
    return digits


def _with_modifier(call: Call) -> Expression:
    """A cast to numeric(p,s): rounds, and fails if a value has more digits."""
    arg = _first(call)
    modifier = call.integer_constant(1)
    if modifier < 0:
        return arg
    bounds = numeric_bounds(modifier)
    if bounds is None:
        raise NotProvenEqualError(f"numeric with more than {DIGITS_MAX} digits")
    precision, scale = bounds
    form = decimal_form(precision - scale, scale, modifier=modifier)
    # Rounding may carry into a new digit. With room for that digit, no value can fail.
    if arg.form.whole + (arg.form.scale > scale) <= form.whole:
        return _scaled(arg.sql, form, "0")
    # TRY_CAST, so that the client gets PostgreSQL's error and its code instead of DuckDB's.
    tried = f"TRY_CAST({arg.sql} AS {form.duckdb})"
    return Expression(guarded(f"{tried} IS NULL AND {arg.sql} IS NOT NULL", _OVERFLOW, tried), form)


def _from_integer(call: Call) -> Expression:
    (arg,) = call.args
    if isinstance(arg.constant, int):
        return numeric_expression(Numeric(arg.constant, 0))
    form = decimal_form(_INTEGER_DIGITS[arg.form.type_oid], 0)
    return Expression(cast(arg.sql, form), form, is_null=arg.is_null)


def _to_integer(call: Call) -> Expression:
    """Half away from zero in both."""
    arg = _first(call)
    form = form_of(call.result_oid)
    name = {type_oids.INT2: "smallint", type_oids.INT4: "integer", type_oids.INT8: "bigint"}
    tried = f"TRY_CAST({arg.sql} AS {form.duckdb})"
    error = error_sql("22003", f"{name[call.result_oid]} out of range")
    return Expression(guarded(f"{tried} IS NULL AND {arg.sql} IS NOT NULL", error, tried), form)


def _to_float(call: Call) -> Expression:
    """By its text: DuckDB's own cast doesn't round large numbers to the nearest float."""
    form = form_of(call.result_oid)
    text = call.args[0].constant
    if isinstance(text, str):
        shown = text_literal(text)
    else:
        shown = numeric_text(_first(call))
    return Expression(f"CAST({shown} AS {form.duckdb})", form)


def numeric_text(expression: Expression) -> str:
    """SQL of the text that PostgreSQL prints."""
    form = expression.form
    if expression.text is not None:
        return expression.text
    # DuckDB leaves out the zero before the point if the type has no digit there.
    if not form.whole:
        widest = decimal_form(1, form.scale)
        if not widest.whole:
            raise NotProvenEqualError("the text of numeric(38,38)")
        form = widest
    text = f"CAST({cast(expression.sql, form)} AS VARCHAR)"
    if expression.scale is None:
        return text
    scale = expression.scale
    point = "0"
    # A number without digits after the point is printed without the point.
    if form.scale:
        point = f"(CASE WHEN {scale} = 0 THEN 1 ELSE 0 END)"
    return f"left({text}, length({text}) - ({form.scale} - {scale}) - {point})"


def _integer_casts() -> Iterator[tuple[str, Handler]]:
    for name in ("int2", "int4", "int8"):
        yield f"numeric({name})", _from_integer
        yield f"{name}(numeric)", _to_integer


NUMERIC_FUNCTIONS: Final[Functions] = MappingProxyType(
    {
        "numeric_add(numeric,numeric)": _sum("+"),
        "numeric_sub(numeric,numeric)": _sum("-"),
        "numeric_mul(numeric,numeric)": _product,
        "numeric_div(numeric,numeric)": _quotient,
        "numeric_mod(numeric,numeric)": _remainder,
        "mod(numeric,numeric)": _remainder,
        "numeric_uminus(numeric)": _negated,
        "numeric_uplus(numeric)": _same,
        "numeric_abs(numeric)": _absolute,
        "abs(numeric)": _absolute,
        "sign(numeric)": _sign,
        "ceil(numeric)": _to_whole("ceil"),
        "ceiling(numeric)": _to_whole("ceil"),
        "floor(numeric)": _to_whole("floor"),
        "round(numeric)": _rounded,
        "round(numeric,int4)": _rounded,
        "trunc(numeric)": _truncated,
        "trunc(numeric,int4)": _truncated,
        "numeric(numeric,int4)": _with_modifier,
        "float8(numeric)": _to_float,
        **dict(_integer_casts()),
    }
)
