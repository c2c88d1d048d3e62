"""Every row of the contract's table of values, from a table of a real PostgreSQL to the bytes of a
message.

All values pass the line at the same time; then each is compared with the contract, or with the
output of PostgreSQL's own output function.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgpack
import pytest

from headrace.contract.values import SESSION_SETTINGS
from headrace.embedded.postgres_install import PostgresVersion
from headrace.testing.line import Delivered, Line, Lines
from headrace.testing.value_cases import ARRAYS, CASES, EMBEDDED, TEXT, Both, Case

pytestmark = pytest.mark.asyncio(loop_scope="module")

in_both_encodings = pytest.mark.parametrize(
    ("version", "encoding"), [(16, "msgpack"), (18, "json")]
)
WRITER_SETTINGS = (
    "DateStyle = 'SQL, DMY'",
    "TimeZone = 'Asia/Kathmandu'",
    "IntervalStyle = 'sql_standard'",
    "bytea_output = 'escape'",
    "extra_float_digits = -5",
)


@dataclass(frozen=True, slots=True)
class Passed:
    """One value on both ends: what PostgreSQL prints, and the message."""

    printed: str | None
    event: Delivered


_passed: dict[Line, dict[str, list[Passed]]] = {}


async def passed(line: Line, case: Case) -> list[Passed]:
    """The values of a case after their way through the line; all cases go through at the first
    call.
    """
    if line not in _passed:
        _passed[line] = await _pass_all(line)
    return _passed[line][case.name]


async def _pass_all(line: Line) -> dict[str, list[Passed]]:
    # The writer's own settings must not matter.
    for setting in WRITER_SETTINGS:
        await line.execute(f"SET {setting}")
    reader = await line.database.connect()
    for name, value in SESSION_SETTINGS.items():
        await reader.execute("SELECT set_config($1, $2, false)", name, value)
    printed = {case.name: await _write(line, reader, case) for case in (*CASES, *ARRAYS)}
    events: dict[str, list[Delivered]] = {}
    for event in await line.rows():
        events.setdefault(event.payload["table"].removeprefix("value_"), []).append(event)
    return {
        name: [Passed(text, event) for text, event in zip(texts, events[name], strict=True)]
        for name, texts in printed.items()
    }


async def _write(line: Line, reader: Any, case: Case) -> list[str | None]:
    table = f"value_{case.name}"
    rows = ", ".join(f"({i}, {literal})" for i, (literal, _) in enumerate(case.values))
    await line.execute(
        f"{case.setup}; CREATE TABLE {table} (id int PRIMARY KEY, v {case.type})",
        f"INSERT INTO {table} VALUES {rows}",
    )
    # format() asks the type's output function, which a cast to text does not always do.
    text = "CASE WHEN num_nonnulls(v) = 1 THEN format('%s', v) END"
    found = await reader.fetch(f"SELECT {text} FROM {table} ORDER BY id")
    return [row[0] for row in found]


def check(passed: Passed, expected: Any, encoding: str) -> None:
    if isinstance(expected, Both):
        expected = expected.msgpack if encoding == "msgpack" else expected.json
    if expected is EMBEDDED:
        assert passed.printed is not None
        assert (
            b'"data":{"id":%d,"v":%s}' % (passed.event.row["id"], passed.printed.encode())
            in passed.event.data
        )
        return
    # repr tells -0.0 from 0, 1 from 1.0 and True, and knows one NaN.
    assert repr(value_of(passed.event, encoding)) == repr(
        passed.printed if expected is TEXT else expected
    )


def value_of(event: Delivered, encoding: str) -> Any:
    """The value, as readers that know nothing of Headrace read it."""
    payload = msgpack.unpackb(event.data) if encoding == "msgpack" else json.loads(event.data)
    return payload["data"]["v"]


@in_both_encodings
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_value_has_the_contracts_form(
    lines: Lines, version: PostgresVersion, encoding: str, case: Case
) -> None:
    values = await passed(await lines(version, HEADRACE_ENCODING=encoding), case)
    assert len(values) == len(case.values)
    for value, (_, expected) in zip(values, case.values, strict=True):
        check(value, expected, encoding)


@in_both_encodings
@pytest.mark.parametrize("case", ARRAYS, ids=lambda case: case.name)
async def test_an_array_is_its_literal(
    lines: Lines, version: PostgresVersion, encoding: str, case: Case
) -> None:
    for value in await passed(await lines(version, HEADRACE_ENCODING=encoding), case):
        check(value, TEXT, encoding)


# The other two pairs of version and encoding, with every option that changes a value's form where
# it does.
OPTIONS = {
    (18, "msgpack"): {"HEADRACE_ARRAYS": "list", "HEADRACE_INT8_AS_STRING": "true"},
    (16, "json"): {
        "HEADRACE_ARRAYS": "list",
        "HEADRACE_INT8_AS_STRING": "true",
        "HEADRACE_JSON_VALUES": "text",
    },
}
with_options = pytest.mark.parametrize(("version", "encoding"), OPTIONS)
INT8 = {"int8", "domain_of_domain"}
JSON = {"json", "jsonb", "json_surrogate", "json_deep", "domain_json"}


async def optional(lines: Lines, version: PostgresVersion, encoding: str) -> Line:
    return await lines(version, HEADRACE_ENCODING=encoding, **OPTIONS[version, encoding])


@with_options
@pytest.mark.parametrize("case", ARRAYS, ids=lambda case: case.name)
async def test_an_array_is_a_list_where_lists_are_asked_for(
    lines: Lines, version: PostgresVersion, encoding: str, case: Case
) -> None:
    for value in await passed(await optional(lines, version, encoding), case):
        check(value, case.values[0][1], encoding)


@with_options
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_an_option_changes_its_own_types_only(
    lines: Lines, version: PostgresVersion, encoding: str, case: Case
) -> None:
    values = await passed(await optional(lines, version, encoding), case)
    changed = encoding == "json" and case.name in INT8 | JSON
    for value, (_, expected) in zip(values, case.values, strict=True):
        check(value, TEXT if changed else expected, encoding)
