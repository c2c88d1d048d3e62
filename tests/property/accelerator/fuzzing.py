"""One round of random messages: through the functions in C and those in Python."""

from __future__ import annotations

import contextlib
import random
import struct

from headrace.accelerator import native
from headrace.bus import frame
from headrace.confirming.relation_shape import RelationShape
from headrace.confirming.transaction_cursor import ProtocolError
from headrace.contract.values import Encoding, ValueOptions
from headrace.errors import DecodeError
from headrace.jetstream.publishing.fast_batch import FastBatch
from headrace.pgoutput.messages import Relation, RelationColumn
from headrace.postgres.facts import TableFacts
from headrace.publisher.assembler import Assembler
from headrace.publisher.published_event import PublishedEvent
from headrace.publisher.table_events import TableEvents
from tests.support.accelerated import without_accelerator

TYPES = (16, 20, 25, 1700, 1184, 3802, 17, 701)


def round_of(chance: random.Random, count: int, messages: list[bytes]) -> None:
    """Both ways give the same events and the same commands, or leave the same message."""
    assert native is not None
    types = [chance.choice(TYPES) for _ in range(count)]
    encoding = chance.choice(list(Encoding))
    lsn = chance.getrandbits(40)
    entries = [(lsn, b"B" + struct.pack(">QqI", lsn + 1000, lsn, 7))]
    for message in messages:
        lsn += chance.randrange(2)
        entries.append((lsn, message))
    whole = frame.header(frame.FrameKind.DATA, 1, 1)
    whole += b"".join(frame.encode_entry(*entry) for entry in entries)
    assert frame.decode_entries(whole) == entries
    cut = whole[: chance.randrange(len(whole))]
    with contextlib.suppress(DecodeError):
        frame.decode_entries(cut)
    in_c = through(encoding, types, entries)
    with without_accelerator():
        in_python = through(encoding, types, entries)
    assert in_c == in_python
    events = [one for one in in_c[1] if isinstance(one, PublishedEvent)]
    end = chance.random() < 0.5
    with_c = batch().commands(events, end=end)
    with without_accelerator():
        assert batch().commands(events, end=end) == with_c


def batch() -> FastBatch:
    made = FastBatch("_INBOX.x", 500, "life")
    made.start(7)
    return made


def through(
    encoding: Encoding, types: list[int], entries: list[tuple[int, bytes]]
) -> tuple[int, list[object], object]:
    """Events of the entries up to the first that can't be read: its place, and the state."""
    made = Assembler("slot", encoding)
    for number in (1, 2):
        columns = tuple(
            RelationColumn(index == 0, f"c{index}", oid, -1) for index, oid in enumerate(types)
        )
        relation = Relation(number, "public", f"t{number}", "f", columns)
        shape = RelationShape.of(relation, TableFacts(), ValueOptions(encoding))
        made.learn(TableEvents.of(shape))
    at = -1
    # A damaged message may be of a relation that was never described.
    with contextlib.suppress(ProtocolError):
        at = made.take(entries, 0)
    return at, list(made.taken()), (made.cursor.position, made._lsn, made._repeats)
