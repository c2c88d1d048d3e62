"""The rows of cursors WITH HOLD, which outlive their transaction: kept in memory as messages.

They are read when the cursor is declared, so no later statement needs the cut, or either engine.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Final

from headrace.sql import wire
from headrace.sql_server.lake_reader import LakeReader
from headrace.sql_server.plans import OpenRows, Portal
from headrace.sql_server.problems import NOT_SUPPORTED, refused

# In the front's memory, where PostgreSQL would use a file.
HELD_BYTES_MAX: Final = 256 << 20
"""Of all cursors of a session together."""

_SEND_BYTES: Final = 64 * 1024
_LENGTH_AT: Final = 1


class HeldRows:
    """Rows in one form, of which each is read once."""

    def __init__(self, forms: tuple[int, ...]) -> None:
        self._forms = forms
        self._messages: deque[bytes] = deque()
        self.size = 0

    def add(self, data: bytes) -> None:
        """Keep DataRow messages."""
        for message in _split(data):
            self._messages.append(message)
            self.size += sys.getsizeof(message)

    async def parts(self, forms: Sequence[int], rows_max: int) -> AsyncIterator[tuple[int, bytes]]:
        """The next messages, so many at most (0: all), and how many they are."""
        # Only messages were kept, and a text can't be made binary without its value.
        if tuple(forms) != self._forms:
            raise refused(NOT_SUPPORTED, "a cursor that is read in two forms is not supported")
        left = rows_max or len(self._messages)
        while left > 0 and self._messages:
            # Taken before they are sent: a fetch that breaks off must not give rows twice.
            part = self._taken(left)
            left -= len(part)
            yield len(part), b"".join(part)

    def _taken(self, count: int) -> list[bytes]:
        """Messages that are sent together, so many at most."""
        part: list[bytes] = []
        size = 0
        while self._messages and len(part) < count and size <= _SEND_BYTES:
            message = self._messages.popleft()
            part.append(message)
            size += len(message)
            self.size -= sys.getsizeof(message)
        return part


def _split(data: bytes) -> Iterator[bytes]:
    """The messages of several."""
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at + _LENGTH_AT : at + wire.HEADER_BYTES])
        end = at + _LENGTH_AT + length
        yield data[at:end]
        at = end


async def hold(
    reader: LakeReader, rows: OpenRows, forms: tuple[int, ...], others: Iterable[Portal]
) -> OpenRows:
    """Read all rows, and keep them; within a statement of the reader."""
    held = HeldRows(forms)
    left = HELD_BYTES_MAX - sum(_size(portal) for portal in others)
    async for _, data in reader.batches(rows, forms, 0):
        held.add(data)
        if held.size > left:
            raise refused(
                # PostgreSQL's code for memory that is used up.
                "53200",
                f"the cursors WITH HOLD of a session may have {HELD_BYTES_MAX >> 20} MiB of rows",
                hint="Close others, select fewer rows, or read the cursor within a transaction.",
            )
    return OpenRows(rows.query, rows.types, rows.values, exact=held)


def _size(portal: Portal) -> int:
    rows = portal.rows
    if rows is None or not isinstance(rows.exact, HeldRows):
        return 0
    return rows.exact.size
