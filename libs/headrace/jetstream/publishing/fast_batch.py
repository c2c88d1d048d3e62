"""A batch of fast ingest: its state, and the bytes that open, continue and end it. No I/O.

Three rules ensure that a batch is stored without a hole or a duplicate, and that it is fenced
(docs/adr/0010):

- every message names the stream's last sequence that must precede it, the first one's read from
  the server. A batch is not enough: the server checks for a duplicate before it checks the
  expected sequence, so a first message that it has seen would open a batch unfenced, and a failed
  write does not end a batch;
- a batch starts only after the final answer to the one before, so that its expected sequence is
  known and not guessed;
- a batch's id is never reused.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.accelerator import native
from headrace.jetstream.publishing import wire
from headrace.jetstream.publishing.message import NO_HEADERS, Message

# The reply subject says what a message is to its batch (ADR-50 of NATS):
# {inbox}.{batch}.{flow}.fail.{number}.{operation}.$FI. The operations: open a batch, add to it, end
# it with this message, or end it without storing the message.
_START = 0
_APPEND = 1
_END = 2
_END_BARE = 3


@dataclass(slots=True)
class FastBatch:
    """A pipe's current batch, or its last one."""

    # One subscription for the answers to all batches, which contain the batch's id.
    inbox: str
    # The server acknowledges every so many messages.
    flow: int
    # Part of each batch's id, so that no id is ever used again, not even by a restarted publisher.
    _life: str = field(default_factory=lambda: secrets.token_hex(8))
    _started: int = 0
    id: str = ""
    # A batch that is ended without a message needs a subject of the stream; the last one will do.
    _subject: str = ""
    # A batch is open; its end was requested, and no message may be added to it.
    open: bool = False
    ending: bool = False
    # The first message is stored behind `base`; `number` messages are sent, `kept` are stored.
    base: int = 0
    number: int = 0
    kept: int = 0
    # Refused for its position, and whether the server has said what it stored of the batch.
    broken: bool = False
    over: bool = False
    # Messages that the server accepted, including those that it skipped as duplicates; whether some
    # of them don't show up in the stream.
    taken: int = 0
    unproved: bool = False
    # The next message is sent as an ordinary one, in no batch. After an atomic batch that was
    # refused for a duplicate, nats-server 2.15 compares the sequences that fast ingest names with
    # one beyond the stream's end, until the stream gets there.
    alone: bool = False

    def start(self, base: int) -> None:
        """Open the next batch, whose first message is stored behind this sequence.

        The sequence comes from a read of the stream's end, or from the final answer to the batch
        before, never from a guess.
        """
        self.open = True
        self.number = 0
        self.kept = 0
        self.base = base
        self.taken = 0
        self.unproved = False
        self._started += 1
        self.id = f"{self._life}-{self._started}"

    def next_of(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Those of these messages that are sent together now."""
        if self.alone:
            return messages[:1]
        return messages[:]

    def stored(self, seq: int, taken: int, *, is_duplicate: bool) -> int:
        """How many messages are stored, by the final answer: its sequence, and its count.

        The count includes what was skipped as a duplicate. The sequence is that of the last stored
        message; behind `base` it counts this batch's messages only, because each is stored right
        after the one before, or not at all.
        """
        if is_duplicate:
            return 0
        return max(0, min(taken, seq - self.base))

    def commands(
        self,
        messages: Sequence[Message],
        id_header: Callable[[Message], str] | None = None,
        *,
        end: bool,
        header: str = wire.MSG_ID,
    ) -> bytes:
        """The commands for these messages, which count as sent; with `end`, they end the batch. An
        ordinary message always does: its answer has the form of a final one.

        `header` takes the messages' ids, or `id_header` says which one takes a message's.
        """
        prefix = f"{self.inbox}.{self.id}.{self.flow}.fail"
        suffix = "$FI"
        if self.alone:
            suffix = "alone"
            end = True
            self.alone = False
        number = self.number
        if messages:
            place = BatchPlace(prefix, suffix, number, self.base, end=end)
            written = None
            if id_header is None:
                written = in_c(messages, place, header)
            if written is None:
                written = in_python(messages, place, id_header or (lambda _: header))
            self._subject = messages[-1].subject
        else:
            # Nothing is left to send, but the batch must end: this stores nothing.
            written = wire.bare(self._subject, f"{prefix}.{number + 1}.{_END_BARE}.$FI")
        self.number = number + len(messages)
        self.ending = end
        return written


class BatchPlace(NamedTuple):
    """The place of messages in their batch: behind `number` others, which are behind `base`."""

    prefix: str
    suffix: str
    number: int
    base: int
    # Whether the last of them ends the batch.
    end: bool


def in_python(
    messages: Sequence[Message], place: BatchPlace, header: Callable[[Message], str]
) -> bytes:
    """The commands that publish messages at a place, each with its id in this header."""
    prefix, suffix, number, base, end = place
    commands = []
    last = len(messages) - 1
    for index, message in enumerate(messages):
        if end and index == last:
            operation = _END
        elif number:
            operation = _APPEND
        else:
            operation = _START
        reply = f"{prefix}.{number + 1}.{operation}.{suffix}"
        # Each message names the sequence right before its own: it is stored exactly there, or
        # refused.
        commands.append(wire.command(message, reply, base + number, header(message)))
        number += 1
    return b"".join(commands)


def in_c(messages: Sequence[Message], place: BatchPlace, header: str) -> bytes | None:
    """`in_python` with one header for all; None without the accelerator, or if a message has
    headers.
    """
    if native is None:
        return None
    prefix, suffix, number, base, end = place
    operations = (_START, _APPEND, _END if end else None)
    written: bytes | None = native.commands(
        messages, prefix, suffix, number, base, header, NO_HEADERS, *operations
    )
    return written
