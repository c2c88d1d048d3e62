"""PostgreSQL's division of numerics, in integers.

The quotient's scale depends on the values (`select_div_scale`): at least 16 significant digits, and
no fewer digits after the point than the operands show. Pure.
"""

from __future__ import annotations

from math import isqrt
from typing import Final

# NUMERIC_MIN_SIG_DIGITS and NUMERIC_MAX_DISPLAY_SCALE.
_SIGNIFICANT_DIGITS: Final = 16
_SCALE_MAX: Final = 1000
# PostgreSQL computes with groups of four decimal digits, aligned at the point.
_GROUP_DIGITS: Final = 4


def quotient(dividend: str, divisor: str, dividend_scale: int, divisor_scale: int) -> str:
    """The text of the quotient of two finite numbers, whose display scales may be smaller than the
    digits in their texts. Raises ZeroDivisionError.
    """
    top, top_places = _parsed(dividend)
    bottom, bottom_places = _parsed(divisor)
    if not bottom:
        raise ZeroDivisionError
    scale = max(
        _division_scale(top, top_places, bottom, bottom_places), dividend_scale, divisor_scale, 0
    )
    scale = min(scale, _SCALE_MAX)
    return scaled_text(_rounded(top, top_places, bottom, bottom_places, scale), scale)


def deviation(count: str, total: str, squares: str, scale: int, kind: str) -> str | None:
    """Variance or standard deviation, as `numeric_stddev_internal`, from the number of values,
    their sum and the sum of their squares. `scale` is the largest display scale of the values.
    """
    number = int(count)
    sample = kind.endswith("samp")
    if number <= sample:
        return None
    total_units, places = _parsed(total)
    square_units, square_places = _parsed(squares)
    shift = 2 * places - square_places
    numerator = number * square_units * 10**shift - total_units * total_units
    if numerator <= 0:
        return "0"
    denominator = str(number * (number - sample))
    variance = quotient(scaled_text(numerator, 2 * places), denominator, 2 * scale, 0)
    return variance if kind.startswith("var") else _root(variance)


def _root(text: str) -> str:
    """The square root, with as many digits after the point."""
    unscaled, places = _parsed(text)
    # One digit more, and rounded by it: a root is never half way unless it is exact.
    root = isqrt(unscaled * 10 ** (places + 2))
    return scaled_text((root + 5) // 10, places)


def scaled_text(unscaled: int, scale: int) -> str:
    """The text of a number of so many digits after the point."""
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    sign = "-" if unscaled < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else sign + digits


def _parsed(text: str) -> tuple[int, int]:
    whole, _, places = text.partition(".")
    return int(whole + places), len(places)


def _division_scale(top: int, top_places: int, bottom: int, bottom_places: int) -> int:
    top_weight, top_first = _leading_group(top, top_places)
    bottom_weight, bottom_first = _leading_group(bottom, bottom_places)
    weight = top_weight - bottom_weight
    if top_first <= bottom_first:
        weight -= 1
    return _SIGNIFICANT_DIGITS - weight * _GROUP_DIGITS


def _leading_group(unscaled: int, places: int) -> tuple[int, int]:
    """The weight of the first group that is not zero, and the group; of zero, twice zero."""
    if not unscaled:
        return 0, 0
    digits = abs(unscaled)
    exponent = len(str(digits)) - 1 - places
    weight = exponent // _GROUP_DIGITS
    shift = weight * _GROUP_DIGITS + places
    if shift >= 0:
        return weight, digits // 10**shift
    return weight, digits * 10**-shift


def _rounded(top: int, top_places: int, bottom: int, bottom_places: int, scale: int) -> int:
    """The quotient times 10**scale, half away from zero."""
    shift = scale - top_places + bottom_places
    numerator: int = abs(top) * 10 ** max(shift, 0)
    denominator: int = abs(bottom) * 10 ** max(-shift, 0)
    rounded, rest = divmod(numerator, denominator)
    if 2 * rest >= denominator:
        rounded += 1
    return -rounded if (top < 0) != (bottom < 0) else rounded
