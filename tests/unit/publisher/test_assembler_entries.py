"""The assembler on PostgreSQL's bytes: rows that take the quick way, and entries that it leaves."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from headrace.confirming.relation_shape import RelationShape
from headrace.contract import events
from headrace.contract.values import Encoding, ValueOptions
from headrace.pgoutput import messages
from headrace.pgoutput.messages import LogicalMessage, Relation, RelationColumn
from headrace.postgres.ddl_trigger import PREFIX
from headrace.postgres.facts import RelationNow, TableFacts
from headrace.publisher.assembler import Assembler
from headrace.publisher.published_event import PublishedEvent
from headrace.publisher.schema_book import SchemaBook
from headrace.publisher.table_events import TableEvents

TEXT = 25
Entry = tuple[int, bytes]


def table(*columns: str, key: tuple[str, ...] = ("id",)) -> TableEvents:
    described = tuple(RelationColumn(name in key, name, TEXT, -1) for name in columns)
    options = ValueOptions(encoding=Encoding.JSON)
    shape = RelationShape.of(Relation(1, "public", "t", "d", described), TableFacts(key), options)
    return TableEvents.of(shape)


def assembler(*columns: str, **more: Any) -> Assembler:
    made = Assembler("slot", Encoding.JSON, **more)
    made.learn(table(*columns))
    return made


def begin(commit: int) -> Entry:
    return commit, b"B" + struct.pack(">QqI", commit, 0, 7)


def commit(commit_lsn: int) -> Entry:
    return commit_lsn, b"C\0" + struct.pack(">QQq", commit_lsn, commit_lsn + 8, 0)


def row(lsn: int, *values: str) -> Entry:
    fields = b"".join(b"t" + struct.pack(">I", len(one)) + one.encode() for one in values)
    return lsn, b"I" + struct.pack(">I", 1) + b"N" + struct.pack(">H", len(values)) + fields


def bodies(made: Assembler) -> list[dict[str, Any]]:
    found = [one for one in made.taken() if isinstance(one, PublishedEvent) and one.advances]
    return [events.decode(one.payload) for one in found]


def taken(made: Assembler, *entries: Entry) -> list[dict[str, Any]]:
    assert made.take(entries, 0) == len(entries)
    return bodies(made)


def test_rows_have_the_columns_of_their_relation_after_each_change_of_it() -> None:
    made = assembler("id", "name")
    rows = [row(100 + number, str(number), "x") for number in range(4)]
    found = taken(made, begin(200), *rows, commit(200))
    assert [body["data"] for body in found] == [{"id": str(n), "name": "x"} for n in range(4)]
    for columns in (("id", "renamed"), ("name", "id"), ("id", "name", "more")):
        made.learn(table(*columns))
        values = ["1", "2", "3"][: len(columns)]
        found = taken(made, begin(300), *[row(290 + n, *values) for n in range(4)], commit(300))
        assert [body["data"] for body in found] == [dict(zip(columns, values, strict=True))] * 4


@pytest.mark.parametrize(("columns", "key"), [(("id",), ["id"]), (("id", "name"), ["id"])])
def test_an_event_names_the_columns_of_its_key(columns: tuple[str, ...], key: list[str]) -> None:
    found = taken(assembler(*columns), begin(200), row(100, *"ab"[: len(columns)]), commit(200))
    assert [body["key"] for body in found] == [key]


def emitted(lsn: int, prefix: str, content: bytes = b"x", *, transactional: bool = True) -> Entry:
    flags = struct.pack(">BQ", transactional, lsn)
    size = struct.pack(">I", len(content))
    return lsn, b"M" + flags + prefix.encode() + b"\0" + size + content


DDL = json.dumps(
    {"event": "table_rewrite", "tables": [{"relation": 1, "schema": "public", "table": "t"}]}
)


@pytest.mark.parametrize(
    "entry",
    [
        (150, b"R" + struct.pack(">I", 1) + b"public\0t\0d\0\0"),
        # One byte is missing.
        (150, row(150, "1", "x")[1][:-1]),
        emitted(150, PREFIX, DDL.encode()),
    ],
    ids=["relation", "malformed", "claim"],
)
def test_an_entry_that_needs_more_than_is_known_is_left(entry: Entry) -> None:
    made = assembler("id", "name")
    taken(made, begin(90), row(80, "0", "x"), commit(90))
    entries = [begin(200), row(100, "1", "x"), row(110, "2", "x"), entry, row(160, "3", "x")]
    assert made.take(entries, 0) == 3
    assert [body["data"]["id"] for body in bodies(made)] == ["1"], "the last one is still held"
    assert made.take([*entries[:3], *entries[4:], commit(200)], 3) == 5
    assert [body["data"]["id"] for body in bodies(made)] == ["2", "3"]


def test_an_emitted_message_has_the_place_of_its_transaction_or_one_of_its_own() -> None:
    made = assembler("id", message_prefixes=frozenset({"mine"}))
    inside = emitted(110, "mine"), emitted(120, "other"), row(130, "1")
    found = taken(made, begin(200), *inside, commit(200), emitted(300, "mine", transactional=False))
    assert [(body["operation"], body["tx"]["xid"], body["tx"]["last"]) for body in found] == [
        ("MESSAGE", 7, False),
        ("INSERT", 7, True),
        ("MESSAGE", 0, True),
    ]
    assert found[0]["tx"]["ts"] is not None
    assert found[2]["tx"]["ts"] is None
    bridge = assembler("id", message_prefixes=frozenset({"mine"}), compat=True)
    operations = [body.get("operation") for body in taken(bridge, begin(200), *inside, commit(200))]
    assert len(operations) == 1


def claimed(made: Assembler, *, confirmed: bool) -> list[str]:
    """The schema changes that a message of the event trigger brings."""
    message = LogicalMessage(True, 150, PREFIX, DDL.encode())
    made.feed(150, messages.Begin(200, 0, 7))
    if confirmed:
        items = made.feed_claim(150, message, {1: RelationNow("public", "t", "2:8:6:0//", 300)})
    else:
        items = made.feed(150, message)
    bodies = [events.decode(one.payload) for one in items if isinstance(one, PublishedEvent)]
    return [change["change"] for body in bodies for change in body["changes"]]


@pytest.mark.parametrize(
    ("confirmed", "compat", "changes"),
    [(True, False, ["table_rewritten"]), (False, False, []), (True, True, [])],
)
def test_a_claim_of_the_event_trigger_counts_once_the_catalog_confirms_it(
    changes: list[str], *, confirmed: bool, compat: bool
) -> None:
    book = SchemaBook()
    told = Assembler("slot", Encoding.JSON, book)
    told.learn(table("id"))
    taken(told, begin(90), row(80, "0"), commit(90))
    made = Assembler("slot", Encoding.JSON, book, compat=compat)
    made.learn(table("id"))
    assert claimed(made, confirmed=confirmed) == changes
