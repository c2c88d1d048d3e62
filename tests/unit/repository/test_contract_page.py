"""docs/contract.md, its machine-readable schemas and what the code writes say the same.

The page's examples and the code's own payloads are checked against one set of schemas, and every
key that the code writes must be in them: a new key without a word in the contract fails here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.validators import extend
from referencing import Registry, Resource

from headrace.confirming.relation_shape import RelationShape
from headrace.contract import events, schemas, subjects_and_ids
from headrace.contract.schemas import ColumnShape, TableShape
from headrace.contract.values import Encoding, ValueOptions
from headrace.lsn import Gap, format_lsn
from headrace.pgoutput import messages
from headrace.postgres.facts import ColumnFacts, PublishedTable, TableFacts
from headrace.publisher.assembler import Assembler
from headrace.publisher.gaps import gap_event
from headrace.publisher.published_event import PublishedEvent
from headrace.publisher.table_events import TableEvents
from headrace.schema_publisher import schema as bucket
from headrace.settings import Settings, StreamSettings
from headrace.snapshot_responder.chunks import Chunk, block_of, key_only, message
from headrace.snapshot_responder.request_pairing import Answer
from headrace.spark.request import parse_request

DOCS = Path(__file__).parents[3] / "docs"
EXAMPLE = re.compile(r"<!-- ([a-z-]+) -->\n```json\n(.*?)```", re.DOTALL)
INT8, TEXT = 20, 25


@cache
def documents() -> dict[str, Any]:
    return {
        path.name: json.loads(path.read_text())
        for path in sorted((DOCS / "contract").glob("*.schema.json"))
    }


@cache
def validator(name: str) -> Any:
    resources = [(file, Resource.from_contents(document)) for file, document in documents().items()]
    # MessagePack may have bin for the schemas' string.
    checker = Draft202012Validator.TYPE_CHECKER.redefine(
        "string", lambda _, value: isinstance(value, str | bytes)
    )
    kind = extend(Draft202012Validator, type_checker=checker)  # type: ignore[no-untyped-call]  # its stubs lack the type
    registry: Registry[Any] = Registry().with_resources(resources)
    return kind(
        documents()[f"{name}.schema.json"], registry=registry, format_checker=FormatChecker()
    )


def check(name: str, payload: Any) -> None:
    """The payload is of the schema, and has no key that the schema doesn't name."""
    if name == "change-batch":
        assert payload
        for item in payload:
            check("change-event", item)
        return
    found = sorted(error.message for error in validator(name).iter_errors(payload))
    assert not found, f"{found} in {payload}"
    assert set(payload) <= set(documents()[f"{name}.schema.json"]["properties"]), (
        f"undocumented keys in {payload}"
    )
    if "tx" in payload:
        assert set(payload["tx"]) == set(
            documents()["common.schema.json"]["$defs"]["tx"]["properties"]
        )


def examples() -> list[tuple[str, str]]:
    return EXAMPLE.findall((DOCS / "contract.md").read_text())


@pytest.mark.parametrize("file", sorted(documents()))
def test_every_schema_is_one(file: str) -> None:
    Draft202012Validator.check_schema(documents()[file])


@pytest.mark.parametrize(("name", "text"), examples())
def test_every_example_of_the_page_is_of_its_schema(name: str, text: str) -> None:
    check(name, json.loads(text))


def test_the_page_has_an_example_of_every_message_and_none_that_is_not_checked() -> None:
    text = (DOCS / "contract.md").read_text()
    assert text.count("```json") == len(examples())
    assert {name for name, _ in examples()} == {
        file.removesuffix(".schema.json") for file in documents()
    } - {"common"}


def test_ids_and_subjects_of_the_page_are_those_that_the_code_makes() -> None:
    for name, text in examples():
        body = json.loads(text)
        if name == "change-event":
            token = subjects_and_ids.table_token(body["schema"], body["table"])
            operation = subjects_and_ids.Operation(body["operation"].lower())
            assert body["subject"] == subjects_and_ids.change_subject(token, operation)
            assert body["msg_id"] == subjects_and_ids.message_id(body["lsn"], token, operation)
        elif name == "schema-event":
            assert body["subject"] == subjects_and_ids.schema_subject(
                subjects_and_ids.table_token(body["schema"], body["table"])
            )
        elif name == "message-event":
            assert body["subject"] == subjects_and_ids.message_subject(body["prefix"])
        elif name == "snapshot-request":
            parse_request("snapshot.request.users", text.encode())


def test_names_of_the_page_are_those_that_the_code_makes() -> None:
    text = (DOCS / "contract.md").read_text()
    for schema, table in (
        ("public", "users"),
        ("app", "orders"),
        ("public", "Größe"),
        ("public", "_message"),
    ):
        assert f"`{subjects_and_ids.table_token(schema, table)}`" in text
    for column in ("cdc", "init", "requests", "schemas", "state"):
        assert f"`{getattr(StreamSettings(), column)}`" in text


def test_the_async_api_names_every_subject_and_every_schema() -> None:
    api = yaml.safe_load((DOCS / "contract/asyncapi.yaml").read_text())
    addresses = {channel["address"] for channel in api["channels"].values()}
    t = "{table}"
    assert addresses == {
        f"cdc.{t}.{{operation}}",
        subjects_and_ids.batch_subject(t),
        subjects_and_ids.schema_subject(t),
        "cdc._message.{prefix}",
        subjects_and_ids.GAP_SUBJECT,
        f"$KV.{Settings().streams.schemas}.{t}",
        subjects_and_ids.snapshot_request_subject(t),
        subjects_and_ids.chunk_subject(t, "{snapshotId}", 0).replace(".0", ".{chunk}"),
        subjects_and_ids.meta_subject(t),
        subjects_and_ids.snapshot_error_subject(t),
        subjects_and_ids.snapshot_progress_subject(t),
        None,
    }
    declared = api["components"]["messages"]
    payloads = {entry["payload"]["$ref"] for entry in declared.values()}
    assert payloads == set(documents()) - {"common.schema.json"}
    for reference in _references(api):
        if reference.startswith("#/"):
            target: Any = api
            for part in reference[2:].split("/"):
                target = target[part]
    sent = {operation["channel"]["$ref"] for operation in api["operations"].values()}
    assert {f"#/channels/{name}" for name in api["channels"]} - sent == {
        "#/channels/snapshotReplies"
    }
    assert api["channels"]["changes"]["parameters"]["operation"]["enum"] == [
        str(o) for o in subjects_and_ids.Operation
    ]


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if "$ref" in node:
            yield str(node["$ref"])
        for value in node.values():
            yield from _references(value)


def table(encoding: Encoding) -> TableEvents:
    columns = (
        messages.RelationColumn(True, "id", INT8, -1),
        messages.RelationColumn(False, "name", TEXT, -1),
    )
    facts = TableFacts(
        primary_key=("id",),
        columns={
            "id": ColumnFacts(1, False, None, False),
            "name": ColumnFacts(2, True, "''::text", True),
        },
        type_names={(INT8, -1): "bigint", (TEXT, -1): "text"},
    )
    relation = messages.Relation(16384, "app.x", "Größe", "d", columns)
    return TableEvents.of(RelationShape.of(relation, facts, ValueOptions(encoding=encoding)))


def assembled(
    encoding: Encoding, *stream: messages.PgoutputMessage, **options: Any
) -> list[dict[str, Any]]:
    """The publisher's events for these messages of one transaction."""
    assembler = Assembler(
        "headrace", encoding, message_prefixes=frozenset({"audit", ""}), **options
    )
    assembler.learn(table(encoding))
    found = []
    for sent in (messages.Begin(0x2000, 0, 700), *stream, messages.Commit(0, 0x2000, 0x2030, 0)):
        for item in assembler.feed(0x1000, sent):
            if isinstance(item, PublishedEvent):
                payload = events.decode(item.payload)
                assert (payload["subject"], payload["msg_id"]) == (item.subject, item.msg_id)
                found.append(payload)
    return found


@pytest.mark.parametrize("encoding", list(Encoding))
def test_what_the_publisher_writes_for_rows_is_what_the_contract_says(encoding: Encoding) -> None:
    found = assembled(
        encoding,
        messages.Insert(16384, (b"1", b"lamp")),
        messages.Insert(16384, (b"2", None)),
        messages.Update(16384, None, None, (b"1", messages.UNCHANGED)),
        messages.Update(16384, (b"1", None), None, (b"9", b"lamp")),
        messages.Update(16384, None, (b"9", b"lamp"), (b"9", b"bulb")),
        messages.Delete(16384, (b"2", None), None),
        messages.Delete(16384, None, (b"9", b"bulb")),
        messages.Truncate((16384,), False, False),
    )
    operations = [
        "SCHEMA",
        "INSERT",
        "INSERT",
        "UPDATE",
        "UPDATE",
        "UPDATE",
        "DELETE",
        "DELETE",
        "TRUNCATE",
    ]
    assert [payload["operation"] for payload in found] == operations
    check("schema-event", found[0])
    for payload in found[1:]:
        check("change-event", payload)
    assert [payload["tx"]["last"] for payload in found] == [False] * 8 + [True]


@pytest.mark.parametrize("encoding", list(Encoding))
def test_what_the_publisher_writes_for_messages_is_what_the_contract_says(
    encoding: Encoding,
) -> None:
    found = assembled(
        encoding,
        messages.LogicalMessage(True, 0x1000, "audit", b"text"),
        messages.LogicalMessage(True, 0x1000, "", b"\xff\x00"),
    )
    assert [payload["operation"] for payload in found] == ["MESSAGE", "MESSAGE"]
    assembler = Assembler("headrace", encoding, message_prefixes=frozenset({"audit"}))
    alone = next(
        iter(assembler.feed(0x3000, messages.LogicalMessage(False, 0x3000, "audit", b"alone")))
    )
    assert isinstance(alone, PublishedEvent)
    for payload in (*found, events.decode(alone.payload)):
        check("message-event", payload)


@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize(
    ("reason", "first_lost"),
    [("stream_tail_lost", 0), ("slot_moved", 0), ("source_diverged", 0), ("stream_damaged", 17)],
)
def test_what_the_publisher_writes_for_a_gap_is_what_the_contract_says(
    encoding: Encoding, reason: str, first_lost: int
) -> None:
    event = gap_event(Gap(0x16FC0E8, 0x171C268, reason), "headrace", encoding, first_lost)
    check("gap-event", events.decode(event.payload))
    assert (event.subject, event.advances) == (subjects_and_ids.GAP_SUBJECT, False)


@pytest.mark.parametrize("encoding", list(Encoding))
def test_a_batch_is_what_the_contract_says(encoding: Encoding) -> None:
    rows = assembled(
        encoding,
        messages.Insert(16384, (b"1", b"lamp")),
        messages.Delete(16384, (b"1", None), None),
    )[1:]
    batch = events.decode(events.encode(rows, encoding))
    assert batch == rows
    check("change-batch", batch)


@pytest.mark.parametrize("encoding", list(Encoding))
def test_what_the_bridge_documents_is_what_the_contract_says(encoding: Encoding) -> None:
    sent = (
        messages.Insert(16384, (b"1", b"lamp")),
        messages.Delete(16384, (b"1", None), None),
        messages.Truncate((16384,), False, False),
    )
    found = assembled(
        encoding, *sent, messages.LogicalMessage(True, 0x1000, "audit", b"text"), compat=True
    )
    assert [payload["operation"] for payload in found] == ["INSERT", "DELETE"]
    for payload in found:
        check("bridge-event", payload)


@pytest.mark.parametrize("encoding", list(Encoding))
def test_a_reference_to_a_large_event_is_what_the_contract_says(encoding: Encoding) -> None:
    sent: list[messages.PgoutputMessage] = [
        messages.Insert(16384, (b"1", b"x" * 1000)),
        messages.Delete(16384, None, (b"1", b"x" * 1000)),
    ]
    sent.append(messages.LogicalMessage(True, 0x1000, "audit", b"x" * 1000))
    changes = assembled(encoding, *sent, payload_bytes_max=900)[1:]
    assert all(payload["reference"]["name"] == payload["msg_id"] for payload in changes)
    for name, payload in zip(
        ("change-event", "change-event", "message-event"), changes, strict=True
    ):
        check(name, payload)
    assert [payload["data"] for payload in changes] == [{"id": 1}, {"id": 1}, {}]


def test_every_difference_that_the_code_can_find_is_in_the_contract() -> None:
    shape = partial(TableShape, "public")
    first = (ColumnShape("id", INT8, -1, "bigint", number=1), _text("a", 2))
    old = shape("users", 1, "d", ("id",), 1, first)
    renamed = (ColumnShape("b", TEXT, -1, "text", number=1), _text("n", 3))
    new = shape("people", 1, "f", ("a",), 2, renamed)
    other = (ColumnShape("id", TEXT, -1, "text", is_nullable=False),)
    retyped = shape("users", 2, "d", ("id",), 1, other)
    page = (DOCS / "contract.md").read_text()
    kinds = set()
    for before, after in ((old, new), (old, retyped)):
        changes, resync = schemas.differences(before, after)
        body = schemas.event(after, source="headrace", version=2, changes=changes, resync=resync)
        tx = events.transaction(
            0, events.position_of({"tx": {"lsn": 1, "seq": 0}}), None, last=False
        )
        check(
            "schema-event",
            {
                "subject": "cdc.people.schema",
                "msg_id": "1-people-schema",
                **body,
                "lsn": 1,
                "tx": tx,
            },
        )
        kinds |= {change["change"] for change in changes}
    assert len(kinds) >= 8
    assert all(f"`{kind}`" in page for kind in kinds)


def _text(name: str, number: int) -> ColumnShape:
    return ColumnShape(name, TEXT, -1, "text", number=number)


def test_the_bucket_holds_what_the_contract_says() -> None:
    table = PublishedTable(16384, "app", "orders", "f", ("id",), None, "r")
    content = bucket.TableSchema.of("headrace", table, [], ["id"]).content
    check("table-schema", bucket.value(content, 1, 1765540834))


@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize("zstd", [False, True])
def test_a_chunk_is_what_the_contract_says(encoding: Encoding, zstd: bool) -> None:
    body = bytes(block_of([{"id": 1, "name": "Ada"}, {"id": 2, "name": None}], encoding).data)
    head = {
        "table": "users",
        "operation": "snapshot",
        "snapshot_id": "snap-1-ab",
        "chunk": 0,
        "lsn": format_lsn(0x16F8A80),
    }
    check("snapshot-chunk", events.decode(message(head, Chunk(2, body), encoding, zstd=zstd)))
    exact = Chunk(2, body, exact={1: {"name": "null"}})
    check("snapshot-chunk", events.decode(message(head, exact, encoding, zstd=zstd)))
    large = Chunk(1, bytes(block_of([{"id": 1, "name": "Ada"}], encoding).data), large=True)
    reference = {"bucket": "headrace_large", "name": "snap-1-ab-0", "bytes": 73400320}
    small = message(
        {**head, "reference": reference}, key_only(large, ["id"], encoding), encoding, zstd=zstd
    )
    check("snapshot-chunk", events.decode(small))


@pytest.mark.parametrize("status", ["accepted", "joined", "rejected"])
def test_an_answer_is_what_the_contract_says(status: str) -> None:
    check("snapshot-reply", Answer("snap-1-ab", status, None).body())


def test_a_key_without_a_word_in_the_contract_fails() -> None:
    payload = assembled(Encoding.JSON, messages.Insert(16384, (b"1", None)))[1]
    with pytest.raises(AssertionError, match="undocumented"):
        check("change-event", {**payload, "novelty": 1})
    with pytest.raises(AssertionError, match="is not of type"):
        check("change-event", {**payload, "lsn": "0/1000"})
