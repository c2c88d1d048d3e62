"""Atomic batches and fast ingest (ADR-50 of NATS) as nats-server 2.15 answers them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.simulation.stream import (
    EXPECTED_SEQ,
    MSG_ID,
    Answer,
    Headers,
    Stream,
    refused,
    wrong_seq,
)

_ID, _NUMBER, _COMMIT = "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"
_INCOMPLETE = refused(400, 10176, "atomic publish batch is incomplete")
_DUPLICATE = refused(400, 10201, "atomic publish batch contains duplicate message id")
_UNKNOWN = refused(400, 10208, "batch publish ID unknown")
_START, _APPEND, _END, _END_BARE = range(4)
# The end of a reply subject of fast ingest, and the number of its words.
FAST = ".$FI"
_WORDS = 7


@dataclass(slots=True)
class Atomic:
    """Messages that wait for their commit."""

    messages: list[tuple[str, Headers, bytes]] = field(default_factory=list)
    complete: bool = True


def take_atomic(
    stream: Stream, subject: str, headers: Headers, payload: bytes, now: float
) -> Answer | None:
    """A message of an atomic batch; only the last one is answered."""
    name, number = headers[_ID], int(headers[_NUMBER])
    batch = stream.batches.setdefault(name, Atomic(complete=number == 1))
    batch.messages.append((subject, headers, payload))
    batch.complete = batch.complete and number == len(batch.messages)
    if _COMMIT not in headers:
        return None
    del stream.batches[name]
    answer = _committed(stream, batch, now)
    if "error" in answer:
        return {**answer, "stream": stream.name, "seq": 0}
    return {"stream": stream.name, **answer, "batch": name, "count": number}


def _committed(stream: Stream, batch: Atomic, now: float) -> Answer:
    if not batch.complete:
        return _INCOMPLETE
    seen: set[str] = set()
    for number, (_, headers, _) in enumerate(batch.messages):
        msg_id = headers.get(MSG_ID, "")
        if msg_id in seen or stream.duplicate(headers, now):
            stream.claimed_seq = stream.last_seq + number
            return _DUPLICATE
        seen |= {msg_id} - {""}
        first = headers.get(EXPECTED_SEQ)
        stream.claimed_seq = 0
        if number == 0 and first is not None and int(first) != stream.last_seq:
            return wrong_seq(stream.last_seq)
    for subject, headers, payload in batch.messages:
        stream.store(subject, headers, payload, now)
    return {"seq": stream.last_seq}


@dataclass(slots=True)
class Fast:
    """A batch of fast ingest: how many messages were accepted, and which one was stored last."""

    taken: int = 0
    seq: int = 0


def take_fast(
    stream: Stream, subject: str, reply: str, headers: Headers, payload: bytes, now: float
) -> Iterator[Answer]:
    """A message of fast ingest; the answers to it."""
    _, name, flow, _, number_word, operation_word, _ = reply.rsplit(".", _WORDS - 1)
    number, operation = int(number_word), int(operation_word)
    batch = stream.batches.get(name)
    if batch is None:
        if number != 1:
            yield {**_UNKNOWN, "stream": stream.name, "seq": 0}
            return
        batch = stream.batches[name] = Fast()
        if operation == _START:
            yield {"type": "ack", "seq": 0, "msgs": int(flow)}
    if number != batch.taken + 1:
        yield {"type": "gap", "last_seq": batch.taken + 1, "seq": number}
        yield _ended(stream, name, batch)
        return
    if operation == _END_BARE:
        yield _ended(stream, name, batch)
        return
    seq = stream.duplicate(headers, now)
    if seq and number == 1 and operation == _END:
        del stream.batches[name]
        alone = {"stream": stream.name, "seq": seq, "duplicate": True}
        yield {**alone, "batch": name, "count": 1}
        return
    if problem := _refused(stream, batch, subject, headers, payload, now):
        if number == 1:
            del stream.batches[name]
            yield {**problem, "stream": stream.name, "seq": 0}
            return
        yield {"type": "err", "seq": number, **problem}
        yield _ended(stream, name, batch)
        return
    batch.taken = number
    # Behind a message that is skipped an acknowledgement is due at the end too.
    if number % int(flow) == 0 and (seq or operation != _END):
        yield {"type": "ack", "seq": number, "msgs": int(flow)}
    if operation == _END:
        yield _ended(stream, name, batch)


def _refused(
    stream: Stream, batch: Fast, subject: str, headers: Headers, payload: bytes, now: float
) -> Answer | None:
    """Store it, or skip it as a duplicate, no matter what it expects; else why not."""
    if stream.duplicate(headers, now):
        return None
    if problem := stream.wrong_place(subject, headers, stream.claimed_seq):
        return problem
    batch.seq = stream.store(subject, headers, payload, now)
    return None


def _ended(stream: Stream, name: str, batch: Fast) -> Answer:
    del stream.batches[name]
    return {"stream": stream.name, "seq": batch.seq, "batch": name, "count": batch.taken}
