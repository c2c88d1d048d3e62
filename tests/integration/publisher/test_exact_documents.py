"""A document has an exact text where PostgreSQL says that its native form is another document, and
nowhere else.
"""

from __future__ import annotations

import json
import random
from typing import Any

import msgpack
import pytest

from headrace.contract import events, exact
from headrace.contract.type_oids import JSONB
from headrace.contract.values import Encoding, ValueOptions, converter
from headrace.testing.database import Database
from tests.oracle import documents


@pytest.mark.parametrize("seed", range(3))
async def test_exact_is_there_if_and_only_if_the_native_form_is_another_document(
    database: Database, seed: int
) -> None:
    chance = random.Random(seed)
    connection = await database.connect()
    printed = await documents.texts(connection, [documents.document(chance) for _ in range(1500)])
    convert = converter(JSONB, ValueOptions(), lambda _: None)
    found = [convert(text.encode()) for text in printed]
    again = await documents.texts(
        connection, [json.dumps(_received(exact.native(value))) for value in found]
    )
    for text, value, rebuilt in zip(printed, found, again, strict=True):
        # SQL's NULL has the same native form as the document null.
        same = rebuilt == text and text != "null"
        assert isinstance(value, exact.Inexact) != same, (text, rebuilt)
        assert not isinstance(value, exact.Inexact) or value.text == text
    assert 100 < sum(isinstance(value, exact.Inexact) for value in found) < 1400


def _received(native: object) -> Any:
    return msgpack.unpackb(msgpack.packb(native))


@pytest.mark.parametrize("encoding", Encoding)
async def test_a_row_that_was_read_with_its_texts_is_the_sources_row(
    database: Database, encoding: Encoding
) -> None:
    chance = random.Random(7)
    connection = await database.connect()
    printed = await documents.texts(connection, [documents.document(chance) for _ in range(1500)])
    convert = converter(JSONB, ValueOptions(encoding), lambda _: None)
    rebuilt = []
    for text in printed:
        value = convert(text.encode())
        payload = {"data": {"doc": exact.native(value)}}
        if isinstance(value, exact.Inexact):
            payload["exact"] = {"doc": value.text}
        read = exact.row(events.decode(events.encode(payload, encoding)))["doc"]
        rebuilt.append(str(read) if isinstance(read, exact.ExactText) else json.dumps(read))
    assert await documents.texts(connection, rebuilt) == printed
