"""The transactions that the kit delivers. They follow from their numbers, so that two processes
deliver the same ones.

They have the wire contract's form, and go through the frame's own router.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.consumer import Event, Position, Transaction
from headrace.sinks.routing import RoutedTransaction, Router

SOURCE = "conformance"
DESTINATION = "public.conformance"
# A commit LSN that needs more than 53 bits, as a large log has.
FIRST_LSN = (1 << 54) + 1
# Between two commits.
STEP = 1 << 8
# In every ID of the kit: a target may contain other records.
MARK = "-conformance-"

Change = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Maker:
    """Routes events to one destination."""

    destination: str = DESTINATION

    def routed(self, transaction: Transaction) -> RoutedTransaction:
        """The transaction as a session hands it to a sink."""
        router = Router(destination=lambda _: self.destination)
        found = router.route(transaction)
        assert found is not None, "the kit's transactions have records"
        return found


def of_number(number: int) -> Transaction:
    """The transaction with this number: one to three inserts."""
    return inserts(FIRST_LSN + number * STEP, number % 3 + 1)


def inserts(lsn: int, size: int) -> Transaction:
    """A transaction of rows that no other one has."""
    return changes(lsn, [("INSERT", {"id": row_id(lsn, seq)}) for seq in range(size)])


def row_id(lsn: int, seq: int) -> int:
    """The key of a transaction's row."""
    return lsn * 10 + seq


def changes(lsn: int, found: Sequence[Change], **more: Any) -> Transaction:
    """A transaction of these operations and rows; `more` is in every event."""
    last = len(found) - 1
    events = [
        event(lsn, seq, operation, row, last=seq == last, **more)
        for seq, (operation, row) in enumerate(found)
    ]
    return Transaction(tuple(events), ends=True)


def event(
    lsn: int, seq: int, operation: str, row: Mapping[str, Any], *, last: bool, **more: Any
) -> Event:
    """One event; its row has the ID in `note`, so that a table shows which records it has."""
    kind = operation.lower()
    event_id = f"{lsn:x}{MARK}{kind}-{seq}"
    tx = {"xid": lsn & 0xFFFF, "lsn": lsn, "ts": None, "seq": seq, "last": last}
    payload: dict[str, Any] = {
        "subject": f"cdc.conformance.{kind}",
        "table": "conformance",
        "schema": "public",
        "operation": operation,
        "msg_id": event_id,
        "source": SOURCE,
        "key": ["id"],
        "data": {"note": event_id, **row},
        "lsn": lsn,
        "tx": tx,
        **more,
    }
    return Event(
        SOURCE,
        "public",
        "conformance",
        operation,
        Position(payload["tx"]["lsn"], payload["tx"]["seq"]),
        payload,
        str(payload["subject"]),
        stream_seq(lsn, seq),
        SOURCE,
        closes=True,
    )


def stream_seq(lsn: int, seq: int) -> int:
    """The message of a row's event."""
    return (lsn - FIRST_LSN) * 8 // STEP + seq + 1
