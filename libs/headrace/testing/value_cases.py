"""The contract's table of values, with edge values of every type and the values that a consumer
must read.

A value is given as PostgreSQL's literal. The expected value is written out if the contract defines
a form, and comes from the server's output function (`TEXT`) if the contract says PostgreSQL's text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final


class Own(Enum):
    """Forms that PostgreSQL returns."""

    TEXT = "text"
    EMBEDDED = "embedded"


TEXT: Final = Own.TEXT
EMBEDDED: Final = Own.EMBEDDED
"""In JSON: byte for byte what the output function prints, as part of the message."""


@dataclass(frozen=True, slots=True)
class Both:
    """A value whose form depends on the encoding."""

    msgpack: Any
    json: Any


@dataclass(frozen=True, slots=True)
class Case:
    """A type, and literals with their expected values; `setup` creates what the type needs."""

    name: str
    type: str
    values: tuple[tuple[str, Any], ...]
    setup: str = ""


def same(name: str, type_: str, *literals: str, setup: str = "") -> Case:
    """A type whose form is PostgreSQL's text."""
    return Case(name, type_, tuple((literal, TEXT) for literal in literals), setup)


NAN, INF = float("nan"), float("inf")
DIGITS_1000 = "9" * 600 + "." + "1234567890" * 39 + "1234567891"
ODD_TEXT = (
    "''",
    "' '",
    "'NULL'",
    "'\\N'",
    "'\\.'",
    r"E'line\nfeed\r\n\ttab'",
    """'"quoted", ''single'', back\\slash, {brace}, (paren)'""",
    "'\U0001f600 e\u0301 \u202e \ufeff \U0010ffff'",
    r"E'\x01\x7f\u0080'",
    "repeat('ä', 5000)",
)

SCALARS = (
    Case("bool", "bool", (("true", True), ("false", False), ("NULL", None))),
    Case("int2", "int2", (("-32768", -32768), ("32767", 32767), ("0", 0))),
    Case("int4", "int4", (("-2147483648", -(2**31)), ("2147483647", 2**31 - 1))),
    Case(
        "int8",
        "int8",
        (
            ("-9223372036854775808", -(2**63)),
            ("9223372036854775807", 2**63 - 1),
            ("9007199254740993", 2**53 + 1),
        ),
    ),
    Case("oid", "oid", (("4294967295", 2**32 - 1), ("0", 0))),
    Case(
        "float4",
        "float4",
        (
            ("0.1", 0.1),
            ("'-0'", -0.0),
            ("3.4028235e38", 3.4028235e38),
            ("'1e-45'", 1e-45),
            ("'NaN'", Both(NAN, "NaN")),
            ("'Infinity'", Both(INF, "Infinity")),
            ("'-Infinity'", Both(-INF, "-Infinity")),
        ),
    ),
    Case(
        "float8",
        "float8",
        (
            ("0.1", 0.1),
            ("'0.30000000000000004'", 0.30000000000000004),
            ("'-0'", -0.0),
            ("'1.7976931348623157e308'", 1.7976931348623157e308),
            ("'5e-324'", 5e-324),
            ("1e15", 1e15),
            ("'NaN'", Both(NAN, "NaN")),
            ("'Infinity'", Both(INF, "Infinity")),
            ("'-Infinity'", Both(-INF, "-Infinity")),
        ),
    ),
    Case(
        "numeric",
        "numeric",
        (
            ("1.10", "1.10"),
            ("-0.0", "0.0"),
            ("'NaN'", "NaN"),
            ("'Infinity'", "Infinity"),
            ("'-Infinity'", "-Infinity"),
            (f"'{DIGITS_1000}'", DIGITS_1000),
            ("'1e-1000'", "0." + "0" * 999 + "1"),
            ("'1e131071'", "1" + "0" * 131071),
        ),
    ),
    Case("numeric_scaled", "numeric(10, 3)", (("1", "1.000"), ("-1234567.891", "-1234567.891"))),
    Case("numeric_rounded", "numeric(3, -2)", (("12345", "12300"),)),
    Case(
        "money",
        "money",
        (
            ("'1234567.89'", "1234567.89"),
            ("'-0.01'", "-0.01"),
            ("'-92233720368547758.08'", "-92233720368547758.08"),
            ("'0'", "0.00"),
        ),
    ),
    same("text", "text", *ODD_TEXT),
    Case("text_null", "text", (("NULL", None), ("''", ""))),
    same("varchar", "varchar(10)", "''", "'ten charsä'"),
    Case("char", "char(5)", (("'ab'", "ab   "), ("''", "     "))),
    Case("one_byte_char", '"char"', (("'x'", "x"), ("''", ""), (r"'\377'", "\\377"))),
    same("name", "name", "'a name'", "''"),
    same("uuid", "uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'"),
    same("bit", "bit(5)", "B'01011'"),
    same("varbit", "varbit", "B''", "B'1'", "repeat('10', 500)::varbit"),
    Case(
        "bytea",
        "bytea",
        (
            ("''", Both(b"", "")),
            (r"'\x00'", Both(b"\0", "AA==")),
            (r"'\xdeadbeef'", Both(b"\xde\xad\xbe\xef", "3q2+7w==")),
            (r"'\xfffefd'", Both(b"\xff\xfe\xfd", "//79")),
        ),
    ),
)

TIMES = (
    Case(
        "timestamptz",
        "timestamptz",
        (
            ("'2025-12-12 12:00:34.338547+00'", "2025-12-12T12:00:34.338547Z"),
            ("'2025-12-12 23:30:00-05:30'", "2025-12-13T05:00:00Z"),
            ("'2025-12-12 12:00:34.5+00'", "2025-12-12T12:00:34.5Z"),
            ("'1883-01-01 00:00:00 America/New_York'", "1883-01-01T04:56:02Z"),
            ("'9999-12-31 23:59:59.999999+00'", "9999-12-31T23:59:59.999999Z"),
            ("'0001-01-01 00:00:00+00'", "0001-01-01T00:00:00Z"),
            ("'10000-01-01 00:00:00+00'", "10000-01-01 00:00:00+00"),
            ("'294276-12-31 23:59:59.999999+00'", "294276-12-31 23:59:59.999999+00"),
            ("'0044-03-15 12:00:00+00 BC'", "0044-03-15 12:00:00+00 BC"),
            ("'infinity'", "infinity"),
            ("'-infinity'", "-infinity"),
        ),
    ),
    Case(
        "timestamptz_0", "timestamptz(0)", (("'2025-12-12 12:00:34.5+00'", "2025-12-12T12:00:35Z"),)
    ),
    Case(
        "timestamp",
        "timestamp",
        (
            ("'2025-12-12 12:00:34.338547'", "2025-12-12T12:00:34.338547"),
            ("'2025-12-12 24:00:00'", "2025-12-13T00:00:00"),
            ("'10000-01-01 00:00:00'", "10000-01-01 00:00:00"),
            ("'4713-01-01 00:00:00 BC'", "4713-01-01 00:00:00 BC"),
            ("'infinity'", "infinity"),
            ("'-infinity'", "-infinity"),
        ),
    ),
    Case(
        "date",
        "date",
        (
            ("'2025-12-12'", "2025-12-12"),
            ("'0044-03-15 BC'", "0044-03-15 BC"),
            ("'5874897-12-31'", "5874897-12-31"),
            ("'infinity'", "infinity"),
            ("'-infinity'", "-infinity"),
        ),
    ),
    Case(
        "time",
        "time",
        (
            ("'12:00:34.338547'", "12:00:34.338547"),
            ("'24:00'", "24:00:00"),
            ("'00:00'", "00:00:00"),
        ),
    ),
    Case(
        "timetz",
        "timetz",
        (
            ("'12:00:34.5+02'", "12:00:34.5+02:00"),
            ("'12:00:34-05:30'", "12:00:34-05:30"),
            ("'24:00:00+00'", "24:00:00+00:00"),
            ("'12:00:00-15:59:59'", "12:00:00-15:59:59"),
        ),
    ),
    Case(
        "interval",
        "interval",
        (
            ("'1 year 2 months 3 days 04:05:06.789'", "P1Y2M3DT4H5M6.789S"),
            ("'0'", "PT0S"),
            ("'-1 year 3 days -04:00'", "P-1Y3DT-4H"),
            ("'-0.000001 seconds'", "PT-0.000001S"),
        ),
    ),
)

JSON_TEXTS = (
    '{"a": {"n": [1, 2.5, null, true, "x"]}, "b": 1}',
    '{"k": 1, "k": 2}',
    "12345678901234567890123",
    "9007199254740993",
    "18446744073709551615",
    "-9223372036854775808",
    "1.10",
    "0.1234567890123456789",
    '"\\ud83d\\ude00 \U0001f600 \\\\ \\" \\n"',
    '""',
    "null",
    "  [ 1 ,\n 2 ]  ",
    "[]",
)
JSON_NATIVE: tuple[Any, ...] = (
    {"a": {"n": [1, 2.5, None, True, "x"]}, "b": 1},
    {"k": 2},
    "12345678901234567890123",
    9007199254740993,
    18446744073709551615,
    -9223372036854775808,
    1.1,
    "0.1234567890123456789",
    '\U0001f600 \U0001f600 \\ " \n',
    "",
    None,
    [1, 2],
    [],
)


def _json_cases(type_: str) -> Case:
    known = zip(JSON_TEXTS, JSON_NATIVE, strict=True)
    values: list[tuple[str, Any]] = [
        (f"'{text}'", Both(native, EMBEDDED)) for text, native in known
    ]
    values.append(("NULL", None))
    # json keeps what was written; jsonb has a numeric, and prints all its digits.
    hundred, huge = (100.0, "1e400") if type_ == "json" else (100, "1" + "0" * 400)
    values += [("'1e2'", Both(hundred, EMBEDDED)), ("'1e400'", Both(huge, EMBEDDED))]
    return Case(type_, type_, tuple(values))


DOCUMENTS = (
    _json_cases("json"),
    _json_cases("jsonb"),
    Case("json_surrogate", "json", ((r"""'"\ud800"'""", Both(r'"\ud800"', EMBEDDED)),)),
    Case(
        "json_deep",
        "json",
        (("(repeat('[', 600) || repeat(']', 600))::json", "[" * 600 + "]" * 600),),
    ),
)

STRUCTURED = (
    same("inet", "inet", "'192.168.0.1/24'", "'::1'", "'10.0.0.1'"),
    same("cidr", "cidr", "'10.0.0.0/8'"),
    same("macaddr", "macaddr", "'08:00:2B:01:02:03'"),
    same("int4range", "int4range", "'[1,5)'", "'empty'", "'(,)'"),
    same("tstzrange", "tstzrange", "'[2020-01-01 00:00+02, infinity)'"),
    same("multirange", "int4multirange", "'{[1,2),[5,9)}'", "'{}'"),
    same("point", "point", "'(1.5,-2)'"),
    same("polygon", "polygon", "'((0,0),(1,1),(1,0))'"),
    same("tsvector", "tsvector", "'a fat cat'::tsvector"),
    same("pg_lsn", "pg_lsn", "'16/B374D848'"),
    same("xid8", "xid8", "'18446744073709551615'"),
    same("jsonpath", "jsonpath", "'$.a[*] ? (@ > 1)'"),
    same(
        "enum",
        "mood",
        "'sad'",
        "'with, comma'",
        setup="CREATE TYPE mood AS ENUM ('sad', 'with, comma')",
    ),
    same(
        "composite",
        "pair",
        """ROW(1, 'a "b" (c), \\d', '2020-01-01 00:00:00+02')""",
        "ROW(NULL, '', NULL)",
        setup="CREATE TYPE pair AS (a int, b text, c timestamptz)",
    ),
    same(
        "own_range", "spans", "'[1.5,2.5]'", setup="CREATE TYPE spans AS RANGE (subtype = float8)"
    ),
    # PostgreSQL sees citext so: a base type of an extension, with input and output functions.
    same(
        "base_type",
        "odd_text",
        "'Mixed Case'",
        "''",
        setup="""CREATE TYPE odd_text;
            CREATE FUNCTION odd_in(cstring) RETURNS odd_text AS 'textin'
                LANGUAGE internal STRICT IMMUTABLE;
            CREATE FUNCTION odd_out(odd_text) RETURNS cstring AS 'textout'
                LANGUAGE internal STRICT IMMUTABLE;
            CREATE TYPE odd_text (INPUT = odd_in, OUTPUT = odd_out, LIKE = text)""",
    ),
    same("vector", "vector(3)", "'[1,-2.5,3e-05]'", setup="CREATE EXTENSION IF NOT EXISTS vector"),
    same(
        "sparsevec", "sparsevec", "'{1:1.5,3:2}/5'", setup="CREATE EXTENSION IF NOT EXISTS vector"
    ),
    Case(
        "domain_number",
        "positive",
        (("5", 5), ("NULL", None)),
        setup="CREATE DOMAIN positive AS int CHECK (value > 0)",
    ),
    Case(
        "domain_of_domain",
        "small",
        (("5", 5),),
        setup=(
            "CREATE DOMAIN below AS int8 CHECK (value < 100); CREATE DOMAIN small AS below CHECK "
            "(value > 0)"
        ),
    ),
    Case(
        "domain_json",
        "document",
        (("""'{"a": 1.10}'""", Both({"a": 1.1}, EMBEDDED)),),
        setup="CREATE DOMAIN document AS jsonb",
    ),
    Case(
        "domain_time",
        "moment",
        (("'2020-01-01 02:00:00+02'", "2020-01-01T00:00:00Z"),),
        setup="CREATE DOMAIN moment AS timestamptz NOT NULL",
    ),
)


def array(name: str, type_: str, literal: str, listed: Any, setup: str = "") -> Case:
    """An array: PostgreSQL's literal, or the list `listed` with `--arrays list`."""
    return Case(name, type_, ((literal, listed),), setup)


ARRAYS = (
    array("int_array", "int[]", "'{1,NULL,-3}'", [1, None, -3]),
    array("int_array_empty", "int[]", "'{}'", []),
    array("int_array_nested", "int[]", "'{{1,2},{3,NULL}}'", [[1, 2], [3, None]]),
    array("int_array_bounds", "int[]", "'[0:1]={1,2}'", [1, 2]),
    array(
        "text_array",
        "text[]",
        r"""ARRAY['', 'NULL', NULL, 'a,b', '"q"', '\', '{}', E'x\ny', ' sp ', '😀']""",
        ["", "NULL", None, "a,b", '"q"', "\\", "{}", "x\ny", " sp ", "\U0001f600"],
    ),
    array(
        "text_array_nested",
        "text[]",
        r"""'{{{"a","b c"}},{{"",NULL}}}'""",
        [[["a", "b c"]], [["", None]]],
    ),
    array("bool_array", "bool[]", "'{t,f,NULL}'", [True, False, None]),
    array(
        "float_array",
        "float8[]",
        "'{0.1,NaN,-Infinity}'",
        Both([0.1, NAN, -INF], [0.1, "NaN", "-Infinity"]),
    ),
    array("numeric_array", "numeric[]", "'{1.10,NaN}'", ["1.10", "NaN"]),
    array(
        "timestamptz_array",
        "timestamptz[]",
        "'{2020-01-01 02:00:00+02,infinity}'",
        ["2020-01-01T00:00:00Z", "infinity"],
    ),
    array(
        "bytea_array",
        "bytea[]",
        r"""ARRAY['\x00ff'::bytea, '']""",
        Both([b"\0\xff", b""], ["AP8=", ""]),
    ),
    # In JSON as `--json-values text` has it, which the same line is asked for.
    array(
        "jsonb_array",
        "jsonb[]",
        """ARRAY['{"a": 1}', NULL, '2']::jsonb[]""",
        Both([{"a": 1}, None, 2], ['{"a": 1}', None, "2"]),
    ),
    array("box_array", "box[]", "'{(1,1),(0,0);(2,2),(1,1)}'", ["(1,1),(0,0)", "(2,2),(1,1)"]),
    array(
        "enum_array",
        "shade[]",
        """'{"dark, red",light}'""",
        ["dark, red", "light"],
        setup="CREATE TYPE shade AS ENUM ('light', 'dark, red')",
    ),
    array(
        "domain_over_array",
        "triple",
        "'{1,2,3}'",
        [1, 2, 3],
        setup="CREATE DOMAIN triple AS int[] CHECK (array_length(value, 1) = 3)",
    ),
    array(
        "array_of_domain", "even[]", "'{2,4,NULL}'", [2, 4, None], setup="CREATE DOMAIN even AS int"
    ),
    array(
        "composite_array",
        "spot[]",
        """ARRAY[ROW(1, 'a,b')::spot, NULL, ROW(2, '"')::spot]""",
        ['(1,"a,b")', None, '(2,"""")'],
        setup="CREATE TYPE spot AS (x int, y text)",
    ),
    array("range_array", "int4range[]", "ARRAY['[1,3)'::int4range, 'empty']", ["[1,3)", "empty"]),
    array("int2vector", "int2vector", "'1 2 3'", TEXT),
    array("money_array", "money[]", "'{1.50,-2}'", ["1.50", "-2.00"]),
    array(
        "uuid_array",
        "uuid[]",
        "'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'",
        ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    ),
    array(
        "vector_array",
        "vector[]",
        "ARRAY['[1,2]'::vector]",
        ["[1,2]"],
        "CREATE EXTENSION IF NOT EXISTS vector",
    ),
)

CASES = SCALARS + TIMES + DOCUMENTS + STRUCTURED
