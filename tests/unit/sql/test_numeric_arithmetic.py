"""Quotients and deviations of numerics have PostgreSQL's digits, taken from PostgreSQL 18."""

from __future__ import annotations

import pytest

from headrace.sql.numeric_arithmetic import deviation, quotient
from headrace.sql.translation import numeric_digits

# SELECT dividend / divisor
QUOTIENTS = {
    ("1", "3"): "0.33333333333333333333",
    ("2", "3"): "0.66666666666666666667",
    ("-2", "3"): "-0.66666666666666666667",
    ("10", "3"): "3.3333333333333333",
    ("1.00", "4"): "0.25000000000000000000",
    ("100000", "7"): "14285.714285714286",
    ("0", "5"): "0.00000000000000000000",
    ("1", "10000"): "0.000100000000000000000000",
    ("1", "99999999"): "0.000000010000000100000001",
    ("123456789012345678901234567890", "7"): "17636684144620811271604938270",
    ("0.000001", "3"): "0.000000333333333333333333",
}


@pytest.mark.parametrize(("operands", "expected"), QUOTIENTS.items())
def test_a_quotient_has_the_scale_of_select_div_scale(
    operands: tuple[str, str], expected: str
) -> None:
    scales = [len(operand.partition(".")[2]) for operand in operands]
    assert quotient(*operands, *scales) == expected


def test_the_display_scale_counts_and_not_the_digits_of_the_text() -> None:
    assert quotient("12345678901234567890.10", "1", 1, 0) == "12345678901234567890.1"


def test_a_division_by_zero_is_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        quotient("1", "0.00", 0, 2)


# Of the values 1, 2, 4: count 3, sum 7, squares 21.
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("var_samp", "2.3333333333333333"),
        ("var_pop", "1.5555555555555556"),
        ("stddev_samp", "1.5275252316519467"),
        ("stddev_pop", "1.2472191289246471"),
    ],
)
def test_a_deviation_has_postgresqls_digits(kind: str, expected: str) -> None:
    assert deviation("3", "7", "21", 0, kind) == expected


def test_the_deviation_of_equal_values_is_zero_without_digits() -> None:
    assert deviation("2", "3.00", "4.5000", 2, "stddev_samp") == "0"


def test_one_value_has_no_deviation_of_a_sample() -> None:
    assert deviation("1", "5", "25", 0, "var_samp") is None
    assert deviation("1", "5", "25", 0, "var_pop") == "0"
    assert deviation("0", "0", "0", 0, "var_pop") is None


@pytest.mark.parametrize(
    ("binary", "digits"),
    [
        ("0000 0000 0000 0002", (1, 2)),
        ("0001 0000 0000 0000 0007", (1, 0)),
        ("0002 0001 4000 0002 0001 1a85", (5, 2)),
        ("0001 ffff 0000 0004 0001", (1, 4)),
    ],
)
def test_the_digits_of_a_numeric_in_binary_form(binary: str, digits: tuple[int, int]) -> None:
    assert numeric_digits(bytes.fromhex(binary)) == digits
