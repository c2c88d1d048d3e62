"""Arrays against array_out's rules, and json against `decimal`: no element and no digit is lost."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.contract import type_oids, values_json
from headrace.contract.arrays import parse_array
from headrace.contract.exact import Inexact, native
from headrace.contract.values import Encoding, ValueOptions, converter
from headrace.contract.values_json import embedded_json, native_json
from headrace.errors import DecodeError

characters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
elements = st.none() | st.text(characters, max_size=8) | st.text('{}",;\\ \nNULl', max_size=6)


def literal(value: Any, delimiter: str) -> str:
    """As `array_out` prints it: quotes where the text is empty, is NULL, or has a character of the
    syntax.
    """
    if isinstance(value, list):
        return "{" + delimiter.join(literal(one, delimiter) for one in value) + "}"
    if value is None:
        return "NULL"
    if value and value.upper() != "NULL" and not re.search(rf'[{{}}"\\\s{delimiter}]', value):
        return str(value)
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


@st.composite
def arrays(draw: st.DrawFn) -> list[Any]:
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))

    def level(depth: int) -> Any:
        return (
            draw(elements)
            if depth == len(shape)
            else [level(depth + 1) for _ in range(shape[depth])]
        )

    result: list[Any] = level(0)
    return result


@given(arrays(), st.sampled_from(",;|"), st.sampled_from(["", "[0:1]=", "[-2:-1][1:10]="]))
def test_an_array_is_what_its_literal_says(value: list[Any], delimiter: str, bounds: str) -> None:
    written = (bounds + literal(value, delimiter)).encode()
    assert parse_array(written, bytes.decode, delimiter.encode()) == value


@given(arrays())
def test_no_cut_of_an_array_is_taken_for_an_array(value: list[Any]) -> None:
    written = literal(value, ",").encode()
    for end in range(len(written)):
        with pytest.raises(DecodeError):
            parse_array(written[:end], lambda raw: raw)


@given(st.text('{}",\\[]:=N1 ', max_size=20) | st.text(max_size=20))
def test_arbitrary_text_is_an_array_or_a_decode_error(written: str) -> None:
    try:
        result = parse_array(written.encode(errors="surrogatepass"), lambda raw: raw)
    except DecodeError:
        return
    assert isinstance(result, list)


digits = st.text("0123456789", min_size=1, max_size=30)
integers = st.builds(
    lambda sign, tail: sign + (tail.lstrip("0") or "0"), st.sampled_from(["", "-"]), digits
)
fractions = st.builds(lambda head, tail: f"{head}.{tail}", integers, digits)
powers = st.builds(
    lambda head, letter, sign, power: f"{head}{letter}{sign}{power}",
    integers | fractions,
    st.sampled_from("eE"),
    st.sampled_from(["", "+", "-"]),
    st.integers(0, 500),
)
doubles = st.floats(allow_nan=False, allow_infinity=False).map(repr)
numbers = integers | fractions | powers | doubles


def held(number: str) -> bool:
    """Whether 64 bits or a double hold it, by another way than the code's."""
    exact = Decimal(number)
    if re.fullmatch(r"-?\d+", number) and -(2**63) <= exact < 2**64:
        return True
    return not math.isinf(float(number)) and Decimal(str(float(number))) == exact


@given(numbers)
@example("18446744073709551616")
@example("0.30000000000000004")
@example("9007199254740993.0")
@example("100000000000000.15")
@example("1e23")
@example("-0")
def test_a_number_in_json_keeps_its_digits(number: str) -> None:
    document = native(native_json(f'{{"n": [{number}]}}'.encode()))
    assert isinstance(document, dict)
    (value,) = document["n"]
    if held(number):
        assert not isinstance(value, str)
        assert Decimal(str(value)) == Decimal(number)
    else:
        assert value == number


@given(numbers, st.text(max_size=20).filter(str.isprintable))
def test_digits_in_strings_are_no_numbers(number: str, key: str) -> None:
    document = json.dumps({key: f"{number}", "also": f'"{number}"'}, ensure_ascii=False)
    assert native(native_json(document.encode())) == json.loads(document)


# Documents as text, valid or nearly: their parts in any order.
nearly_json = st.lists(
    numbers
    | st.sampled_from(
        [
            "[",
            "]",
            "{",
            "}",
            ",",
            ":",
            " ",
            "-",
            "null",
            "true",
            '"',
            '"a"',
            '"e1"',
            "\\",
            "0" * 18,
            ".",
        ]
    )
    | st.text(st.characters(codec="utf-8"), max_size=3).map(
        lambda text: json.dumps(text, ensure_ascii=False)
    ),
    max_size=12,
).map("".join)


def listed(parts: list[str]) -> str:
    return f"[{', '.join(parts)}]"


def named(pairs: list[tuple[str, str]]) -> str:
    return f"{{{', '.join(f'{json.dumps(name, ensure_ascii=False)}: {value}' for name, value in pairs)}}}"


documents_of_numbers = st.recursive(
    numbers | st.text(characters, max_size=5).map(json.dumps),
    lambda inner: (
        st.lists(inner, max_size=4).map(listed)
        | st.lists(st.tuples(numbers | st.text(characters, max_size=3), inner), max_size=4).map(
            named
        )
    ),
    max_leaves=8,
)


def outcome(read: Callable[[bytes], object], source: bytes) -> str:
    """The value with its types, or what kind of an error there was."""
    try:
        found = read(source)
        return repr((native(found), isinstance(found, Inexact)))
    except DecodeError:
        return "DecodeError"


@given(documents_of_numbers | nearly_json)
@example(
    '["3f2504e0-4f89-11d3", 0.14285714285714285714, "x0.14285714285714285714", -12345678901234567890]'
)
@example("{12345678901234567890123: 1}")
@example('{"a" 12345678901234567890123 : 1}')
@example("[-0.00000000000000000, 1.10000000000000000000, 100000000000000000000000]")
@example('["1e5]')
@example("[012345678901234567890123]")
def test_a_document_with_long_numbers_is_read_as_one_whose_every_number_is_looked_at(
    source: str,
) -> None:
    try:
        written = source.encode()
    except UnicodeEncodeError:
        return
    assert outcome(native_json, written) == outcome(
        lambda value: values_json._looked_at(value.decode()), written
    )


json_documents = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(characters),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(characters), children, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(json_documents, st.booleans())
def test_an_ordinary_document_is_itself(document: Any, ascii_only: bool) -> None:
    written = json.dumps(document, ensure_ascii=ascii_only).encode()
    assert native(native_json(written)) == document
    assert orjson.dumps(native(embedded_json(written))) == written


OIDS = [type_oids.BOOL, type_oids.INT8, type_oids.FLOAT8, type_oids.MONEY, type_oids.BYTEA, type_oids.TIMESTAMPTZ,
        type_oids.TIMESTAMP, type_oids.TIMETZ, type_oids.JSON, 25, 1700]  # fmt: skip


@given(
    st.sampled_from(OIDS),
    st.sampled_from(Encoding),
    st.binary(max_size=30) | st.text(max_size=30).map(str.encode),
)
def test_arbitrary_bytes_are_a_value_or_a_decode_error(
    oid: int, encoding: Encoding, value: bytes
) -> None:
    convert = converter(oid, ValueOptions(encoding), lambda _: None)
    try:
        convert(value)
    except DecodeError:
        return
    if oid != type_oids.BYTEA:
        value.decode()
