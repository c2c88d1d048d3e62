"""Whether a mirror, read at one moment, is exactly at an LSN: judged by the mirror's data and the
stream.

The rule: the table has finished its bootstrap; everything applied of its source committed before
the LSN; and no event of the table that the stream contains and the mirror has not applied committed
before the LSN. It holds once the stream is known to contain every such transaction. Trusts no clock
and no answer of the mirror's process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from headrace.consumer.messages import events_of
from headrace.consumer.watermark import Watermarks
from headrace.contract.subjects_and_ids import CDC
from headrace.jetstream.dictionaries import DictionaryReader
from headrace.lsn import ORIGIN
from headrace.mirror.mirror_state import has_passed, lanes_of, seen_by, tables_of
from headrace.mirror.table import Phase, TableState


class MirrorProgress(StrEnum):
    """The progress of a mirror, compared with an LSN."""

    THERE = "there"
    BEHIND = "behind"
    PAST = "past"
    BOOTSTRAPPING = "bootstrapping"


def state_of(marks: Mapping[str, str], token: str) -> TableState | None:
    """A table's state at that moment."""
    return tables_of(marks).get(token)


def awaits(marks: Mapping[str, str]) -> bool:
    """Whether a mirror's readers stay at one moment until a table is copied again."""
    return any(state.awaited for state in tables_of(marks).values())


@dataclass(frozen=True, slots=True)
class Stream:
    """The change stream as a verifier reads it: single messages, by subject."""

    js: JetStreamContext
    name: str
    dictionaries: DictionaryReader


async def place_of(
    stream: Stream, marks: Mapping[str, str], state: TableState, lsn: int
) -> MirrorProgress:
    """Only when the stream is known to have everything that committed before `lsn`."""
    if state.phase is not Phase.FOLLOWING:
        return MirrorProgress.BOOTSTRAPPING
    lanes = lanes_of(marks)
    # In arrays of events each table has a separate position, its lane (docs/adr/0011).
    table_lane = f"{state.source}/{state.schema}.{state.name}"
    applied = [lanes[lane].position for lane in (state.source, table_lane) if lane in lanes]
    # Its rows contain changes from behind the LSN, which nobody can take out again.
    if state.since > lsn or max(applied, default=ORIGIN).lsn >= lsn:
        return MirrorProgress.PAST
    if await _lacks(stream, lanes, state, lsn):
        return MirrorProgress.BEHIND
    return MirrorProgress.THERE


async def _lacks(stream: Stream, lanes: Watermarks, state: TableState, lsn: int) -> bool:
    """Whether the stream has an unapplied event of the table before the LSN."""
    seen = seen_by(lanes)
    while True:
        try:
            message = await stream.js.get_msg(
                stream.name, seen + 1, subject=f"{CDC}.{state.token}.>", next=True
            )
        except NotFoundError:
            # The caller knows that the stream is complete up to the LSN: nothing can still arrive.
            return False
        seen = int(message.seq or 0)
        for event in await events_of(stream.dictionaries, message.data or b"", "", seen):
            # The mirror has applied it, or the table's snapshot contains it.
            if has_passed(lanes, event) or event.position.lsn < state.since:
                continue
            # A table's events are in commit order, so the first one that is not applied decides.
            return event.position.lsn < lsn
