"""Each value that a stream delivers is the source's value: rebuilt from the message as the
contract's page says, it has the text that PostgreSQL prints of the column.

Nothing of Headrace reads here: the messages are a plain reader's, and PostgreSQL judges.
"""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest

from headrace.testing.line import Lines
from tests.oracle import documents
from tests.oracle.foreign_reader import foreign_reader

pytestmark = pytest.mark.asyncio(loop_scope="module")

# A type, and literals of values of which a careless form loses something.
VALUES = {
    "bool": ("true", "false"),
    "int8": ("9223372036854775807", "-9223372036854775808", "9007199254740993"),
    "float8": ("0.1", "5e-324", "1.7976931348623157e308", "'-0'", "'NaN'", "'-Infinity'", "1e22"),
    "float4": ("0.1", "16777217", "'Infinity'"),
    "numeric": ("1.50", "1e-20", "12345678901234567890.10", "'NaN'", "'-Infinity'", "100"),
    "money": ("-1234.5", "92233720368547758.07"),
    "text": ("''", "E'a\\tb\\n\\\\ \\x01'", "'null'", "'é ẞ 𝄞'", "repeat('x', 5000)"),
    "char(5)": ("'ab'",),
    "bytea": ("''", "'\\x00ff5c0a'", "decode(repeat('ab', 3000), 'hex')"),
    "timestamptz": ("'2026-01-31 12:00:00.5+02'", "'infinity'", "'0044-03-15 BC'", "'20000-01-01'"),
    "timestamp": ("'2026-01-31 12:00:00.000001'", "'-infinity'"),
    "date": ("'2026-01-31'", "'0044-03-15 BC'"),
    "timetz": ("'12:00:34.5+02'", "'24:00:00-15:59'"),
    "interval": ("'-1 year 2 mons -3 days 04:05:06.7'", "'0'", "'-00:00:00.000001'"),
    "int[]": ("'{{1,2},{3,NULL}}'", "'[0:1]={1,2}'", "'{}'"),
    "text[]": ("""'{"a,b",NULL,"NULL","\\\\"}'""",),
    "bytea[]": ("""'{"\\\\x00ff"}'""",),
    "jsonb[]": ("ARRAY['[1, 2]'::jsonb, 'null', NULL, '1.50']",),
    "int4range": ("'[1,5)'", "'empty'"),
    "inet": ("'10.0.0.1/8'",),
    "bit(3)": ("B'101'",),
    "regtype": ("'integer'",),
    "regclass": ("'pg_class'",),
    "prices": ("'{1.50,NULL}'",),
    "price[]": ("'{1.50,NULL}'",),
    "photo": ("'\\x00ff'",),
}
DOCUMENTS = 300


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
@pytest.mark.parametrize("arrays", ["literal", "list"])
async def test_a_value_rebuilt_from_the_stream_has_the_text_of_the_sources_column(
    lines: Lines, encoding: str, arrays: str
) -> None:
    line = await lines(18, HEADRACE_ENCODING=encoding, HEADRACE_ARRAYS=arrays)
    connection = await line.database.connect()
    await connection.execute(
        "CREATE DOMAIN price AS numeric; CREATE DOMAIN prices AS price[]; CREATE DOMAIN photo AS bytea"
    )
    chance = random.Random(f"{encoding} {arrays}")
    texts = await documents.texts(
        connection, [documents.document(chance) for _ in range(DOCUMENTS)]
    )
    columns = {f"c{place}": data_type for place, data_type in enumerate(VALUES)}
    columns["doc"] = "jsonb"
    listed = ", ".join(f"{name} {data_type}" for name, data_type in columns.items())
    await connection.execute(
        f"CREATE TABLE exactly (id int PRIMARY KEY, touched int, {listed});"
        "ALTER TABLE exactly REPLICA IDENTITY FULL"
    )
    for name, data_type in columns.items():
        for value in VALUES.get(data_type, ()):
            await connection.execute(
                f"INSERT INTO exactly (id, {name}) SELECT count(*), {value} FROM exactly"
            )
    await connection.executemany(
        "INSERT INTO exactly (id, doc) SELECT count(*), $1::text::jsonb FROM exactly",
        [(text,) for text in texts],
    )
    printed = {
        row["id"]: dict(row)
        for row in await connection.fetch(
            f"SELECT id, {', '.join(f'{name}::text' for name in columns)} FROM exactly"
        )
    }
    await connection.execute("UPDATE exactly SET touched = 1; DELETE FROM exactly")
    await line.rows()
    async with foreign_reader(line.nats_url) as reader:
        events = [
            message.payload
            for message in await reader.read()
            if message.payload.get("table") == "exactly" and message.operation != "SCHEMA"
        ]
    sides = [
        (event[side], event.get(beside, {}))
        for event in events
        for side, beside in (("data", "exact"), ("old", "exact_old"))
        if event["operation"] != "DELETE" or side == "old"
        if side in event
    ]
    # INSERT's row, both of UPDATE's, and the old one of DELETE.
    assert len(sides) == 4 * len(printed)
    for name, data_type in columns.items():
        literals = [literal(row[name], exact.get(name), data_type) for row, exact in sides]
        judged = await connection.fetch(
            f"SELECT (given::{data_type})::text AS text FROM unnest($1::text[]) WITH ORDINALITY"
            " AS of (given, place) ORDER BY place",
            literals,
        )
        for (row, _), value in zip(sides, judged, strict=True):
            assert value["text"] == printed[row["id"]][name], (data_type, row["id"], row[name])


def literal(value: Any, exact: str | None, data_type: str) -> str | None:
    """PostgreSQL's literal of a value, by docs/contract.md."""
    if exact is not None or value is None:
        return exact
    if data_type == "jsonb":
        return json.dumps(value)
    if isinstance(value, list):
        return array(value, data_type)
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if data_type in {"bytea", "photo"}:
        return "\\x" + base64.b64decode(value).hex()
    return value if isinstance(value, str) else json.dumps(value)


def array(values: list[Any], data_type: str) -> str:
    element = {"prices": "price"}.get(data_type, data_type.removesuffix("[]"))
    parts = [
        array(one, data_type)
        if isinstance(one, list) and element != "jsonb"
        else quoted(literal(one, None, element))
        for one in values
    ]
    return "{" + ",".join(parts) + "}"


def quoted(text: str | None) -> str:
    if text is None:
        return "NULL"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
