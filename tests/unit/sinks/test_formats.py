"""The forms of a record's value: nothing of an event is lost, and foreign readers understand it."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgpack

from headrace.consumer import Event, Position
from headrace.sinks.formats import Format, encoder

TX = {"xid": 7, "lsn": 100, "ts": "2026-01-02T03:04:05.678901Z", "seq": 2, "last": True}


def event(operation: str, **more: Any) -> Event:
    payload: dict[str, Any] = {
        "msg_id": "5a-users-x",
        "operation": operation,
        "table": "users",
        "schema": "public",
        "source": "s",
        "lsn": 90,
        "key": ["id"],
        "data": {"id": 1, "name": "Ada"},
        "tx": TX,
        **more,
    }
    return Event("s", "public", "users", operation, Position(100, 2), payload, "", 1, "s", True)


def as_json(form: Format, one: Event) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encoder(form)(one))
    return found


def test_json_keeps_what_it_has_no_form_for() -> None:
    data = {
        "nan": float("nan"),
        "far": [float("inf"), float("-inf")],
        "raw": b"\x00\xff",
        "text": "ö",
    }
    found = as_json(Format.JSON, event("INSERT", data=data))["data"]
    assert found == {
        "nan": "NaN",
        "far": ["Infinity", "-Infinity"],
        "raw": base64.b64encode(b"\x00\xff").decode(),
        "text": "ö",
    }


def test_messagepack_is_the_event_itself() -> None:
    one = event("INSERT", data={"raw": b"\x00"})
    assert msgpack.unpackb(encoder(Format.MSGPACK)(one)) == one.payload


def test_debezium_has_its_operations_and_both_rows() -> None:
    insert = as_json(Format.DEBEZIUM, event("INSERT"))
    assert (insert["op"], insert["before"], insert["after"]) == (
        "c",
        None,
        {"id": 1, "name": "Ada"},
    )
    assert insert["ts_ms"] == 1767323045678
    assert insert["source"]["table"] == "users"
    assert insert["source"]["snapshot"] == "false"
    update = as_json(Format.DEBEZIUM, event("UPDATE", old={"id": 2}, unchanged=["bio"]))
    assert (update["op"], update["before"]) == ("u", {"id": 2})
    assert update["after"]["bio"] == "__debezium_unavailable_value"
    delete = as_json(Format.DEBEZIUM, event("DELETE", old={"id": 1}))
    assert (delete["op"], delete["before"], delete["after"]) == ("d", {"id": 1}, None)
    assert as_json(Format.DEBEZIUM, event("TRUNCATE", data={}))["op"] == "t"
    assert as_json(Format.DEBEZIUM, event("INSERT", snapshot=True))["op"] == "r"


def test_a_schema_event_in_debeziums_envelope_is_none_of_its_operations() -> None:
    found = as_json(Format.DEBEZIUM, event("SCHEMA", columns=[]))
    assert found["op"] == "schema"
    assert found["headrace"]["columns"] == []


def test_a_cloud_event_has_the_required_attributes_and_the_event() -> None:
    found = as_json(Format.CLOUD_EVENTS, event("INSERT"))
    assert found["specversion"] == "1.0"
    assert (found["id"], found["source"]) == ("5a-users-x", "/headrace/s")
    assert (found["type"], found["subject"]) == ("io.headrace.insert", "public.users")
    assert found["time"] == TX["ts"]
    assert found["data"]["data"] == {"id": 1, "name": "Ada"}
