"""Every row of the contract's table of values, in both encodings, as a consumer reads it back from
the wire.
"""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Callable, Mapping

import msgpack
import orjson
import pytest

from headrace.contract import type_oids
from headrace.contract.exact import native
from headrace.contract.values import (
    SESSION_SETTINGS,
    ArrayForm,
    Encoding,
    JsonForm,
    TypeInfo,
    TypeKind,
    ValueOptions,
    converter,
)
from headrace.contract.values_json import NESTING_MAX
from headrace.errors import DecodeError

TEXT, NUMERIC, DATE, TIME, INTERVAL = 25, 1700, 1082, 1083, 1186
UUID, VARCHAR, BPCHAR, NAME, XML, BIT, VARBIT, INET, INT4RANGE = (
    2950,
    1043,
    1042,
    19,
    142,
    1560,
    1562,
    869,
    3904,
)
ENVELOPE = 8

MSGPACK = ValueOptions(Encoding.MSGPACK)
JSON = ValueOptions(Encoding.JSON)
MSGPACK_LISTS = ValueOptions(Encoding.MSGPACK, arrays=ArrayForm.LIST)
JSON_LISTS = ValueOptions(Encoding.JSON, arrays=ArrayForm.LIST)

CATALOG: Mapping[int, TypeInfo] = {
    20001: TypeInfo(TypeKind.DOMAIN, base_oid=type_oids.INT4),
    20002: TypeInfo(TypeKind.DOMAIN, base_oid=20001),
    20003: TypeInfo(TypeKind.ARRAY, element_oid=20002),
    20004: TypeInfo(TypeKind.DOMAIN, base_oid=20003),
    20005: TypeInfo(TypeKind.ENUM),
    20006: TypeInfo(TypeKind.ARRAY, element_oid=20005),
    20007: TypeInfo(TypeKind.COMPOSITE),
    20008: TypeInfo(TypeKind.BASE),
    20009: TypeInfo(TypeKind.RANGE),
    20010: TypeInfo(TypeKind.ARRAY, element_oid=20008, delimiter="|"),
    20011: TypeInfo(TypeKind.DOMAIN, base_oid=type_oids.JSONB),
    20012: TypeInfo(TypeKind.DOMAIN, base_oid=type_oids.TIMESTAMPTZ),
}


def wrapped(value: object, levels: int) -> object:
    for _ in range(levels):
        value = [value]
    return value


def unwrapped(value: object, levels: int) -> object:
    for _ in range(levels):
        assert isinstance(value, list)
        value = value[0]
    return value


def received(oid: int, value: str | bytes, options: ValueOptions) -> object:
    """The value that a consumer gets, from within an event's maps and lists."""
    raw = value.encode() if isinstance(value, str) else value
    sent = wrapped(native(converter(oid, options, CATALOG.get)(raw)), ENVELOPE)
    if options.encoding is Encoding.MSGPACK:
        return unwrapped(msgpack.unpackb(msgpack.packb(sent)), ENVELOPE)
    return unwrapped(json.loads(orjson.dumps(sent)), ENVELOPE)


def same(left: object, right: object) -> bool:
    """Equal, of the same type, and with the same sign of zero."""
    if isinstance(left, float) and isinstance(right, float) and left == right:
        return math.copysign(1, left) == math.copysign(1, right)
    return type(left) is type(right) and left == right


SAME_IN_BOTH: list[tuple[int, str, object]] = [
    (type_oids.BOOL, "t", True),
    (type_oids.BOOL, "f", False),
    (type_oids.INT2, "-32768", -32768),
    (type_oids.INT4, "2147483647", 2147483647),
    (type_oids.INT8, "-9223372036854775808", -(2**63)),
    (type_oids.INT8, "9223372036854775807", 2**63 - 1),
    (type_oids.OID, "4294967295", 2**32 - 1),
    (type_oids.FLOAT4, "0.1", 0.1),
    (type_oids.FLOAT8, "-0", -0.0),
    (type_oids.FLOAT8, "5e-324", 5e-324),
    (type_oids.FLOAT8, "1.7976931348623157e+308", 1.7976931348623157e308),
    (type_oids.FLOAT8, "1", 1.0),
    (NUMERIC, "NaN", "NaN"),
    (NUMERIC, "-Infinity", "-Infinity"),
    (NUMERIC, "0.10", "0.10"),
    (NUMERIC, "9" * 1000 + "." + "1" * 500, "9" * 1000 + "." + "1" * 500),
    (type_oids.MONEY, "-$1,234.50", "-1234.50"),
    (type_oids.MONEY, "$0.01", "0.01"),
    (type_oids.MONEY, "-$92,233,720,368,547,758.08", "-92233720368547758.08"),
    (TEXT, "", ""),
    (TEXT, "NULL", "NULL"),
    (
        TEXT,
        'two\nlines, "quotes", \\N, \t, \u0001 and 𝄞',
        'two\nlines, "quotes", \\N, \t, \u0001 and 𝄞',
    ),
    (VARCHAR, "é", "é"),
    (BPCHAR, "ab  ", "ab  "),
    (NAME, "pg_class", "pg_class"),
    (UUID, "6ecd8c99-4036-403d-bf84-cf8400f67836", "6ecd8c99-4036-403d-bf84-cf8400f67836"),
    (XML, "<a>1</a>", "<a>1</a>"),
    (BIT, "0101", "0101"),
    (VARBIT, "", ""),
    (INET, "::1/64", "::1/64"),
    (INT4RANGE, "[1,5)", "[1,5)"),
    (type_oids.TIMESTAMPTZ, "2025-12-12 12:00:34.338547+00", "2025-12-12T12:00:34.338547Z"),
    (type_oids.TIMESTAMPTZ, "2025-12-12 12:00:34+00", "2025-12-12T12:00:34Z"),
    (type_oids.TIMESTAMPTZ, "0001-01-01 00:00:00.5+00", "0001-01-01T00:00:00.5Z"),
    (type_oids.TIMESTAMPTZ, "9999-12-31 23:59:59.999999+00", "9999-12-31T23:59:59.999999Z"),
    (type_oids.TIMESTAMPTZ, "10000-01-01 00:00:00+00", "10000-01-01 00:00:00+00"),
    (type_oids.TIMESTAMPTZ, "294276-12-31 23:59:59+00", "294276-12-31 23:59:59+00"),
    (type_oids.TIMESTAMPTZ, "0044-03-15 12:00:00+00 BC", "0044-03-15 12:00:00+00 BC"),
    (type_oids.TIMESTAMPTZ, "4714-11-24 00:00:00+00 BC", "4714-11-24 00:00:00+00 BC"),
    (type_oids.TIMESTAMPTZ, "infinity", "infinity"),
    (type_oids.TIMESTAMPTZ, "-infinity", "-infinity"),
    (type_oids.TIMESTAMP, "2025-12-12 12:00:34.338547", "2025-12-12T12:00:34.338547"),
    (type_oids.TIMESTAMP, "2025-12-12 12:00:34.3", "2025-12-12T12:00:34.3"),
    (type_oids.TIMESTAMP, "12000-01-01 01:02:03.4", "12000-01-01 01:02:03.4"),
    (type_oids.TIMESTAMP, "0044-03-15 12:00:00 BC", "0044-03-15 12:00:00 BC"),
    (type_oids.TIMESTAMP, "-infinity", "-infinity"),
    (DATE, "2025-12-12", "2025-12-12"),
    (DATE, "0001-01-01 BC", "0001-01-01 BC"),
    (DATE, "12000-01-01", "12000-01-01"),
    (DATE, "infinity", "infinity"),
    (TIME, "24:00:00", "24:00:00"),
    (TIME, "12:00:34.5", "12:00:34.5"),
    (type_oids.TIMETZ, "12:00:34.338547+00", "12:00:34.338547+00:00"),
    (type_oids.TIMETZ, "12:00:34+02", "12:00:34+02:00"),
    (type_oids.TIMETZ, "12:00:00+05:30", "12:00:00+05:30"),
    (type_oids.TIMETZ, "12:00:00-05:30:15", "12:00:00-05:30:15"),
    (INTERVAL, "P-1Y-2M3DT-4H-5M-6.7S", "P-1Y-2M3DT-4H-5M-6.7S"),
    (INTERVAL, "PT0S", "PT0S"),
    (INTERVAL, "infinity", "infinity"),
    (1007, "{{1,2},{3,4}}", "{{1,2},{3,4}}"),
    (1007, "[0:1]={1,NULL}", "[0:1]={1,NULL}"),
    (1009, '{"NULL",NULL,""}', '{"NULL",NULL,""}'),
    (3807, '{"{\\"a\\": 1}"}', '{"{\\"a\\": 1}"}'),
    (20001, "7", 7),
    (20002, "7", 7),
    (20004, "{7,8}", "{7,8}"),
    (20005, "happy", "happy"),
    (20007, '(1,"a b")', '(1,"a b")'),
    (20008, '"a"=>"1"', '"a"=>"1"'),
    (20009, "[a,b)", "[a,b)"),
    (20012, "2025-12-12 12:00:34+00", "2025-12-12T12:00:34Z"),
    (99999, "[1,2,3]", "[1,2,3]"),
]


@pytest.mark.parametrize(("oid", "value", "expected"), SAME_IN_BOTH)
@pytest.mark.parametrize("options", [MSGPACK, JSON], ids=["msgpack", "json"])
def test_a_value_has_the_form_of_the_contract(
    oid: int, value: str, expected: object, options: ValueOptions
) -> None:
    result = received(oid, value, options)
    assert same(result, expected), (result, expected)


@pytest.mark.parametrize(
    ("value", "expected"), [("NaN", math.nan), ("Infinity", math.inf), ("-Infinity", -math.inf)]
)
@pytest.mark.parametrize("oid", [type_oids.FLOAT4, type_oids.FLOAT8])
def test_floats_that_json_lacks_are_floats_in_msgpack_and_names_in_json(
    oid: int, value: str, expected: float
) -> None:
    result = received(oid, value, MSGPACK)
    assert isinstance(result, float)
    assert result == expected or (math.isnan(result) and math.isnan(expected))
    assert received(oid, value, JSON) == value


@pytest.mark.parametrize(
    ("value", "raw", "base64"), [("\\x", b"", ""), ("\\x00ff7b", b"\x00\xff\x7b", "AP97")]
)
def test_bytea_is_bin_in_msgpack_and_base64_in_json(value: str, raw: bytes, base64: str) -> None:
    assert received(type_oids.BYTEA, value, MSGPACK) == raw
    assert received(type_oids.BYTEA, value, JSON) == base64


def test_int8_is_a_string_in_json_on_demand_and_only_int8() -> None:
    options = ValueOptions(Encoding.JSON, arrays=ArrayForm.LIST, int8_as_string=True)
    assert received(type_oids.INT8, "9007199254740993", options) == "9007199254740993"
    assert received(1016, "{9007199254740993,NULL}", options) == ["9007199254740993", None]
    assert received(type_oids.INT4, "5", options) == 5
    assert received(type_oids.INT8, "5", ValueOptions(Encoding.MSGPACK, int8_as_string=True)) == 5


JSON_NATIVE: list[tuple[str, object]] = [
    ('{"a": [1, null, true, "x"], "b": {}}', {"a": [1, None, True, "x"], "b": {}}),
    ("1.10", 1.1),
    ("0.1", 0.1),
    ("-0.0", -0.0),
    ("1.0", 1.0),
    ("1e3", 1000.0),
    ("1E-2", 0.01),
    ("0e99999999999999999999", 0.0),
    ("9007199254740993", 9007199254740993),
    ("9223372036854775808", 2**63),
    ("18446744073709551615", 2**64 - 1),
    ("-9223372036854775808", -(2**63)),
    ("18446744073709551616", "18446744073709551616"),
    ("-9223372036854775809", "-9223372036854775809"),
    ("12345678901234567890123", "12345678901234567890123"),
    ("10000000000000000000000", 1e22),
    ("9007199254740993.0", "9007199254740993.0"),
    ("0.12345678901234567890", "0.12345678901234567890"),
    ("1e400", "1e400"),
    ("-1e400", "-1e400"),
    ("1e-400", "1e-400"),
    ("1e99999999999999999999", "1e99999999999999999999"),
    ("1" + "0" * 5000, "1" + "0" * 5000),
    ('{"n": 1, "n": 12345678901234567890123}', {"n": "12345678901234567890123"}),
    ('{"a": 1, "a": 2}', {"a": 2}),
    (
        '{"12345678901234567890123": "12345678901234567.5e7"}',
        {"12345678901234567890123": "12345678901234567.5e7"},
    ),
    ('"6ecd8c99-4036-403d-bf84-cf8400f67836"', "6ecd8c99-4036-403d-bf84-cf8400f67836"),
    ('"\\u0000\\ud834\\udd1e"', "\0𝄞"),
    (" [1 ,\n\t2 ] ", [1, 2]),
    ('"\\"[{\\\\"', '"[{\\'),
    ("null", None),
    ("{}", {}),
]


@pytest.mark.parametrize(
    ("value", "expected"), JSON_NATIVE, ids=[value[:30] for value, _ in JSON_NATIVE]
)
@pytest.mark.parametrize("oid", [type_oids.JSON, type_oids.JSONB, 20011])
def test_json_is_native_in_msgpack_and_no_digit_is_lost(
    oid: int, value: str, expected: object
) -> None:
    result = received(oid, value, MSGPACK)
    assert same(result, expected), (result, expected)


@pytest.mark.parametrize("value", [value for value, _ in JSON_NATIVE] + ['"\\ud800"'])
def test_json_is_embedded_in_json_digit_for_digit(value: str) -> None:
    sent = native(converter(type_oids.JSON, JSON, CATALOG.get)(value.encode()))
    assert orjson.dumps({"v": sent}) == b'{"v":' + value.encode() + b"}"


@pytest.mark.parametrize(
    "options",
    [
        ValueOptions(Encoding.MSGPACK, json_values=JsonForm.TEXT),
        ValueOptions(Encoding.JSON, json_values=JsonForm.TEXT),
    ],
)
def test_json_is_postgresqls_text_on_demand(options: ValueOptions) -> None:
    assert received(type_oids.JSONB, '{"a": 1.10}', options) == '{"a": 1.10}'
    assert received(20011, '{"a": 1.10}', options) == '{"a": 1.10}'


@pytest.mark.parametrize(
    "value", ['"\\ud800"', '{"a": "\\uDfff x"}', '["\\ud834\\ud834"]', '{"\\ud800": 1}']
)
def test_a_lone_surrogate_leaves_the_document_as_text_in_msgpack(value: str) -> None:
    assert received(type_oids.JSON, value, MSGPACK) == value


@pytest.mark.parametrize("options", [MSGPACK, JSON], ids=["msgpack", "json"])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_json_nested_too_deeply_is_text_and_harms_nobody(
    options: ValueOptions, opening: str, closing: str
) -> None:
    def nested(depth: int) -> str:
        return opening * depth + "1e400"[: 1 if opening == "[" else 5] + closing * depth

    deepest = received(type_oids.JSONB, nested(NESTING_MAX), options)
    assert isinstance(deepest, list | dict)
    for depth in (NESTING_MAX + 1, 5_000, 200_000):
        assert received(type_oids.JSONB, nested(depth), options) == nested(depth)


def test_brackets_side_by_side_or_within_strings_are_no_depth() -> None:
    wide = "[" + ",".join(["[]"] * 2_000) + "]"
    assert received(type_oids.JSONB, wide, MSGPACK) == [[]] * 2_000
    quoted = '["' + '[{\\"' * 2_000 + '"]'
    assert received(type_oids.JSONB, quoted, MSGPACK) == ['[{"' * 2_000]


ARRAYS: list[tuple[int, str, object]] = [
    (1007, "{}", []),
    (1007, "{1,NULL,-3}", [1, None, -3]),
    (1007, "{{1,2},{3,4}}", [[1, 2], [3, 4]]),
    (1007, "{{{1},{2}},{{3},{NULL}}}", [[[1], [2]], [[3], [None]]]),
    (1007, "[0:1]={1,NULL}", [1, None]),
    (1007, "[1:2][-1:0]={{1,2},{3,4}}", [[1, 2], [3, 4]]),
    (1000, "{t,f}", [True, False]),
    (1009, '{"NULL","null",NULL,"","a\\"b\\\\c","{x}","a,b"," s","nl\n",é}',
     ["NULL", "null", None, "", 'a"b\\c', "{x}", "a,b", " s", "nl\n", "é"]),
    (1009, '{{"}",a},{b,"{"}}', [["}", "a"], ["b", "{"]]),
    (1231, "{1.10,NaN}", ["1.10", "NaN"]),
    (1185, '{"2025-12-12 12:00:34+00",infinity}', ["2025-12-12T12:00:34Z", "infinity"]),
    (791, '{$1.50,"$1,234.50"}', ["1.50", "1234.50"]),
    (1020, "{(1,1),(0,0);NULL;(2,2),(1,1)}", ["(1,1),(0,0)", None, "(2,2),(1,1)"]),
    (1020, "{{(1,1),(0,0)};{(2,2),(1,1)}}", [["(1,1),(0,0)"], ["(2,2),(1,1)"]]),
    (3807, '{"{\\"a\\": [1, 2]}",NULL,"null"}', [{"a": [1, 2]}, None, None]),
    (1006, '{"1 2 3"}', ["1 2 3"]),
    (2951, "{6ecd8c99-4036-403d-bf84-cf8400f67836}", ["6ecd8c99-4036-403d-bf84-cf8400f67836"]),
    (3905, '{"[1,5)",empty}', ["[1,5)", "empty"]),
    (20003, "{7,8}", [7, 8]),
    (20004, "{7,8}", [7, 8]),
    (20006, '{happy,"so so"}', ["happy", "so so"]),
    (20010, "{a|b,c}", ["a", "b,c"]),
]  # fmt: skip


@pytest.mark.parametrize(("oid", "value", "expected"), ARRAYS)
@pytest.mark.parametrize("options", [MSGPACK_LISTS, JSON_LISTS], ids=["msgpack", "json"])
def test_arrays_are_native_lists_on_demand(
    oid: int, value: str, expected: object, options: ValueOptions
) -> None:
    assert received(oid, value, options) == expected


def test_elements_follow_their_encoding() -> None:
    assert received(1001, '{"\\\\x00ff",NULL}', MSGPACK_LISTS) == [b"\x00\xff", None]
    assert received(1001, '{"\\\\x00ff",NULL}', JSON_LISTS) == ["AP8=", None]
    assert received(1022, "{-0,Infinity}", MSGPACK_LISTS) == [0.0, math.inf]
    assert received(1022, "{-0,Infinity}", JSON_LISTS) == [0.0, "Infinity"]


@pytest.mark.parametrize(
    "value",
    ["", "1", "{", "}", "{1", "1}", "{1}}", "{{1}", "{1},{2}", "{1},",
     "{1,}", "{,1}", "{1,{2}}", "{{1},2}", "{{1}{2}}", "{{}}",
      "{{},{}}", '{"1}', '{"1"2}', '{1"2"}', '{"1\\"}', "{1\\2}", "[0:1]", "[0:1]=", "[a]={1}",
     "{{1}}}", '{"1"}x'],
)  # fmt: skip
def test_what_is_not_an_arrays_literal_is_an_error(value: str) -> None:
    with pytest.raises(DecodeError):
        received(1009, value, MSGPACK_LISTS)


@pytest.mark.parametrize(
    ("oid", "value"),
    [
        (type_oids.BOOL, b"true"),
        (type_oids.BOOL, b""),
        (type_oids.INT4, b""),
        (type_oids.INT4, b"1.0"),
        (type_oids.INT8, b"\xff"),
        (type_oids.FLOAT8, b"one"),
        (type_oids.MONEY, b"1.234,50 \xe2\x82\xac"),
        (type_oids.BYTEA, b"\\000"),
        (type_oids.BYTEA, b"\\x0"),
        (type_oids.BYTEA, b"\\xzz"),
        (type_oids.TIMESTAMPTZ, b"2025-12-12 12:00:34+01"),
        (type_oids.TIMETZ, b"12:00:34"),
        (type_oids.JSON, b'{"a": "\xff"}'),
        (type_oids.JSON, b'{"a": "\xed\xa0\x80"}'),
        (TEXT, b"\xc0\xaf"),
        (NUMERIC, b"\xff"),
        (1009, b"{\xff}"),
        (type_oids.TIMESTAMP, b"\xff"),
        (type_oids.TIMETZ, b"\xff"),
        (99999, b"\xff"),
    ],
)
@pytest.mark.parametrize(
    "options", [MSGPACK, JSON, MSGPACK_LISTS], ids=["msgpack", "json", "lists"]
)
def test_what_postgresql_would_not_print_is_a_decode_error(
    oid: int, value: bytes, options: ValueOptions
) -> None:
    with pytest.raises(DecodeError):
        converter(oid, options, CATALOG.get)(value)


@pytest.mark.parametrize(
    "value", [b"{", b"{]", b"nul", b"", b"NaN", b"1 2", b"123456789012345678901 2"]
)
def test_what_is_not_json_is_a_decode_error(value: bytes) -> None:
    with pytest.raises(DecodeError):
        converter(type_oids.JSON, MSGPACK, CATALOG.get)(value)


@pytest.mark.parametrize(
    ("oid", "value"), [(type_oids.INT4, b"secret"), (TEXT, b"secret\xff"), (1007, b"{secret}")]
)
def test_an_error_never_shows_the_value(oid: int, value: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        converter(oid, MSGPACK_LISTS, CATALOG.get)(value)
    assert "secret" not in "".join(traceback.format_exception(caught.value))


def test_the_settings_of_a_session_are_complete_and_frozen() -> None:
    assert dict(SESSION_SETTINGS) == {
        "DateStyle": "ISO",
        "TimeZone": "UTC",
        "IntervalStyle": "iso_8601",
        "extra_float_digits": "1",
        "bytea_output": "hex",
        "lc_monetary": "C",
    }
    change: Callable[[str, str], None] | None = getattr(SESSION_SETTINGS, "__setitem__", None)
    assert change is None


def test_a_builtin_type_is_never_asked_for() -> None:
    def unreachable(oid: int) -> TypeInfo | None:
        raise AssertionError(oid)

    for oid in (type_oids.INT4, type_oids.TIMESTAMPTZ, type_oids.JSONB, type_oids.BYTEA):
        converter(oid, MSGPACK, unreachable)
