"""Positions in PostgreSQL's write-ahead log: the LSN, and the position of a change.

A change's *position* is `(commit LSN of its transaction, ordinal within it)`. Positions strictly
increase in stream order. LSNs of single changes repeat and do not increase, so they can't be used
to filter, deduplicate or resume. Pure: no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headrace.errors import DecodeError


class Position(NamedTuple):
    """A change's position in its source: compare two with `<`."""

    # The LSN of the transaction's commit.
    lsn: int
    # The change's ordinal in the transaction, from 0 on.
    seq: int

    def __str__(self) -> str:
        return f"{format_lsn(self.lsn)}+{self.seq}"

    @property
    def gap_lsn(self) -> int:
        """The first LSN of a gap behind this change: that of the rest of its transaction, which
        may be missing. A message outside transactions has no rest.
        """
        # Records begin and end at multiples of 8. Only the position of such a message is odd: one
        # byte before its record's end (transaction_cursor).
        return self.lsn + self.lsn % 2


ORIGIN = Position(0, 0)


@dataclass(frozen=True, slots=True)
class Gap:
    """Changes that committed at `after` or later and before `up_to` are lost, as far as there were
    any: neither PostgreSQL's slot nor the store has them.
    """

    # Included: the next commit record may start where the last one of the store ends, and if the
    # store ends in the middle of a transaction, the rest of it is missing.
    after: int
    # Not included: a slot returns every commit from its own LSN on.
    up_to: int
    # Why they are lost, for people.
    reason: str


def format_lsn(lsn: int) -> str:
    """PostgreSQL's own form: `0/191BFD0`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """The integer value of PostgreSQL's text form."""
    high, slash, low = text.partition("/")
    try:
        if slash:
            return (int(high, 16) << 32) | int(low, 16)
    except ValueError:
        pass
    raise DecodeError(f"{text!r} is not an LSN such as 0/191BFD0")
