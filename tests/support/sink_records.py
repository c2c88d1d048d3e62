"""Routed transactions, as a session hands them to a sink, without a line that makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.consumer import Event, Transaction, Watermark
from headrace.lsn import ORIGIN, Position
from headrace.sinks.port import SEEN
from headrace.sinks.routing import RoutedTransaction, Router

SOURCE = "headrace"
Change = tuple[str, Mapping[str, Any]]


def event(
    lsn: int, seq: int, operation: str, data: Mapping[str, Any], *, last: bool, **more: Any
) -> Event:
    """One event of the table `public.users`, whose key is `id`."""
    payload: dict[str, Any] = {
        "subject": f"cdc.users.{operation.lower()}",
        "table": "users",
        "operation": operation,
        "msg_id": f"{lsn:x}-{seq}",
        "relation_id": 1,
        "data": dict(data),
        "schema": "public",
        "source": SOURCE,
        "key": ["id"],
        "lsn": lsn,
        "tx": {"xid": lsn, "lsn": lsn, "ts": None, "seq": seq, "last": last},
        **more,
    }
    position = Position(lsn, seq)
    return Event(
        SOURCE,
        payload["schema"],
        payload["table"],
        operation,
        position,
        payload,
        payload["subject"],
        lsn + seq,
        SOURCE,
        closes=True,
    )


def of_events(*found: Event, router: Router | None = None) -> RoutedTransaction:
    """The transaction of these events."""
    routed = (router or Router()).route(Transaction(found, ends=True))
    assert routed is not None
    return routed


def transaction(lsn: int, *changes: Change, router: Router | None = None) -> RoutedTransaction:
    """A transaction of these changes: operations and rows."""
    last = len(changes) - 1
    found = [
        event(lsn, seq, operation, data, last=seq == last)
        for seq, (operation, data) in enumerate(changes)
    ]
    return of_events(*found, router=router)


def inserts(lsn: int, *ids: int, router: Router | None = None, **more: Any) -> RoutedTransaction:
    """A transaction that inserts rows with these keys."""
    return transaction(lsn, *(("INSERT", {"id": one, **more}) for one in ids), router=router)


def marks(*transactions: RoutedTransaction) -> dict[str, Watermark]:
    """The marks after these transactions."""
    last = transactions[-1]
    return {
        last.source: Watermark(last.position, last.stream_seq),
        SEEN: Watermark(ORIGIN, last.stream_seq),
    }
