"""Assembles transactions into batches of rows, each with its context. Pure.

Context comes in messages with prefix `_bemi`, inside the transaction. Two rules: a message applies
to the changes that follow it, up to the next one; if all messages of a transaction say the same,
that applies to the whole transaction, including changes before the first message.

Promises: a batch ends at the end of a transaction, except inside one larger than `whole_rows_max`
or `whole_bytes_max`; the batch's `open` contains what must be remembered across such a cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.audit.values import EMPTY, context_json, escaped
from headrace.consumer.event import Event
from headrace.context.current import PREFIX
from headrace.errors import HeadraceError
from headrace.lsn import Position


class MixedDeliveryError(HeadraceError):
    """The stream contains arrays of one table's events: transactions can't be recognized there."""

    remedy = "Run the publisher with --delivery event or transaction."


@dataclass(frozen=True, slots=True)
class Open:
    """The state of a transaction that is written in parts."""

    lsn: int
    context: str | None = None
    first_at: int | None = None
    several: bool = False


@dataclass(frozen=True, slots=True)
class Patch:
    """Rows of a transaction in parts that were written before its only context was known."""

    lsn: int
    before: int
    context: bytes


@dataclass(slots=True)
class Batch:
    """The content of one commit, and the trail's position after it."""

    lines: list[bytes] = field(default_factory=list)
    contexts: list[bytes] = field(default_factory=list)
    months: set[str] = field(default_factory=set)
    patches: list[Patch] = field(default_factory=list)
    position: Position | None = None
    stream_seq: int = 0
    open: Open | None = None
    transactions: int = 0
    committed_at: str = ""
    # Permanent losses: the sequence at which the stream reports each, and the reason.
    gaps: list[tuple[int, str]] = field(default_factory=list)

    def copy_chunks(self, bytes_max: int = 1 << 20) -> Iterator[bytes]:
        """The data for COPY, in pieces: a long context is never repeated in memory for each row."""
        held: list[bytes] = []
        size = 0
        for line, context in zip(self.lines, self.contexts, strict=True):
            held += (line, context, b"\n")
            size += len(line) + len(context) + 1
            if size >= bytes_max:
                yield b"".join(held)
                held = []
                size = 0
        if held:
            yield b"".join(held)


@dataclass(slots=True)
class Stitcher:
    """Takes events in order, returns batches."""

    whole_rows_max: int
    whole_bytes_max: int
    open: Open | None = None
    # The commit LSN of the current transaction, by which the next one is recognized.
    _lsn: int = 0
    # The context in force, as text and as COPY writes it.
    _context: str | None = None
    _encoded: bytes = EMPTY
    # The offset in the transaction of its first context, None before that; whether a different
    # one followed.
    _first_at: int | None = None
    _several: bool = False
    # Rows of the current transaction, not moved into a batch yet.
    _rows: list[bytes] = field(default_factory=list)
    # The context in force for each row, None before the transaction's first.
    _contexts: list[bytes | None] = field(default_factory=list)
    _bytes: int = 0
    # The batch that is being filled: whole transactions, or a part of a large one.
    _whole: Batch = field(default_factory=Batch)
    _whole_bytes: int = 0
    _last: Event | None = None

    def __post_init__(self) -> None:
        if self.open is not None:
            self._lsn = self.open.lsn
            self._first_at = self.open.first_at
            self._several = self.open.several
            self._set(self.open.context)

    @property
    def rows(self) -> int:
        return len(self._rows) + len(self._whole.lines)

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self._bytes + self._whole_bytes

    @property
    def ready(self) -> Batch | None:
        """The batch that `cut` would return now."""
        if self._whole.position is not None:
            return self._whole
        return None

    def add(self, event: Event, line: bytes | None) -> None:
        """The next event; `line` is its row, None if it has none."""
        if event.lane != event.source:
            raise MixedDeliveryError(f"{event.subject} contains arrays of one table's events")
        lsn = event.position.lsn
        # Commit LSNs are unique within a source.
        if lsn != self._lsn:
            self._begin(lsn)
        if event.operation == "MESSAGE" and event.payload.get("prefix") == PREFIX:
            self._hear(event)
        tx = event.payload["tx"]
        self._last = event
        if line is not None:
            self._rows.append(line)
            self._contexts.append(self._encoded if self._first_at is not None else None)
            self._bytes += len(line)
            self._at(str(tx["ts"]))
        if tx["last"]:
            self._end()
            whole = self._whole
            whole.transactions += 1
            whole.position = event.position
            whole.stream_seq = event.stream_seq
        elif len(self._rows) >= self.whole_rows_max or self._bytes >= self.whole_bytes_max:
            # Only whole transactions can be given their only context: a larger one is written in
            # parts, and patched at its end.
            self._part(event)

    def _at(self, committed_at: str) -> None:
        whole = self._whole
        # Consecutive rows mostly share their time.
        if committed_at != whole.committed_at:
            whole.committed_at = committed_at
            whole.months.add(committed_at[:7])

    def gap(self, stream_seq: int, reason: str) -> None:
        """Something is missing before the next event."""
        self._whole.gaps.append((stream_seq, reason))

    def tear(self) -> None:
        """The stream lost what comes next: the open transaction is kept as far as it came."""
        # Its rows are true, though its end is unknown.
        if self._rows and self._last is not None:
            self._part(self._last)

    def give_back(self, batch: Batch) -> None:
        """Return a batch without rows that is not worth its own commit: the next one includes its
        position.
        """
        # Otherwise a later position is there already, and covers this one.
        if self._whole.position is None:
            self._whole.position = batch.position
            self._whole.stream_seq = batch.stream_seq
            self._whole.open = batch.open
        self._whole.transactions += batch.transactions

    def cut(self) -> Batch | None:
        """Everything that may be committed now."""
        if self._whole.position is None:
            return None
        batch = self._whole
        self._whole = Batch()
        self._whole_bytes = 0
        return batch

    def _begin(self, lsn: int) -> None:
        # An open transaction ended with an event that isn't followed any more (a gap): its rows
        # stay as they are.
        if self._rows or self._first_at is not None or self.open is not None:
            self._end()
        self._lsn = lsn

    def _hear(self, event: Event) -> None:
        content = event.payload.get("content")
        if isinstance(content, bytes):
            text = content.decode(errors="backslashreplace")
        else:
            text = str(content)
        if self._first_at is None:
            self._first_at = event.position.seq
        # The same text twice is one context: triggers repeat it.
        elif text != self._context:
            self._several = True
        if text != self._context:
            # Triggers repeat the same context for each row: it is stored once, and its size counts
            # once.
            self._set(text)
            self._bytes += len(self._encoded)

    def _set(self, context: str | None) -> None:
        self._context = context
        if context is None:
            self._encoded = EMPTY
        else:
            self._encoded = escaped(context_json(context))

    def _end(self) -> None:
        """Apply the only context to the rows before the first message, if there was only one."""
        # No context at all, by far the usual case.
        if self._first_at is None and self.open is None:
            self._whole.open = None
            self._move(EMPTY)
            return
        # Several contexts: nobody knows which of them the earlier rows belong to.
        if self._first_at is not None and not self._several:
            only = self._encoded
        else:
            only = EMPTY
        # Its first parts were written before it was known that the transaction has only one
        # context.
        if (
            self.open is not None
            and self._context is not None
            and self._first_at is not None
            and not self._several
        ):
            self._whole.patches.append(
                Patch(self._lsn, self._first_at, context_json(self._context))
            )
        self._move(only)
        self.open = None
        self._whole.open = None
        self._first_at = None
        self._several = False
        self._set(None)

    def _part(self, event: Event) -> None:
        """A transaction too large to hold: its rows so far are written, and its context so far is
        kept.
        """
        self._move(EMPTY)
        self.open = Open(self._lsn, self._context, self._first_at, self._several)
        self._whole.open = self.open
        self._whole.position = event.position
        self._whole.stream_seq = event.stream_seq

    def _move(self, early: bytes) -> None:
        whole = self._whole
        whole.lines += self._rows
        if self._first_at is None:
            whole.contexts += [early] * len(self._rows)
        else:
            whole.contexts += [early if one is None else one for one in self._contexts]
        self._whole_bytes += self._bytes
        self._rows = []
        self._contexts = []
        self._bytes = 0
