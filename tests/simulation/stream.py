"""A stream of JetStream as nats-server keeps it: what it takes, refuses, and has.

Only what Headrace rests on. That it answers as the real server does is tested: `test_fidelity.py`
gives the same requests to both. Pure; times are given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MSG_ID = "Nats-Msg-Id"
EXPECTED_SEQ = "Nats-Expected-Last-Sequence"
_EXPECTED_SUBJECT_SEQ = "Nats-Expected-Last-Subject-Sequence"
_EXPECTED_ID = "Nats-Expected-Last-Msg-Id"

Answer = dict[str, Any]
Headers = Mapping[str, str]


@dataclass(slots=True)
class Stored:
    """A message that the stream has."""

    seq: int
    subject: str
    headers: Headers
    payload: bytes
    time: float


def refused(code: int, err_code: int, description: str) -> Answer:
    return {"error": {"code": code, "err_code": err_code, "description": description}}


def wrong_seq(last: int) -> Answer:
    return refused(400, 10071, f"wrong last sequence: {last}")


@dataclass(slots=True)
class Stream:
    name: str
    subjects: tuple[str, ...]
    window_s: float
    created: str
    per_subject: int = -1
    batched: bool = False
    atomic: bool = False
    messages: dict[int, Stored] = field(default_factory=dict)
    # Messages that newer ones of the same subject replaced: an older store still has them.
    replaced: dict[int, Stored] = field(default_factory=dict)
    first_seq: int = 1
    last_seq: int = 0
    # When each id was stored, and where, for as long as the duplicate window.
    ids: dict[str, tuple[float, int]] = field(default_factory=dict)
    last_id: str = ""
    by_subject: dict[str, int] = field(default_factory=dict)
    consumers: dict[str, Any] = field(default_factory=dict)
    # Batches that were started and not ended, atomic and fast ones, by id.
    batches: dict[str, Any] = field(default_factory=dict)
    # Where nats-server 2.15 believes that the stream ends, only for fast ingest: an atomic batch
    # that was refused for a duplicate leaves it too high, until the next atomic batch.
    claimed_seq: int = 0
    # In nanoseconds, as configured; nothing is removed by it here.
    max_age: int = 0

    def take(self, subject: str, headers: Headers, payload: bytes, now: float) -> Answer:
        """Store a message, or say why not; the answer to its publisher."""
        problem = self.wrong_place(subject, headers)
        if problem is not None:
            return {**problem, "stream": self.name, "seq": 0}
        if duplicate := self.duplicate(headers, now):
            return {"stream": self.name, "seq": duplicate, "duplicate": True}
        before = headers.get(_EXPECTED_ID, "")
        if before and before != self.last_id:
            wrong = refused(400, 10070, f"wrong last msg ID: {self.last_id}")
            return {**wrong, "stream": self.name, "seq": 0}
        return {"stream": self.name, "seq": self.store(subject, headers, payload, now)}

    def duplicate(self, headers: Headers, now: float) -> int:
        """The sequence of the message with this id, if the duplicate window knows it; else 0."""
        msg_id = headers.get(MSG_ID, "")
        if not msg_id or msg_id not in self.ids:
            return 0
        stored_at, seq = self.ids[msg_id]
        if now - stored_at >= self.window_s:
            del self.ids[msg_id]
            return 0
        return seq

    def wrong_place(self, subject: str, headers: Headers, claimed_seq: int = 0) -> Answer | None:
        """The refusal of a message that expects other sequences."""
        last_seq = max(self.last_seq, claimed_seq)
        if (seq := headers.get(_EXPECTED_SUBJECT_SEQ)) is not None:
            last = self.by_subject.get(subject, 0)
            if int(seq) != last:
                return wrong_seq(last)
        if (seq := headers.get(EXPECTED_SEQ)) is not None and int(seq) != last_seq:
            return wrong_seq(last_seq)
        return None

    def store(self, subject: str, headers: Headers, payload: bytes, now: float) -> int:
        self.last_seq += 1
        self.messages[self.last_seq] = Stored(self.last_seq, subject, headers, payload, now)
        self.last_id = headers.get(MSG_ID, "")
        if self.last_id:
            self.ids[self.last_id] = (now, self.last_seq)
        before = self.by_subject.get(subject, 0)
        self.by_subject[subject] = self.last_seq
        if self.per_subject == 1 and before:
            self.replaced[before] = self.messages[before]
            self.delete(before)
        return self.last_seq

    def delete(self, seq: int) -> bool:
        """Remove a message; its number stays in use. Returns whether it existed."""
        gone = self.messages.pop(seq, None)
        if gone is None:
            return False
        if self.by_subject[gone.subject] == seq:
            rest = [one.seq for one in self.messages.values() if one.subject == gone.subject]
            self.by_subject[gone.subject] = max(rest, default=0)
        while self.first_seq <= self.last_seq and self.first_seq not in self.messages:
            self.first_seq += 1
        return True

    def lose_tail(self, last_seq: int, now: float) -> None:
        """Come back with an older store: what was behind `last_seq` never was."""
        there = {**self.replaced, **self.messages}
        kept = [there[seq] for seq in sorted(there) if seq <= last_seq]
        self.by_subject = {one.subject: one.seq for one in kept}
        if self.per_subject == 1:
            kept = [one for one in kept if self.by_subject[one.subject] == one.seq]
        self.messages = {one.seq: one for one in kept}
        self.last_seq = last_seq
        self.first_seq = min(self.messages, default=last_seq + 1)
        self.restart(now)

    def restart(self, now: float) -> None:
        """Read the store, as a server does when it starts."""
        self.ids = {}
        self.last_id = ""
        self.consumers.clear()
        self.batches.clear()
        for one in self.messages.values():
            if now - one.time < self.window_s:
                msg_id = one.headers.get(MSG_ID, "")
                self.last_id = msg_id if one.seq == self.last_seq else ""
                if msg_id:
                    self.ids[msg_id] = (one.time, one.seq)

    def matching(self, pattern: str) -> Iterator[Stored]:
        """The last message of each subject of a pattern that ends in `>`."""
        prefix = pattern.removesuffix(">")
        for subject, seq in list(self.by_subject.items()):
            if subject.startswith(prefix) and seq in self.messages:
                yield self.messages[seq]

    def info(self) -> Answer:
        return {
            "type": "io.nats.jetstream.api.v1.stream_info_response",
            "created": self.created,
            "config": {
                "name": self.name,
                "subjects": list(self.subjects),
                "retention": "limits",
                "max_msgs_per_subject": self.per_subject,
                "max_age": self.max_age,
                "duplicate_window": int(self.window_s * 1e9),
                "allow_direct": True,
                "allow_atomic": self.atomic,
                "allow_batched": self.batched,
                "num_replicas": 1,
                "storage": "file",
            },
            "state": {
                "messages": len(self.messages),
                "bytes": 0,
                # Of a stream that never had a message.
                "first_seq": self.first_seq if self.last_seq else 0,
                "last_seq": self.last_seq,
                "consumer_count": len(self.consumers),
            },
        }
