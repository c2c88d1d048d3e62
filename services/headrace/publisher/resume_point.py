"""The publisher's resume point: found after any restart from what is durable in NATS.

The state bucket contains (position, stream sequence) of the last message known to be stored; the
messages after that sequence complete it. This works when the stream is shared with another source,
when its messages have expired, when its tail was lost (an acknowledgement is not an fsync), and
detects that the source itself is not the one that the progress belongs to (docs/adr/0005).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from headrace import log as logs
from headrace.bus.frame import Opening
from headrace.confirming import source_identity
from headrace.confirming.source_identity import SourceIdentity
from headrace.contract import events
from headrace.contract.dictionaries import ZSTD_MAGIC, UnknownDictionaryError
from headrace.contract.subjects_and_ids import MESSAGES, table_token
from headrace.errors import DecodeError, HeadraceError
from headrace.jetstream.publishing.stream_tail import Reader, StreamTail, Suspect, Tail, TailMark
from headrace.jetstream.state import Cell
from headrace.lsn import ORIGIN, Gap, Position, format_lsn

log = logs.logger("publisher")

FORMAT = 1
# At an entry per second, as far back as `HEADRACE_DURABILITY=sync` delays confirmations.
COMPLETE_MAX = 128


class SourceDivergedError(HeadraceError):
    """The source is not the one whose changes are in the stream."""

    remedy = (
        "Its LSNs have another meaning than those in the stream, so nothing can be skipped or "
        "resumed by them. Use a new slot name (a new source) and bootstrap consumers again, or "
        "run `headrace teardown` first."
    )


@dataclass(frozen=True, slots=True)
class Progress:
    """The durable state when it was written."""

    position: Position = ORIGIN
    stream_seq: int = 0
    msg_id: str = ""
    stream_created: str = ""
    confirmed_lsn: int = 0
    system_id: str = ""
    timeline: int = 0
    # Positions with an LSN each, oldest first: a stream that reaches the position contains every
    # transaction that committed before the LSN. A stream that lost its tail lost none of those.
    complete: tuple[tuple[Position, int], ...] = ()
    # The event of the last gap, and the position that it is behind: as long as no later position is
    # stored, only the event itself proves that the stream reports the gap.
    gap_id: str = ""
    gap_position: Position = ORIGIN
    # The stream lacked messages not long ago, whose ids the server may still know.
    ids_in_doubt: bool = False

    def reported(self, up_to: int, gap_id: str) -> Progress:
        """The progress once the stream contains the event of a gap up to this LSN."""
        return replace(
            self, confirmed_lsn=up_to, complete=(), gap_id=gap_id, gap_position=self.position
        )

    def stored(
        self, position: Position, lsn: int, *, past_lanes: bool
    ) -> tuple[tuple[Position, int], ...]:
        """`complete`, once all transactions before `lsn` are stored; with `past_lanes`, they are
        stored by `position`.
        """
        if not past_lanes:
            # The stream may reach this position and lack what was stored behind it.
            return self.complete
        if position > self.position:
            return (*self.complete, (position, lsn))[-COMPLETE_MAX:]
        if self.complete and self.complete[-1][0] == position:
            return (*self.complete[:-1], (position, max(lsn, self.complete[-1][1])))
        # The event of a gap is behind this position: only a later position proves that the stream
        # still contains it.
        return self.complete

    def joined(self, opening: Opening) -> Progress:
        """The progress in an epoch that begins, after its gap (if any) was reported."""
        new = self.position == ORIGIN and not self.confirmed_lsn
        return replace(
            self,
            system_id=opening.system_id,
            timeline=opening.timeline,
            # From here on a slot that is further on has moved.
            confirmed_lsn=self.confirmed_lsn or opening.confirmed_lsn,
            # A source begins at its slot: there is nothing to deliver from before.
            complete=((ORIGIN, opening.confirmed_lsn),) if new else self.complete,
        )

    def encode(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            **asdict(self),
            "position": list(self.position),
            "complete": [[*position, lsn] for position, lsn in self.complete],
            "gap_position": list(self.gap_position),
        }

    @classmethod
    def decode(cls, value: Mapping[str, Any] | None) -> Progress:
        if value is None:
            return cls()
        if value.get("format") != FORMAT:
            raise DecodeError(
                f"progress of format {value.get('format')}, this version reads {FORMAT}"
            )
        # Progress that an earlier version wrote doesn't have all fields.
        fields = {name: value[name] for name in cls.__slots__ if name in value}
        for name in ("position", "gap_position"):
            fields[name] = Position(*value.get(name, ORIGIN))
        complete = tuple((Position(*at), lsn) for *at, lsn in value.get("complete", ()))
        return cls(**{**fields, "complete": complete})


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where to continue: everything at or before `position` is in the stream, and so are
    `ids_after`.
    """

    progress: Progress
    ids_after: frozenset[str]
    # The stream's end as it was read: the chain starts after it.
    tail: Tail
    # The LSN that was confirmed in a life of the stream that is partly gone; 0 if nothing is.
    lost_up_to: int = 0
    # How far single tables go beyond the position, if a crash interrupted their batches.
    lanes: Mapping[str, Position] = field(default_factory=dict)

    @property
    def position(self) -> Position:
        return self.progress.position

    def contains(self, lsn: int) -> bool:
        """Whether every transaction that committed before `lsn` is known to be in the stream."""
        return any(
            position <= self.position and lsn <= before
            for position, before in self.progress.complete
        )


def reader_of(source: str) -> Reader:
    """Recognises a source's own messages."""

    def read(data: bytes, headers: dict[str, str]) -> TailMark | None:
        msg_id = headers.get("Nats-Msg-Id") or headers.get(events.ID_HEADER, "")
        try:
            if events.POSITION_HEADER in headers:
                owner, place = events.parse_position_header(headers[events.POSITION_HEADER])
                if owner == source:
                    return TailMark(msg_id, place, _lane(data))
                return None
            payload = events.decode(data)
            if payload.get("source") != source:
                return None
            position = None
            if events.advances(payload):
                position = events.position_of(payload)
        except UnknownDictionaryError:
            # It may be ours: its claim about our position must not be skipped.
            raise
        except (DecodeError, AttributeError, IndexError, KeyError, TypeError):
            return None
        return TailMark(msg_id, position)

    return read


def suspect_of(source: str) -> Suspect:
    """Recognizes messages that can't be a source's own: its name is in each of its messages, unless
    they are compressed.
    """
    name = source.encode()

    def suspect(header: bytes, data: bytes) -> bool:
        return name in data or name in header or data[:4] == ZSTD_MAGIC

    return suspect


def _lane(data: bytes) -> tuple[str, Position] | None:
    """The table of a batch (or of a single event among batches), and its last position."""
    payload = events.decode(data)
    last = payload[-1] if isinstance(payload, list) else payload
    if "tx" not in last:
        # The bridge's messages come one by one.
        return None
    token = table_token(last["schema"], last["table"]) if "table" in last else MESSAGES
    return token, events.position_of(last)


async def find_resume_point(cell: Cell, tail: StreamTail) -> ResumePoint:
    """Read progress and the stream's end; the stream takes precedence."""
    progress = Progress.decode(await cell.read())
    now = await tail.state()
    lost = await _tail_was_lost(progress, now, tail)
    found = await tail.after(0 if lost else progress.stream_seq)
    if found.position_seq and (found.position or ORIGIN) >= progress.position:
        # A later message of ours exists: the missing one was in the middle, and only it was
        # removed.
        lost = False
    found.ids_in_doubt = (
        progress.ids_in_doubt or lost or found.lacks_some_behind(progress.stream_seq)
    )
    here = replace(progress, stream_created=found.created, ids_in_doubt=found.ids_in_doubt)
    if found.position_seq:
        here = replace(
            here,
            position=found.position or ORIGIN,
            stream_seq=found.position_seq,
            msg_id=found.position_id,
        )
    elif lost:
        # Only unfinished flushes say what was before them, and where nothing was.
        here = replace(here, position=found.position or ORIGIN, stream_seq=0, msg_id="")
    if lost:
        log.error(
            "stream_tail_lost",
            had=str(progress.position),
            has=str(here.position),
            confirmed=format_lsn(progress.confirmed_lsn),
            remedy=(
                "the slot is asked for the missing changes; those that it no longer has are a gap"
            ),
        )
    return ResumePoint(
        here,
        frozenset(found.ids_after),
        found,
        progress.confirmed_lsn if lost or _gap_was_lost(progress, found) else 0,
        dict(found.lanes),
    )


async def _tail_was_lost(progress: Progress, now: Tail, tail: StreamTail) -> bool:
    """Whether the stream no longer contains what progress says, for another reason than age."""
    if progress.stream_created not in ("", now.created):
        return True
    if progress.stream_seq == 0:
        return False
    if progress.stream_seq > now.last_seq:
        return True
    if progress.stream_seq < now.first_seq:
        return False
    # Another source's message may have taken our message's sequence: the id decides.
    there = await tail.id_at(progress.stream_seq)
    if there is not None:
        return there != progress.msg_id
    # nats-server keeps the number of what a damaged file has lost; or it aged out just now.
    return (await tail.state()).first_seq <= progress.stream_seq


def _gap_was_lost(progress: Progress, found: Tail) -> bool:
    """Whether the stream's last word was the event of a gap, and is no longer there."""
    if not progress.gap_id or progress.gap_position != progress.position or found.position_seq:
        return False
    # If later messages are gone from the front, the last known one may have aged out too.
    aged = found.first_seq > progress.stream_seq + 1
    return progress.gap_id not in found.ids_after and not aged


def check_source(found: ResumePoint, opening: Opening) -> None:
    """Refuse to continue if LSNs have changed their meaning."""
    at = found.progress
    known = SourceIdentity("stream", at.system_id, at.timeline, at.position.lsn)
    diverged = source_identity.divergence(known, opening)
    if diverged is not None:
        raise SourceDivergedError(diverged)


def gap_before(found: ResumePoint, opening: Opening) -> Gap | None:
    """Changes that neither the slot nor the stream has: the stream's tail was lost, or the slot is
    another one.
    """
    confirmed = opening.confirmed_lsn
    reached = found.position.gap_lsn
    if found.lost_up_to and confirmed > reached and not found.contains(confirmed):
        return Gap(reached, confirmed, "stream_tail_lost")
    known = max(found.progress.confirmed_lsn, reached)
    if not known and opening.slot_used:
        # The slot has delivered changes that neither the stream nor the state knows of.
        return Gap(0, confirmed, "store_lost")
    return source_identity.gap_before(known, opening)
