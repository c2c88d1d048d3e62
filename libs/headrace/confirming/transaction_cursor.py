"""The transaction and the position of the change at hand. Pure; one instance per epoch.

Promises what every store's exactly-once rests on: the same WAL gives each change the same position
on every replay, and positions strictly increase. Every change takes a position, whether it is
delivered or not.
"""

from __future__ import annotations

from headrace.errors import HeadraceError
from headrace.lsn import ORIGIN, Position
from headrace.pgoutput.messages import Begin, LogicalMessage


class ProtocolError(HeadraceError):
    """PostgreSQL's messages came in an order that its protocol excludes."""


class TransactionCursor:
    """Goes from change to change. A store's fast path may increment `ordinal` itself."""

    __slots__ = ("ordinal", "transaction")

    def __init__(self) -> None:
        self.transaction: Begin | None = None
        # The next change's place in its transaction.
        self.ordinal = 0

    @property
    def xid(self) -> int:
        return self.current.xid

    @property
    def position(self) -> Position:
        """The next change's; `ORIGIN` between transactions."""
        begin = self.transaction
        if begin is None:
            return ORIGIN
        return Position(begin.final_lsn, self.ordinal)

    def begin(self, begin: Begin) -> None:
        if self.transaction is not None:
            raise ProtocolError("a transaction began inside another")
        self.transaction = begin
        self.ordinal = 0

    def commit(self) -> None:
        if self.transaction is None:
            raise ProtocolError("a transaction ended that never began")
        self.transaction = None

    def advance(self) -> Position:
        """The position that the change at hand takes."""
        position = Position(self.current.final_lsn, self.ordinal)
        # Counted even if nothing is delivered: a replay with other settings gives the same numbers.
        self.ordinal += 1
        return position

    def emitted(self, message: LogicalMessage) -> Position:
        """The position of a message of `pg_logical_emit_message`: among the changes of its
        transaction, or, where it is a separate transaction, its LSN.
        """
        if message.transactional:
            return self.advance()
        if self.transaction is not None:
            raise ProtocolError("a non-transactional message inside a transaction")
        return _alone_at(message.lsn)

    def unread(self, lsn: int) -> Position:
        """The position of a change that can't be read, whose record ends at `lsn`."""
        if self.transaction is None:
            return _alone_at(lsn)
        return self.position

    def pass_over(self) -> None:
        """The change at hand takes its position, and is not delivered."""
        if self.transaction is not None:
            self.ordinal += 1

    @property
    def current(self) -> Begin:
        """The transaction of the change at hand."""
        if self.transaction is None:
            raise ProtocolError("a change or a relation came outside a transaction")
        return self.transaction


def _alone_at(lsn: int) -> Position:
    # An LSN is where a record ends, which is where a commit's record may begin: without the step
    # back, two changes would have one position.
    return Position(lsn - 1, 0)
