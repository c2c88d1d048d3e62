"""The wal-reader's end of the bus, as a pure state machine: packs frames and counts credit.

Promises: at most `in_flight_bytes_max` bytes (plus one frame) are unconsumed by the slowest awaited
confirmer (`headrace.bus.confirmed_lsn`).

The driver sends the bytes it returns, in order, calls `tick` at intervals, and starts a new epoch
when `on_control` asks for one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum

from headrace.bus import frame
from headrace.bus.confirmed_lsn import PATIENCE_S, ConfirmedLsn
from headrace.bus.control import Confirm, Control, Join, Restart
from headrace.bus.frame import FrameKind, Opening, Part

# The low bits of an epoch identify the wal-reader's run. If its clock is behind, a later run may
# not have heard of every epoch yet, and must not reuse one that a confirmer still follows.
LIFE_BITS = 20
# A Join that crossed its OPEN on the wire is no reason for a new epoch.
JOIN_GRACE_S = 2.0
# An optional confirmer may interrupt the others at most once in this time.
OPTIONAL_EPOCH_INTERVAL_S = 5.0
# If the driver was busy elsewhere, not all of that time counts against a confirmer.
TICK_S_MAX = 1.0


class Action(Enum):
    """The action that a control message requires."""

    NONE = "none"
    OPEN = "open"


class FrameSender:
    def __init__(
        self,
        required: frozenset[str],
        *,
        frame_bytes_max: int,
        in_flight_bytes_max: int,
        life: int,
        optional: frozenset[str] = frozenset(),
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`life` is a random number that is different in every run of this wal-reader."""
        self._required = required
        self._optional = optional
        self._confirmed = ConfirmedLsn(required, optional, patience_s)
        self._ticked_at = 0.0
        assert 0 <= life < 1 << LIFE_BITS, life
        self._life = life
        self._frame_bytes_max = frame_bytes_max
        self._in_flight_bytes_max = in_flight_bytes_max
        # The number and size of each frame that some awaited confirmer has not consumed yet, oldest
        # first.
        self._sent: deque[tuple[int, int]] = deque()
        # The frame that is being filled: heads and messages alternate.
        self._entries: list[bytes] = []
        self._entries_bytes = 0
        # The highest epoch that this wal-reader has used or any confirmer has named.
        self._highest_epoch = 0
        self._opened_at = 0.0
        # The total size of `_sent`: what credit is measured by.
        self.in_flight_bytes = 0
        self.epoch = 0
        # The number of the last frame. Confirmers recognize a loss by a jump, so every frame with
        # content takes a number; PING and FLUSH repeat it.
        self.seq = 0

    @property
    def open(self) -> bool:
        return self._confirmed.open

    @property
    def missing(self) -> list[str]:
        """Awaited confirmers that have not joined."""
        return self._confirmed.missing

    @property
    def confirmed_lsn(self) -> int:
        return self._confirmed.lsn

    @property
    def held_by(self) -> str | None:
        """The only confirmer that holds back the confirmed LSN; None for none, or several."""
        return self._confirmed.held_by

    @property
    def has_credit(self) -> bool:
        return self._confirmed.open and self.in_flight_bytes < self._in_flight_bytes_max

    @property
    def settled(self) -> bool:
        """Whether everything sent is consumed, and confirmed as far as possible."""
        consumed = not self._sent and not self._entries
        return consumed and self._confirmed.settled

    def sessions(self) -> dict[str, str]:
        return self._confirmed.sessions()

    def begin(self, opening: Opening, *, clock_ns: int, now: float) -> bytes:
        """Start a new epoch above every known one; returns the OPEN frame to send first."""
        # A confirmer ignores every frame below the epoch that it follows. Without a higher number
        # it would never hear this one.
        self.close()
        self.epoch = self._next_epoch(clock_ns)
        assert self.epoch > self._highest_epoch, "an epoch only grows"
        self._highest_epoch = self.epoch
        self.seq = 0
        self.in_flight_bytes = 0
        self._sent.clear()
        self._confirmed.begin(opening.confirmed_lsn)
        self._opened_at = now
        return frame.encode_open(self.epoch, opening)

    def _next_epoch(self, clock_ns: int) -> int:
        # The low bits identify this run, so no other wal-reader opens an epoch of the same number,
        # even if its clock is behind.
        above = (max(clock_ns, self._highest_epoch) >> LIFE_BITS) + 1
        return (above << LIFE_BITS) | self._life

    def close(self) -> None:
        """The replication stream ended: discard what is packed; a new epoch must start."""
        self._confirmed.open = False
        self._entries.clear()
        self._entries_bytes = 0

    def hello(self) -> bytes:
        return frame.header(FrameKind.HELLO, self._highest_epoch, 0)

    def ping(self) -> bytes:
        return frame.header(FrameKind.PING, self.epoch, self.seq)

    def flush_request(self) -> bytes:
        return frame.header(FrameKind.FLUSH, self.epoch, self.seq)

    def fit(self, lsn: int, message: bytes) -> bool:
        """Pack a message unless it fills a frame. Nearly all take this fast path."""
        size = len(message)
        total = self._entries_bytes + size + frame.ENTRY_OVERHEAD_BYTES
        if total > self._frame_bytes_max:
            return False
        self._entries.append(frame.entry_head(lsn, size))
        self._entries.append(message)
        self._entries_bytes = total
        return True

    def add(self, lsn: int, message: bytes) -> Iterator[bytes]:
        """Pack a message; yields the frames that it fills."""
        if self.fit(lsn, message):
            return
        yield from self.flush()
        if not self.fit(lsn, message):
            yield from self._parts(lsn, message)

    def flush(self) -> Iterator[bytes]:
        """The frame of everything packed so far, if anything is."""
        if self._entries:
            self.seq += 1
            data = frame.header(FrameKind.DATA, self.epoch, self.seq) + b"".join(self._entries)
            self._entries.clear()
            self._entries_bytes = 0
            yield self._count(data)

    def _parts(self, lsn: int, message: bytes) -> Iterator[bytes]:
        step = self._frame_bytes_max
        for offset in range(0, len(message), step):
            self.seq += 1
            part = Part(lsn, offset, len(message), message[offset : offset + step])
            yield self._count(frame.encode_part(self.epoch, self.seq, part))

    def _count(self, data: bytes) -> bytes:
        self._sent.append((self.seq, len(data)))
        self.in_flight_bytes += len(data)
        return data

    def on_control(self, message: Control, now: float) -> Action:
        """Process a control message; OPEN asks the driver for a new epoch."""
        # From any confirmer: a named epoch has been used by some wal-reader, perhaps one whose
        # clock is ahead of ours.
        self._highest_epoch = max(self._highest_epoch, message.epoch)
        # An archiver that is no longer configured may still be running; it has no vote.
        if message.confirmer not in self._required | self._optional:
            return Action.NONE
        match message:
            case Join():
                return self._on_join(message, now)
            case Confirm():
                self._on_confirm(message)
                return Action.NONE
            case Restart():
                return self._on_restart(message, now)

    def tick(self, now: float) -> list[str]:
        """Let go of the optional confirmers that held the others up for too long; their names."""
        since = min(TICK_S_MAX, now - self._ticked_at)
        self._ticked_at = now
        late = []
        for name in self._confirmed.optional_awaited:
            if self._confirmed.holds_too_long(name, since, has_credit=self.has_credit):
                self._confirmed.let_go(name)
                late.append(name)
                # Its unconsumed frames may be all that keeps the credit used up.
                if self.open:
                    self._release()
        return late

    def _may_interrupt(self, name: str, now: float) -> bool:
        return (
            name in self._required
            or not self.open
            or now - self._opened_at >= OPTIONAL_EPOCH_INTERVAL_S
        )

    def _on_join(self, join: Join, now: float) -> Action:
        if not self._confirmed.knows(join):
            if not self._may_interrupt(join.confirmer, now):
                return Action.NONE
            self._confirmed.join(join.confirmer, join.session)
            if self.missing:
                return Action.NONE
            return Action.OPEN
        # A Join of a known session means that its OPEN was lost, unless the two crossed on the
        # wire.
        follows = not self.open or join.epoch == self.epoch or now - self._opened_at < JOIN_GRACE_S
        if follows or self.missing or not self._may_interrupt(join.confirmer, now):
            return Action.NONE
        return Action.OPEN

    def _on_restart(self, restart: Restart, now: float) -> Action:
        if not self._confirmed.knows(restart):
            return self._on_join(Join(restart.confirmer, restart.session, restart.epoch), now)
        if not self._may_interrupt(restart.confirmer, now):
            return Action.NONE
        # A Restart for an earlier epoch was answered when this one opened; it arrived late, or
        # twice.
        if self.open and restart.epoch >= self.epoch:
            return Action.OPEN
        return Action.NONE

    def _on_confirm(self, confirm: Confirm) -> None:
        if confirm.epoch == self.epoch and self.open:
            self._confirmed.take(confirm, self.seq)
            self._release()

    def _release(self) -> None:
        """Return the credit of everything that all awaited confirmers have consumed."""
        consumed = self._confirmed.consumed_seq
        while self._sent and self._sent[0][0] <= consumed:
            self.in_flight_bytes -= self._sent.popleft()[1]
        assert self.in_flight_bytes >= 0, "more credit was returned than was used"
