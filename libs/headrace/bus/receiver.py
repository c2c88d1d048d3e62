"""A confirmer's end of the bus, as a pure state machine: receives frames and detects every loss.

Promises: within an epoch, entries come out in the order in which the wal-reader sent them, without
a hole. A hole, a frame of an unknown epoch or a malformed frame yields a request for a new epoch,
and nothing more from the broken one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.bus import frame
from headrace.bus.control import Confirm, Join, Restart
from headrace.bus.frame import Entry, FrameKind, Header, Opening, Part
from headrace.errors import DecodeError

# Each request may cause a new epoch, which replays everything unconfirmed. One lost frame makes
# every later frame look wrong, so requests must not follow the rate of frames.
REQUEST_INTERVAL_S = 0.5
# The reason of a Restart that reports no failure: its sender did not follow the epoch before.
START_UNKNOWN = "an epoch whose start was not received"
# Several pings fit into this time: missing all of them means that the epoch was lost, or its
# sender.
SILENCE_S = 3.0


@dataclass(frozen=True, slots=True)
class Received:
    """The outcome of a frame: a new epoch or entries, a reply, and whether to confirm or flush."""

    opening: Opening | None = None
    entries: Sequence[Entry] = ()
    reply: Join | Restart | None = None
    confirm: bool = False
    flush: bool = False


_NOTHING = Received()


class FrameReceiver:
    def __init__(self, confirmer: str, session: str) -> None:
        self._confirmer = confirmer
        self._session = session
        # The suite's identity, once it is known.
        self.suite = ""
        # Nothing is taken until the next OPEN. True at first: a process that has just started may
        # hear the middle of an epoch.
        self._broken = True
        # When a request was last sent, and when a frame of this epoch was last heard.
        self._asked_at = float("-inf")
        self._heard_at = float("-inf")
        # The beginning of a message that is larger than a frame.
        self._part: bytearray | None = None
        # The epoch followed, or the last one followed. It never decreases, not even while broken:
        # frames of an earlier epoch must not be mistaken for those of the next.
        self.epoch = 0
        # The last frame taken in this epoch; the next one has the next number.
        self.seq = 0
        # Set by the driver once everything before it is durable.
        self.confirmed_lsn = 0

    @property
    def following(self) -> bool:
        return not self._broken

    def receive(self, data: bytes, now: float) -> Received:
        try:
            return self._receive(data, now)
        except DecodeError as error:
            # A damaged frame is treated like a lost one: PostgreSQL still has its content.
            return self._break(f"malformed frame: {error}", now)

    def tick(self, now: float) -> Join | None:
        """A Join if no frame has arrived for a while. Called at intervals."""
        if now - self._heard_at < SILENCE_S or now - self._asked_at < REQUEST_INTERVAL_S:
            return None
        self._asked_at = now
        return self.join()

    def join(self) -> Join:
        return Join(self._confirmer, self._session, self.epoch, self.suite)

    def confirm(self, *, settled: bool) -> Confirm:
        """Returns credit for all frames taken so far, and the LSN that is durable."""
        return Confirm(
            self._confirmer, self._session, self.epoch, self.seq, self.confirmed_lsn, settled
        )

    def restart(self, reason: str) -> Restart:
        """Give up this epoch for a reason of the driver's, such as a failed publish."""
        self._broken = True
        return Restart(self._confirmer, self._session, self.epoch, reason, self.suite)

    def _receive(self, data: bytes, now: float) -> Received:
        head = frame.decode_header(data)
        # HELLO belongs to no epoch: the wal-reader looks for confirmers before it opens one.
        if head.kind is FrameKind.HELLO:
            return Received(reply=self.join())
        # Frames of a superseded epoch may be queued behind the OPEN of this one.
        if head.epoch < self.epoch:
            return self._stale(head, now)
        if head.kind is FrameKind.OPEN:
            return self._open(head, frame.decode_open(data), now)
        if head.epoch > self.epoch or self._broken:
            # Without its OPEN it is unknown where the epoch begins, so its first frames may be
            # lost.
            return self._break(START_UNKNOWN, now, epoch=head.epoch)
        self._heard_at = now
        if head.kind in (FrameKind.PING, FrameKind.FLUSH):
            return self._ping(head, now)
        return self._data(head, data, now)

    def _stale(self, head: Header, now: float) -> Received:
        # A wal-reader whose clock is behind must hear which epochs have been.
        if head.kind is FrameKind.OPEN:
            return self._break("an epoch below one already seen", now)
        return _NOTHING

    def _open(self, head: Header, opening: Opening, now: float) -> Received:
        # A repeated OPEN must not reset the sequence: that would accept its frames twice.
        if head.epoch == self.epoch:
            return _NOTHING
        # This epoch was opened for a predecessor with the same name, or without us. Our
        # confirmations in it would be ignored, and its credit would run out.
        if opening.sessions.get(self._confirmer) != self._session:
            return Received(reply=self.join())
        assert head.epoch > self.epoch, "an epoch only grows"
        self.epoch = head.epoch
        self.seq = 0
        # The durable LSN of the epoch before says nothing about this one, which may be of another
        # server.
        self.confirmed_lsn = 0
        # A message may have been cut by the end of the epoch before: its rest will never come.
        self._part = None
        self._broken = False
        self._heard_at = now
        return Received(opening=opening)

    def _ping(self, head: Header, now: float) -> Received:
        # PING and FLUSH repeat the number of the last frame. This is how the loss of the very last
        # frame is noticed, after which no later frame would reveal the hole.
        if head.seq != self.seq:
            return self._break(f"frame {self.seq + 1} did not arrive", now)
        return Received(confirm=True, flush=head.kind is FrameKind.FLUSH)

    def _data(self, head: Header, data: bytes, now: float) -> Received:
        # NATS may deliver a message twice around a reconnect.
        if head.seq <= self.seq:
            return _NOTHING
        if head.seq != self.seq + 1:
            return self._break(f"frame {self.seq + 1} did not arrive, {head.seq} did", now)
        self.seq = head.seq
        if head.kind is FrameKind.PART:
            return self._join_part(frame.decode_part(data))
        if self._part is not None:
            # The sender packs nothing between the parts, so an interleaved frame means a damaged
            # epoch.
            raise DecodeError("a DATA frame between the parts of a message")
        return Received(entries=frame.decode_entries(data))

    def _join_part(self, part: Part) -> Received:
        if self._part is None:
            self._part = bytearray()
        # The frame numbers are consecutive, so this can only be a sender's mistake, not a loss.
        if part.offset != len(self._part):
            raise DecodeError(f"a part at {part.offset}, expected {len(self._part)}")
        self._part += part.data
        if len(self._part) < part.total:
            # Consume it now: the remaining parts may need its credit.
            return Received(confirm=True)
        message = bytes(self._part)
        self._part = None
        return Received(entries=((part.lsn, message),))

    def _break(self, reason: str, now: float, epoch: int | None = None) -> Received:
        self._broken = True
        self._heard_at = now
        if now - self._asked_at < REQUEST_INTERVAL_S:
            return _NOTHING
        self._asked_at = now
        # Naming the unknown epoch asks for one above it: a request for an older one would be
        # ignored as late.
        known = self.epoch if epoch is None else epoch
        return Received(reply=Restart(self._confirmer, self._session, known, reason, self.suite))
