"""Places in PostgreSQL's write-ahead log: the LSN, and the position of a change.

A change's *position* is `(commit LSN of its transaction, ordinal within it)`. Positions strictly
increase in stream order; LSNs of single changes do not, and repeat, so nothing may be filtered,
deduplicated or resumed by them. Pure: no I/O.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.errors import DecodeError


class Position(NamedTuple):
    """Where a change stands in its source: compare two with `<`."""

    lsn: int
    seq: int

    def __str__(self) -> str:
        return f"{format_lsn(self.lsn)}+{self.seq}"


ORIGIN = Position(0, 0)


def format_lsn(lsn: int) -> str:
    """PostgreSQL's own form: `0/191BFD0`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """The integer behind PostgreSQL's text form."""
    high, slash, low = text.partition("/")
    try:
        if slash:
            return (int(high, 16) << 32) | int(low, 16)
    except ValueError:
        pass
    raise DecodeError(f"{text!r} is not an LSN such as 0/191BFD0")
