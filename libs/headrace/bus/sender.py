"""The wal-reader's end of the bus, as a pure state machine: packs frames and counts credit.

Promises: at most `in_flight_bytes_max` bytes (plus one frame) are unconsumed by the slowest awaited
confirmer. The confirmed LSN is the minimum that all awaited confirmers reported in this epoch, and
never decreases within it. Required confirmers are always awaited. An optional one is awaited until
it has held up the others for longer than the patience, and again once it has caught up or rejoined
(docs/adr/0013).

The driver sends the bytes it returns, in order, calls `tick` at intervals, and starts a new epoch
when `on_control` asks for one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from headrace.bus import frame
from headrace.bus.control import Confirm, Control, Join, Restart
from headrace.bus.frame import FrameKind, Opening, Part

# The low bits of an epoch identify the wal-reader's run. If its clock is behind, a later run may
# not have heard of every epoch yet, and must not reuse one that a confirmer still follows.
LIFE_BITS = 20
# A Join that crossed its OPEN on the wire is no reason for a new epoch.
JOIN_GRACE_S = 2.0
# An optional confirmer may interrupt the others at most once in this time.
OPTIONAL_EPOCH_INTERVAL_S = 5.0
PATIENCE_S = 10.0
# If the driver was busy elsewhere, not all of that time counts against a confirmer.
TICK_S_MAX = 1.0


class Action(Enum):
    """The action that a control message requires."""

    NONE = "none"
    OPEN = "open"


@dataclass(slots=True)
class _Confirmer:
    # A random id of the confirmer's process: a restarted one has forgotten the epoch that it
    # followed.
    session: str
    # The last frame of this epoch that it has taken: this returns credit, and says nothing about
    # what is durable.
    consumed_seq: int = 0
    # Everything before this LSN is durable with it; 0 until it confirms something in this epoch.
    confirmed_lsn: int = 0
    # Whether it has made durable all that it consumed. Its LSN can't show that, because the last
    # frames may contain nothing to confirm.
    settled: bool = False


@dataclass(slots=True)
class _Hold:
    """How long an optional confirmer has held up the slot, and the credit."""

    slot_s: float = 0.0
    credit_s: float = 0.0
    # The LSN that it had confirmed when it was dropped.
    left_lsn: int = 0


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
        self._patience_s = patience_s
        # The confirmers that credit and the confirmed LSN wait for; an optional one may drop out.
        self._awaited = set(required | optional)
        self._holds = {name: _Hold() for name in optional}
        self._ticked_at = 0.0
        # The LSN that was confirmed in this epoch while an optional confirmer wasn't awaited.
        # PostgreSQL may have removed that WAL, so the confirmed LSN must not fall behind it when
        # the confirmer is awaited again.
        self._floor_lsn = 0
        # The confirmed LSN with which the epoch began. A confirmer that reports no more than this
        # has confirmed nothing of the epoch, even if its own store already contains it.
        self._begun_lsn = 0
        assert 0 <= life < 1 << LIFE_BITS, life
        self._life = life
        self._frame_bytes_max = frame_bytes_max
        self._in_flight_bytes_max = in_flight_bytes_max
        # By name, those that have joined. An entry outlives the epoch, its counters don't.
        self._confirmers: dict[str, _Confirmer] = {}
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
        # Between two epochs nothing may be packed: its bytes would belong to the stream that has
        # ended.
        self.open = False

    @property
    def missing(self) -> list[str]:
        """Awaited confirmers that have not joined."""
        return sorted(self._awaited - self._confirmers.keys())

    @property
    def confirmed_lsn(self) -> int:
        """The LSN that every awaited confirmer has reached in this epoch; 0 while it is unknown."""
        if not self.open:
            return 0
        return max(
            self._floor_lsn, min(self._confirmers[name].confirmed_lsn for name in self._awaited)
        )

    @property
    def held_by(self) -> str | None:
        """The only confirmer that holds back the confirmed LSN; None for none, or several."""
        if not self.open:
            return None
        known = {
            name: max(self._begun_lsn, self._confirmers[name].confirmed_lsn)
            for name in self._awaited
        }
        least = min(known.values())
        late = [name for name, lsn in known.items() if lsn == least]
        # With a single confirmer there is nothing to compare with: a slow publisher is normal
        # operation.
        if len(late) == 1 < len(known):
            return late[0]
        return None

    @property
    def has_credit(self) -> bool:
        return self.open and self.in_flight_bytes < self._in_flight_bytes_max

    @property
    def settled(self) -> bool:
        """Whether everything sent is consumed, and confirmed as far as possible."""
        consumed = not self._sent and not self._entries
        return consumed and all(self._confirmers[name].settled for name in self._awaited)

    def sessions(self) -> dict[str, str]:
        return {name: confirmer.session for name, confirmer in self._confirmers.items()}

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
        # A late Confirm of the epoch before must not count here: the same numbers mean other
        # frames.
        for confirmer in self._confirmers.values():
            confirmer.consumed_seq = 0
            confirmer.confirmed_lsn = 0
            confirmer.settled = False
        self._begun_lsn = opening.confirmed_lsn
        self._floor_lsn = 0
        # PostgreSQL replays from the slot's confirmed LSN, so every confirmer starts from nothing.
        # The credit that an optional one has used up is kept: otherwise each of its restarts would
        # grant it new patience.
        for hold in self._holds.values():
            hold.slot_s = 0.0
            hold.left_lsn = 0
        self._opened_at = now
        self.open = True
        return frame.encode_open(self.epoch, opening)

    def _next_epoch(self, clock_ns: int) -> int:
        # The low bits identify this run, so no other wal-reader opens an epoch of the same number,
        # even if its clock is behind.
        above = (max(clock_ns, self._highest_epoch) >> LIFE_BITS) + 1
        return (above << LIFE_BITS) | self._life

    def close(self) -> None:
        """The replication stream ended: discard what is packed; a new epoch must start."""
        self.open = False
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
        for name in sorted(self._awaited - self._required):
            hold = self._holds[name]
            slot, credit = self._holds_up(name)
            # The slot advances with every transaction, so one moment without delay proves that the
            # confirmer keeps up. Credit comes and goes within milliseconds: its time is paid back
            # at the rate at which it was used, so that a confirmer that blocks half of the time is
            # never dropped for it.
            hold.slot_s = hold.slot_s + since if slot else 0.0
            hold.credit_s = max(0.0, hold.credit_s + (since if credit else -since))
            if max(hold.slot_s, hold.credit_s) > self._patience_s:
                late.append(name)
                self._let_go(name)
        return late

    def _holds_up(self, name: str) -> tuple[bool, bool]:
        """Whether it is the only one that holds up the slot, and the credit."""
        confirmer = self._confirmers.get(name)
        if confirmer is None:
            # An absent confirmer holds the slot. It can't hold the credit: without it, no epoch is
            # open.
            return True, False
        if not self.open:
            return False, False
        # Optional confirmers aren't compared with each other: two slow ones must not excuse one
        # another.
        others = [self._confirmers[other] for other in self._required]
        slot = confirmer.confirmed_lsn < min(other.confirmed_lsn for other in others)
        credit = not self.has_credit and confirmer.consumed_seq < min(
            other.consumed_seq for other in others
        )
        return slot, credit

    def _let_go(self, name: str) -> None:
        known = self._confirmers.get(name)
        # It must get beyond this LSN to be awaited again. Otherwise a confirmer that is stuck would
        # return with its first repeated Confirm, and hold up the slot for another full patience,
        # forever.
        self._holds[name] = _Hold(left_lsn=known.confirmed_lsn if known else 0)
        self._awaited.discard(name)
        # Its unconsumed frames may be all that keeps the credit used up.
        if self.open:
            self._release()

    def _await(self, name: str) -> None:
        """From now on it is awaited; what was confirmed without it stays confirmed."""
        if name not in self._awaited:
            # Read before the confirmer is added, because from then on the minimum includes its
            # older LSN.
            self._floor_lsn = self.confirmed_lsn
            self._holds[name] = _Hold()
            self._awaited.add(name)

    def _may_interrupt(self, name: str, now: float) -> bool:
        return (
            name in self._required
            or not self.open
            or now - self._opened_at >= OPTIONAL_EPOCH_INTERVAL_S
        )

    def _on_join(self, join: Join, now: float) -> Action:
        known = self._confirmers.get(join.confirmer)
        if known is None or known.session != join.session:
            if not self._may_interrupt(join.confirmer, now):
                return Action.NONE
            self._await(join.confirmer)
            self._confirmers[join.confirmer] = _Confirmer(join.session)
            self.open = False
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
        known = self._confirmers.get(restart.confirmer)
        if known is None or known.session != restart.session:
            return self._on_join(Join(restart.confirmer, restart.session, restart.epoch), now)
        if not self._may_interrupt(restart.confirmer, now):
            return Action.NONE
        # A Restart for an earlier epoch was answered when this one opened; it arrived late, or
        # twice.
        if self.open and restart.epoch >= self.epoch:
            return Action.OPEN
        return Action.NONE

    def _on_confirm(self, confirm: Confirm) -> None:
        known = self._confirmers.get(confirm.confirmer)
        # Only the session that this epoch was opened with may confirm: a predecessor's Confirm,
        # still on its way, speaks about messages that its successor may not have.
        if (
            known is None
            or known.session != confirm.session
            or confirm.epoch != self.epoch
            or not self.open
        ):
            return
        # Control messages may be reordered or repeated, so everything is cumulative. A frame that
        # was never sent can't be consumed: a forged or damaged number must not grant unlimited
        # credit.
        known.consumed_seq = max(known.consumed_seq, min(confirm.consumed_seq, self.seq))
        if confirm.confirmed_lsn > known.confirmed_lsn:
            known.confirmed_lsn = confirm.confirmed_lsn
            if confirm.confirmer in self._holds:
                # Progress counts, even if it is slow: patience is for confirmers that stand still.
                self._holds[confirm.confirmer].slot_s = 0.0
        # `settled` isn't cumulative, so an older Confirm that arrives late must not overwrite it.
        if confirm.consumed_seq >= known.consumed_seq:
            known.settled = confirm.settled
        if confirm.confirmer not in self._awaited and self._has_caught_up(confirm.confirmer, known):
            self._await(confirm.confirmer)
        self._release()

    def _has_caught_up(self, name: str, known: _Confirmer) -> bool:
        # Both are needed: consumed frames may only be in memory, and a confirmed LSN may be far
        # behind.
        consumed = known.consumed_seq >= min(
            self._confirmers[other].consumed_seq for other in self._required
        )
        return consumed and known.confirmed_lsn > self._holds[name].left_lsn

    def _release(self) -> None:
        """Return the credit of everything that all awaited confirmers have consumed."""
        consumed = min(self._confirmers[name].consumed_seq for name in self._awaited)
        while self._sent and self._sent[0][0] <= consumed:
            self.in_flight_bytes -= self._sent.popleft()[1]
        assert self.in_flight_bytes >= 0, "more credit was returned than was used"
