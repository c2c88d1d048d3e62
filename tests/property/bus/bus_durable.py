"""The durable part of the simulated world: PostgreSQL's log and slot, and JetStream with the rules
on which the chain depends.
"""

from __future__ import annotations

import random
import struct
from collections import deque
from dataclasses import dataclass, field

MESSAGE = struct.Struct(">cII")
ChangeId = tuple[int, int]
ORIGIN: ChangeId = (-1, 0)


class BrokenPromiseError(AssertionError):
    """An invariant does not hold."""


@dataclass(slots=True)
class Transaction:
    commit: int
    end: int
    sizes: list[int]


@dataclass(slots=True)
class Postgres:
    """The committed transactions, and the slot."""

    transactions: list[Transaction] = field(default_factory=list)
    end: int = 100
    confirmed: int = 100

    def commit(self, chance: random.Random) -> None:
        # The next commit record may begin right where this one ends.
        at = self.end + chance.choice((0, 0, 8, 40))
        sizes = [
            chance.choice((0, 0, 0, 10, 250)) for _ in range(chance.choice((0, 1, 1, 2, 3, 9)))
        ]
        self.transactions.append(Transaction(at, at + 8, sizes))
        self.end = at + 8

    def stream(self, start: int, chance: random.Random) -> deque[tuple[int, bytes]]:
        """A walsender's messages from here: whole transactions whose commit is not before `start`;
        keepalives.
        """
        sent: deque[tuple[int, bytes]] = deque()
        for number, one in enumerate(self.transactions):
            if one.commit < start:
                continue
            sent.append((one.commit, MESSAGE.pack(b"B", number, 0)))
            if chance.random() < 0.1:
                sent.append((one.commit, b""))
            for seq, size in enumerate(one.sizes):
                sent.append((one.commit - 4, MESSAGE.pack(b"c", number, seq) + b"." * size))
            sent.append((one.commit, MESSAGE.pack(b"C", number, 0)))
            if chance.random() < 0.2:
                sent.append((one.end, b""))
        sent.append((self.end, b""))
        return sent

    def changes(self, before: int | None = None) -> list[ChangeId]:
        return [
            (number, seq)
            for number, one in enumerate(self.transactions)
            if before is None or one.commit < before
            for seq in range(len(one.sizes))
        ]


@dataclass(slots=True)
class Sent:
    """A message on its way to JetStream; exactly one expectation is set."""

    change: ChangeId
    after_change: ChangeId | None
    after_seq: int | None
    answers: deque[tuple[int, bool]]
    index: int


@dataclass(slots=True)
class JetStream:
    """A stream shared with another source, whose messages are None; and the bucket with the
    publisher's progress.
    """

    stored: list[ChangeId | None] = field(default_factory=list)
    progress: ChangeId = ORIGIN
    progress_seq: int = 0

    def take(self, message: Sent) -> None:
        last = self.stored[-1] if self.stored else None
        if message.after_seq is not None:
            fits = message.after_seq == len(self.stored)
        else:
            fits = last is not None and last == message.after_change
        if fits:
            self.stored.append(message.change)
        message.answers.append((message.index, fits))

    def place(self) -> ChangeId:
        """The last of our changes that exists, as `find_resume_point` finds it."""
        own = (change for change in reversed(self.stored) if change is not None)
        return next(own, ORIGIN)

    def lose_tail(self, chance: random.Random) -> None:
        """A crash of the machine: what was not synced is gone; what was written down as progress
        was.
        """
        del self.stored[chance.randint(self.progress_seq, len(self.stored)) :]
