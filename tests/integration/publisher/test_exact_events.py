"""Documents from a table to a message: the message also contains the text that their native form
loses, for rows and old rows.
"""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest

from headrace.testing.line import Delivered, Lines

pytestmark = pytest.mark.asyncio(loop_scope="module")

LOST = ("null", "[1.50]", '{"n": 12345678901234567890123}', "18446744073709551616", "[0.1234567890123456789]", "1e400",
        "[" * 600 + "]" * 600)  # fmt: skip
KEPT = ("{}", '{"a": null}', "1.5", '"null"', '"1.50"', "0.0000001")


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
async def test_rows_and_old_rows_have_the_sources_text_where_it_takes_one(
    lines: Lines, encoding: str
) -> None:
    line = await lines(18, HEADRACE_ENCODING=encoding)
    await line.execute(
        "CREATE TABLE docs (id int, doc jsonb); ALTER TABLE docs REPLICA IDENTITY FULL"
    )
    rows = ", ".join(f"({place}, '{text}')" for place, text in enumerate((*LOST, *KEPT)))
    await line.execute(f"INSERT INTO docs VALUES {rows}, (100, NULL)")
    reader = await line.database.connect()
    printed = dict(await reader.fetch("SELECT id, doc::text FROM docs"))
    await line.execute("UPDATE docs SET doc = to_jsonb(id)")
    await line.execute("UPDATE docs SET doc = NULL; DELETE FROM docs")
    events = [
        read(event, encoding) for event in await line.rows() if event.payload["table"] == "docs"
    ]
    assert len(events) == 4 * len(printed)
    inserts, updates = events[: len(printed)], events[len(printed) : 2 * len(printed)]
    for event in inserts:
        place = event["data"]["id"]
        assert event.get("exact") == ({"doc": printed[place]} if place < len(LOST) else None), place
    for event in updates:
        place = event["old"]["id"]
        assert event.get("exact_old") == ({"doc": printed[place]} if place < len(LOST) else None), (
            place
        )
    assert not any("exact" in event for event in events[len(printed) :])
    assert not any("exact_old" in event for event in events[2 * len(printed) :])


def read(event: Delivered, encoding: str) -> dict[str, Any]:
    """As a reader that knows nothing of Headrace has it."""
    payload: dict[str, Any] = (
        msgpack.unpackb(event.data) if encoding == "msgpack" else json.loads(event.data)
    )
    return payload
