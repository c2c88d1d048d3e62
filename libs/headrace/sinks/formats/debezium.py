"""Debezium's envelope, so that consumers of Debezium's JSON (without schemas) work unchanged.

`before`, `after`, `op`, `ts_ms`, `source` and `transaction` have Debezium's meaning. Values have
the wire contract's form: numerics are strings of digits (`decimal.handling.mode=string`), times are
ISO 8601. A document that JSON's readers would round is PostgreSQL's text. A large value that
PostgreSQL did not send is Debezium's placeholder.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from headrace.consumer.event import Event
from headrace.contract import exact
from headrace.sinks.formats.json_values import dumps, plain_row

UNAVAILABLE = "__debezium_unavailable_value"
_OPERATIONS = {"INSERT": "c", "UPDATE": "u", "DELETE": "d", "TRUNCATE": "t", "MESSAGE": "m"}
_SNAPSHOT_ROW = "r"


def encode_debezium(event: Event) -> bytes:
    """The event in Debezium's envelope; schema and gap events as Headrace's, under `headrace`."""
    return dumps(envelope(event))


def envelope(event: Event) -> dict[str, Any]:
    payload = event.payload
    body: dict[str, Any] = {
        "before": _before(event),
        "after": _after(event),
        "source": _source(event),
        "op": _operation(event),
        "ts_ms": _millis(payload["tx"]["ts"]),
        "transaction": {
            "id": f"{payload['tx']['xid']}:{event.position.lsn}",
            "total_order": event.position.seq + 1,
            "data_collection_order": event.position.seq + 1,
        },
    }
    if event.operation == "MESSAGE":
        body["message"] = {"prefix": payload.get("prefix"), "content": payload.get("content")}
    elif event.operation not in _OPERATIONS:
        body["headrace"] = dict(payload)
    return body


def _operation(event: Event) -> str:
    if event.payload.get("snapshot"):
        return _SNAPSHOT_ROW
    # Consumers skip operations that they don't know.
    return _OPERATIONS.get(event.operation, event.operation.lower())


def _before(event: Event) -> Mapping[str, Any] | None:
    if event.operation == "DELETE":
        if event.old:
            return plain_row(exact.old_row(event.payload))
        return plain_row(exact.row(event.payload))
    return plain_row(exact.old_row(event.payload))


def _after(event: Event) -> Mapping[str, Any] | None:
    if event.operation not in {"INSERT", "UPDATE"}:
        return None
    row = dict(plain_row(exact.row(event.payload)) or {})
    row.update(dict.fromkeys(event.unchanged, UNAVAILABLE))
    return row


def _source(event: Event) -> dict[str, Any]:
    tx = event.payload["tx"]
    return {
        "version": "headrace",
        "connector": "postgresql",
        "name": event.source,
        "ts_ms": _millis(tx["ts"]),
        "snapshot": "true" if event.payload.get("snapshot") else "false",
        "db": event.payload.get("database", ""),
        "sequence": f'["{tx["lsn"]}","{event.payload.get("lsn")}"]',
        "schema": event.schema,
        "table": event.table,
        "txId": tx["xid"],
        "lsn": event.payload.get("lsn"),
    }


def _millis(timestamp: str | None) -> int | None:
    if timestamp is None:
        return None
    moment = datetime.fromisoformat(timestamp)
    # Whole numbers: a float of seconds would round.
    return int(moment.timestamp()) * 1000 + moment.microsecond // 1000
