"""The claims about what arrives: values of every type, events of every operation, copies."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.consumer import Event, Position, Transaction, Watermark
from headrace.sinks.port import SEEN, SinkError
from headrace.sinks.routing import RoutedTransaction
from headrace.testing.sinks.kit import Kit, opened
from headrace.testing.sinks.records import changes, event, row_id

# By column: the wire contract's native form, at its edges (docs/contract.md).
VALUES: dict[str, Any] = {
    "none": None,
    "yes": True,
    "int2": -32_768,
    "int4": 2_147_483_647,
    "int8": -9_223_372_036_854_775_808,
    "int8_max": 9_223_372_036_854_775_807,
    "beyond_double": 9_007_199_254_740_993,
    "float8": 0.1 + 0.2,
    "least": 5e-324,
    "zero": -0.0,
    "nan": float("nan"),
    "endless": float("inf"),
    "numeric": "9" * 600 + "." + "1234567890" * 40,
    "numeric_nan": "NaN",
    "money": "-92233720368547758.08",
    "empty": "",
    "blank": " ",
    "word_null": "NULL",
    "lines": 'line\nfeed\r\n\ttab, "quoted", \\slash\\, {brace}',
    "astral": "\U0001f600 e\u0301 \u202e \ufeff \U0010ffff",
    "bytes": bytes(range(256)),
    "no_bytes": b"",
    "timestamptz": "2025-12-12T12:00:34.338547Z",
    "before_christ": "4713-01-01 00:00:00+00 BC",
    "far": "294276-12-31 23:59:59.999999",
    "never": "infinity",
    "midnight": "24:00:00",
    "interval": "P-1Y-2M3DT4H5M6.789S",
    "document": {"price": 1.5, "list": [1, None, {"deep": [[]]}]},
    "array": '{{1,2},{3,NULL},"a,b"}',
    "listed": [1.5, None, float("nan"), b"\x00\xff"],
    "range": "[1,10)",
    "uuid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    'odd "column", of é\nlines': "x",
}
_EXACT = {"document": '{"price": 1.50, "list": [1, null, {"deep": [[]]}]}'}


async def values_arrive(kit: Kit) -> None:
    """Each record's value arrives as it is, byte for byte."""
    lsn = kit.next_lsn()
    row = {"id": row_id(lsn, 0), **VALUES}
    again = {**row, "id": row_id(lsn, 1)}
    found = changes(lsn, [("INSERT", row), ("INSERT", again)], exact=_EXACT)
    async with opened(kit.bench.make) as (sink, _):
        await kit.deliver(sink, kit.routed(found))
    await kit.expect("values")
    await same_values(kit, "values")


async def same_values(kit: Kit, claim: str) -> None:
    """Raise unless readers get the bytes of every record."""
    assert kit.bench.values is not None, "the claim needs it"
    found = await asyncio.to_thread(kit.bench.values)
    for record in kit.committed:
        arrived = found.get(record.id, b"")
        assert arrived == record.value, (
            f"{claim}: {record.id} arrives as {arrived[:200]!r}, expected {record.value[:200]!r}"
        )


async def every_operation_arrives(kit: Kit) -> None:
    """Changes of every kind: large values that did not change, changed keys, truncates, changes of
    the table's columns, messages, and gaps.
    """
    lsn = kit.next_lsn()
    old = {"id": row_id(lsn, 0), "note": "before", "large": "x" * 5000}
    moved = {"id": row_id(lsn, 1), "note": "after"}
    rows = [
        event(lsn, 0, "INSERT", old, last=False),
        event(lsn, 1, "UPDATE", {"id": old["id"]}, last=False, unchanged=["large"]),
        event(lsn, 2, "UPDATE", moved, last=False, unchanged=["large"], old={"id": old["id"]}),
        event(lsn, 3, "DELETE", {"id": moved["id"], "note": None}, last=True),
    ]
    await _deliver(kit, *rows)
    await _deliver(kit, event(kit.next_lsn(), 0, "TRUNCATE", {}, last=True))
    lsn = kit.next_lsn()
    shape = {
        "version": 2,
        "changes": [{"change": "column_added", "column": "more"}],
        "columns": [{"name": "id", "data_type": "bigint"}, {"name": "more", "data_type": "text"}],
    }
    more = event(lsn, 0, "INSERT", {"id": row_id(lsn, 0), "more": "y"}, last=True)
    # A schema event has the position of the first row that has the new columns.
    await _deliver(kit, event(lsn, 0, "SCHEMA", {}, last=False, **shape), more)
    lsn = kit.next_lsn()
    said = event(lsn, 0, "MESSAGE", {}, last=True, prefix="kit", content="said", table="")
    await _deliver(kit, said)
    lost = {"after": "0/1", "up_to": "0/2", "reason": "conformance", "table": ""}
    await _deliver(kit, event(kit.next_lsn(), 0, "GAP", {}, last=False, **lost))
    await kit.expect("every operation")
    await same_values(kit, "every operation")


async def _deliver(kit: Kit, *events: Event) -> None:
    routed = kit.routed(Transaction(events, ends=True))
    operations = {one.operation for one in events}
    try:
        async with opened(kit.bench.make) as (sink, _):
            await kit.deliver(sink, routed)
    except SinkError as error:
        raise AssertionError(f"every operation: {operations} is refused: {error}") from error


async def copies_continue(kit: Kit) -> None:
    """A table's copy comes in chunks, all at one position, and continues where it was committed;
    then changes follow.
    """
    lsn = kit.next_lsn()
    lane = f"copy/conformance/{lsn:x}"
    chunks = [_chunk(kit, lsn, number) for number in range(3)]
    async with opened(kit.bench.make) as (sink, _):
        await _copy(kit, sink, chunks[0], lane, 1)
        # The process ends before the second chunk is committed.
        await sink.write([chunks[1]])
    # The second chunk comes again, at a position that the sink has already.
    async with opened(kit.bench.make) as (sink, marks):
        if kit.is_exact:
            assert marks == kit.marks, f"copies: the marks are {marks}, expected {kit.marks}"
        for number in (1, 2):
            await _copy(kit, sink, chunks[number], lane, number + 1)
        await kit.deliver(sink, kit.transaction(2))
    await kit.expect("copies")


async def _copy(kit: Kit, sink: Any, chunk: RoutedTransaction, lane: str, done: int) -> None:
    lsn = chunk.position.lsn
    kit.marks = {**kit.marks, lane: Watermark(Position(lsn, done), 3)}
    kit.marks.setdefault(SEEN, Watermark())
    await sink.write([chunk])
    await sink.commit(dict(kit.marks))
    kit.committed += chunk.records
    kit.history.append(chunk)


def _chunk(kit: Kit, lsn: int, number: int) -> RoutedTransaction:
    """Two rows of a copy: every row has the copy's position, and is no transaction's last."""
    rows = []
    for place in range(2):
        made = event(lsn, number * 2 + place, "INSERT", {}, last=False)
        tx = {**made.payload["tx"], "xid": 0, "seq": 0}
        data = {"id": row_id(lsn, number * 2 + place), "note": made.payload["msg_id"]}
        payload = {**made.payload, "tx": tx, "snapshot": True, "data": data}
        rows.append(made._replace(position=Position(lsn, 0), payload=payload, stream_seq=0))
    return kit.routed(Transaction(tuple(rows), ends=True))
