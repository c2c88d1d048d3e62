"""Texts and binary forms of PostgreSQL's numbers."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.sql.errors import NotProvenEqualError
from headrace.sql.moments import infinity_text
from headrace.sql.value_forms.arrow import (
    Array,
    Numbers,
    big_endian,
    buffer,
    each,
    filled,
    integers,
    pc,
    replaced,
    valid,
    with_nulls_of,
)

# Between these, float8out prints no exponent, and Arrow prints the same digits.
_FIXED_MIN = 1e-4
_ARROW_FIXED_MAX = 1e10
_DOUBLE_FIXED_MAX = 1e15
_SINGLE_FIXED_MAX = 1e6
# Arrow prints decimals of a larger scale with an exponent if they are small.
_PLAIN_SCALE_MAX = 6
# Decimals whose digits are computed in 64 bits.
_SMALL_PRECISION = 18
_SMALL_SCALE = 16
# A double has up to 767 of them.
_EXACT_DIGITS = 800
# PostgreSQL's numerics consist of groups of four decimal digits.
_BASE = 10_000
_BASE_DIGITS = 4
_NEGATIVE = 0x4000
_SPECIALS = {"NaN": 0xC000, "Infinity": 0xD000, "-Infinity": 0xF000}
# PostgreSQL sends these, which mean nothing.
_SPECIAL_SCALES = {"NaN": 0, "Infinity": 0x20, "-Infinity": 0x20}


def integer_texts(column: Array) -> Array:
    """Integers."""
    return column.cast(pa.string())


def float8_texts(column: Array) -> Array:
    """The shortest digits that give the number again."""
    numbers = _floats(column)
    size = np.abs(numbers)
    texts = column.cast(pa.string())
    whole_ = (size >= _ARROW_FIXED_MAX) & (size < _DOUBLE_FIXED_MAX)
    whole_[whole_] = numbers[whole_] % 1 == 0
    rows = np.flatnonzero(whole_)
    if len(rows):
        shown = pa.array(numbers[rows].astype(np.int64)).cast(pa.string())
        texts = replaced(texts, rows.tolist(), shown.to_pylist())
    usual = (size == 0) | ((size >= _FIXED_MIN) & (size < _ARROW_FIXED_MAX)) | whole_
    odd = np.flatnonzero(~usual)
    others = [float_text(number, repr(float(number)), _DOUBLE_FIXED_MAX) for number in numbers[odd]]
    return with_nulls_of(replaced(texts, odd.tolist(), others), column)


def float4_texts(column: Array) -> Array:
    """The shortest digits that give the single-precision number again."""
    numbers = _floats(column)
    size = np.abs(numbers)
    usual = (size == 0) | ((size >= np.float32(_FIXED_MIN)) & (size < _SINGLE_FIXED_MAX))
    odd = np.flatnonzero(~usual)
    others = [float_text(number, str(number), _SINGLE_FIXED_MAX) for number in numbers[odd]]
    return with_nulls_of(replaced(column.cast(pa.string()), odd.tolist(), others), column)


def _floats(column: Array) -> Numbers:
    found: Numbers = filled(column, 0.0).to_numpy(zero_copy_only=False)
    return found


def float_text(number: Any, shortest: str, fixed_max: float) -> str:
    """A NumPy number as PostgreSQL prints it; `shortest` has the fewest digits."""
    if np.isnan(number):
        return "NaN"
    if np.isinf(number):
        return infinity_text(int(np.sign(number))).replace("i", "I", 1)
    sign, digits, exponent = _strict(number, Decimal(shortest)).as_tuple()
    assert isinstance(exponent, int), "the number is finite"
    mantissa = "".join(map(str, digits))
    power = exponent + len(digits) - 1
    mantissa = mantissa.rstrip("0")
    minus = "-" * sign
    if _FIXED_MIN <= abs(number) < fixed_max:
        fixed = format(Decimal((0, digits, exponent)), "f")
        if "." in fixed:
            fixed = fixed.rstrip("0").rstrip(".")
        return minus + fixed
    # As C prints an exponent: with its sign, and two digits at least.
    rest = mantissa[1:] and f".{mantissa[1:]}"
    return f"{minus}{mantissa[0]}{rest}e{power:+03}"


def _strict(number: Any, shortest: Decimal) -> Decimal:
    """PostgreSQL doesn't print what lies exactly between two numbers, even if it is read as the one
    that it prints: it adds a digit.
    """
    exact = Decimal(float(number))
    endless = type(number)(np.inf)
    with localcontext() as context, np.errstate(over="ignore"):
        context.prec = _EXACT_DIGITS
        # Half-way to both neighbors: all that lies between is read as this number.
        low, high = (
            (exact + Decimal(float(np.nextafter(number, side)))) / 2 for side in (-endless, endless)
        )
        found = shortest
        digits = len(shortest.normalize().as_tuple().digits)
        while not low < found < high:
            digits += 1
            found = Decimal(f"{float(number):.{digits - 1}e}")
    return found


def numeric_texts(column: Array) -> Array:
    """Decimals with all digits of their scale; texts are unchanged."""
    if pa.types.is_string(column.type):
        return column
    if not pa.types.is_decimal(column.type):
        return integer_texts(column)
    if column.type.scale <= _PLAIN_SCALE_MAX:
        return column.cast(pa.string())
    return _scaled_texts(column)


def _scaled_texts(column: Array) -> Array:
    """From the digits without the point, which Arrow prints whole."""
    scale = column.type.scale
    kind = pa.decimal128(column.type.precision, 0)
    buffers = column.buffers()
    whole_ = pa.Array.from_buffers(kind, len(column), buffers, offset=column.offset)
    texts = whole_.cast(pa.string())
    minus = pc.starts_with(texts, "-")
    digits = pc.utf8_lpad(pc.utf8_ltrim(texts, "-"), scale + 1, "0")
    pointed = pc.utf8_replace_slice(digits, -scale, -scale, ".")
    signs = pc.if_else(minus, "-", "")
    return pc.binary_join_element_wise(signs, pointed, "")


def money_texts(column: Array) -> Array:
    """Amounts as with lc_monetary C."""
    return each(_money_text, pa.string())(column)


def _money_text(amount: Decimal) -> str:
    text = f"${abs(amount):,.2f}"
    if amount < 0:
        return f"-{text}"
    return text


def money_binary(column: Array) -> Array:
    """Cents in 64 bits."""
    return each(lambda amount: int(amount * 100).to_bytes(8, "big", signed=True))(column)


def float_binary(column: Array, kind: str) -> Array:
    """`>f4` or `>f8`."""
    return with_nulls_of(big_endian(_floats(column), kind), column)


def integer_binary(column: Array, kind: str) -> Array:
    """`>i2`, `>i4`, `>i8` or `>u4`."""
    return with_nulls_of(big_endian(integers(column), kind), column)


def numeric_binary(column: Array) -> Array:
    """Digits in base 10,000."""
    kind = column.type
    if pa.types.is_string(kind):
        return each(numeric_bytes)(column)
    if not pa.types.is_decimal(kind):
        return each(lambda number: numeric_bytes(str(number)))(column)
    if kind.precision <= _SMALL_PRECISION and kind.scale <= _SMALL_SCALE:
        return _small_numerics(column, kind.scale)
    return each(lambda number: numeric_bytes(format(number, "f")))(column)


def _small_numerics(column: Array, scale: int) -> Array:
    numbers = _unscaled(column)
    size = np.abs(numbers)
    after = -(-scale // _BASE_DIGITS)
    whole_ = size // 10**scale
    fraction = size % 10**scale * 10 ** (after * _BASE_DIGITS - scale)
    before = -(-_SMALL_PRECISION // _BASE_DIGITS)
    digits = np.zeros((len(numbers), before + after), ">u2")
    for place in range(before - 1, -1, -1):
        digits[:, place] = whole_ % _BASE
        whole_ = whole_ // _BASE
    for place in range(before + after - 1, before - 1, -1):
        digits[:, place] = fraction % _BASE
        fraction = fraction // _BASE
    return with_nulls_of(_numeric_rows(digits, before, numbers < 0, scale), column)


def _unscaled(column: Array) -> Numbers:
    """The digits of small decimals as integers: the lower half of their 128 bits."""
    # Arrow's decimals are little-endian: of each pair, the first has the lower 64 bits.
    data = np.frombuffer(column.buffers()[1], np.int64)
    found: Numbers = data[2 * column.offset : 2 * (column.offset + len(column)) : 2]
    return np.where(valid(column), found, 0) if column.null_count else found


def _numeric_rows(digits: Numbers, before: int, negative: Numbers, scale: int) -> Array:
    count, width = digits.shape
    used = digits != 0
    zero = ~used.any(axis=1)
    first = np.where(zero, 0, used.argmax(axis=1))
    last = np.where(zero, 0, width - used[:, ::-1].argmax(axis=1))
    number = last - first
    # One array, since NumPy forgets the byte order when it joins several.
    every = np.empty((count, 4 + width), ">u2")
    every[:, 4:] = digits
    head = every[:, :4].view(">i2")
    head[:, 0] = number
    head[:, 1] = np.where(zero, 0, before - 1 - first)
    head[:, 2] = np.where(negative, _NEGATIVE, 0)
    head[:, 3] = scale
    places = np.arange(width)
    kept = (places >= first[:, None]) & (places < last[:, None])
    chosen = np.concatenate([np.ones((count, 4), np.bool_), kept], axis=1)
    ends = np.zeros(count + 1, np.int32)
    np.cumsum((number + 4) * 2, out=ends[1:])
    data = np.ascontiguousarray(every[chosen])
    buffers = [None, buffer(ends), buffer(data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def numeric_bytes(text: str) -> bytes:
    """The binary form of a numeric's text."""
    special = _SPECIALS.get(text)
    if special is not None:
        return _words(0, 0, special, _SPECIAL_SCALES[text])
    sign = _NEGATIVE * text.startswith("-")
    whole_, _, fraction = text.removeprefix("-").partition(".")
    scale = len(fraction)
    whole_ = whole_.rjust(-(-len(whole_) // _BASE_DIGITS) * _BASE_DIGITS, "0")
    fraction = fraction.ljust(-(-scale // _BASE_DIGITS) * _BASE_DIGITS, "0")
    every = whole_ + fraction
    groups = [int(every[at : at + _BASE_DIGITS]) for at in range(0, len(every), _BASE_DIGITS)]
    weight = len(whole_) // _BASE_DIGITS - 1
    while groups and groups[0] == 0:
        groups.pop(0)
        weight -= 1
    while groups and groups[-1] == 0:
        groups.pop()
    if not groups:
        return _words(0, 0, 0, scale)
    # The message has 16 bits for the weight, and 14 for the scale.
    if weight > 0x7FFF or scale > 0x3FFF:
        raise NotProvenEqualError("a numeric with so many digits in binary form")
    return _words(len(groups), weight, sign, scale, *groups)


def _words(*numbers: int) -> bytes:
    return b"".join((number & 0xFFFF).to_bytes(2, "big") for number in numbers)
