"""Events as records: destinations, keys, and updates that change a key."""

from __future__ import annotations

import math
from typing import Any

from headrace.consumer import Event, Position, Transaction
from headrace.sinks.routing import Record, Router


def event(operation: str = "INSERT", seq: int = 0, **more: Any) -> Event:
    payload: dict[str, Any] = {
        "msg_id": f"a-{seq}",
        "operation": operation,
        "key": ["id"],
        "data": {"id": 1, "name": "Ada"},
        "tx": {"xid": 7, "lsn": 100, "seq": seq, "last": False},
        **more,
    }
    position = Position(100, seq)
    return Event("s", "app", "users", operation, position, payload, "cdc.x", seq + 1, "s", True)


def records(one: Event, router: Router | None = None) -> list[Record]:
    return list((router or Router()).records(one))


def test_a_record_has_the_tables_name_and_the_rows_key() -> None:
    (record,) = records(event())
    assert (record.id, record.destination, record.key) == ("a-0", "app.users", b"[1]")
    assert record.headers["headrace-position"] == "100 0"


def test_an_event_of_no_row_has_no_key() -> None:
    assert [record.key for record in records(event("TRUNCATE", data={}))] == [None]
    assert [record.key for record in records(event("SCHEMA"))] == [None]


def test_the_columns_of_the_key_can_be_chosen() -> None:
    (record,) = records(event(), Router(key=("name", "id")))
    assert record.key == b'["Ada",1]'


def test_keys_of_nan_and_infinities_differ_from_each_other_and_from_null() -> None:
    values = [math.nan, math.inf, -math.inf, None, 1.5]
    keys = [records(event(data={"id": value, "n": 1}))[0].key for value in values]
    assert keys == [b'["NaN"]', b'["Infinity"]', b'["-Infinity"]', b"[null]", b"[1.5]"]
    left, update = records(event("UPDATE", data={"id": math.inf}, old={"id": math.nan}))
    assert (left.key, update.key) == (b'["NaN"]', b'["Infinity"]')
    # The same row, although NaN is not equal to itself in Python.
    same = event("UPDATE", data={"id": math.nan}, old={"id": float("nan")})
    assert [record.key for record in records(same)] == [b'["NaN"]']


def test_a_key_of_bytes_is_their_base64() -> None:
    (record,) = records(event(data={"id": b"\x00\xff"}))
    assert record.key == b'["AP8="]'


def test_a_changed_key_is_a_delete_of_the_old_one_before_the_update() -> None:
    left, update = records(event("UPDATE", old={"id": 9}, unchanged=["bio"]))
    assert (left.id, left.key, left.event.operation) == ("a-0-old", b"[9]", "DELETE")
    assert left.event.data == {"id": 9}
    assert left.event.unchanged == []
    assert (update.id, update.key, update.event.operation) == ("a-0", b"[1]", "UPDATE")
    assert update.event.unchanged == ["bio"]


def test_an_old_row_with_the_same_key_is_one_record() -> None:
    assert len(records(event("UPDATE", old={"id": 1, "name": "Bob"}))) == 1


def test_a_transaction_keeps_its_order_and_its_end() -> None:
    router = Router(filters=(lambda one: [one] if one.position.seq != 2 else [],), parked={"a-0"})
    transaction = Transaction(tuple(event(seq=seq) for seq in range(3)), ends=True)
    routed = router.route(transaction)
    assert routed is not None
    assert [record.id for record in routed.records] == ["a-1"]
    assert (routed.position, routed.stream_seq, routed.ends) == (Position(100, 2), 3, True)


def test_a_transaction_without_records_is_none() -> None:
    router = Router(filters=(lambda _: [],))
    assert router.route(Transaction((event(),), ends=True)) is None
