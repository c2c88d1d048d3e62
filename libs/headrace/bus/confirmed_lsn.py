"""The confirmed LSN of an epoch: everything before it is durable with all awaited confirmers. Pure.

Promises: it is the minimum that all awaited confirmers reported in this epoch, and never decreases
within it. Required confirmers are always awaited. An optional one is awaited until it has held up
the others for longer than the patience, and again once it has caught up or rejoined
(docs/adr/0013).
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.bus.control import Confirm, Control

PATIENCE_S = 10.0


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


class ConfirmedLsn:
    def __init__(
        self, required: frozenset[str], optional: frozenset[str], patience_s: float
    ) -> None:
        self._required = required
        self._patience_s = patience_s
        # The confirmers that credit and the confirmed LSN wait for; an optional one may drop out.
        self._awaited = set(required | optional)
        self._holds = {name: _Hold() for name in optional}
        # By name, those that have joined. An entry outlives the epoch, its counters don't.
        self._confirmers: dict[str, _Confirmer] = {}
        # The LSN that was confirmed in this epoch while an optional confirmer wasn't awaited.
        # PostgreSQL may have removed that WAL, so the confirmed LSN must not fall behind it when
        # the confirmer is awaited again.
        self._floor_lsn = 0
        # The confirmed LSN with which the epoch began. A confirmer that reports no more than this
        # has confirmed nothing of the epoch, even if its own store already contains it.
        self._begun_lsn = 0
        # Between two epochs nothing may be packed: its bytes would belong to the stream that has
        # ended.
        self.open = False

    @property
    def lsn(self) -> int:
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
    def consumed_seq(self) -> int:
        """The last frame that every awaited confirmer has consumed."""
        return min(self._confirmers[name].consumed_seq for name in self._awaited)

    @property
    def settled(self) -> bool:
        """Whether every awaited confirmer has made durable all that it consumed."""
        return all(self._confirmers[name].settled for name in self._awaited)

    @property
    def missing(self) -> list[str]:
        """Awaited confirmers that have not joined."""
        return sorted(self._awaited - self._confirmers.keys())

    @property
    def optional_awaited(self) -> list[str]:
        return sorted(self._awaited - self._required)

    def sessions(self) -> dict[str, str]:
        return {name: confirmer.session for name, confirmer in self._confirmers.items()}

    def knows(self, message: Control) -> bool:
        """Whether it comes from the session that has joined."""
        known = self._confirmers.get(message.confirmer)
        return known is not None and known.session == message.session

    def begin(self, confirmed_lsn: int) -> None:
        """A new epoch, from the slot's confirmed LSN."""
        # A late Confirm of the epoch before must not count here: the same numbers mean other
        # frames.
        for confirmer in self._confirmers.values():
            confirmer.consumed_seq = 0
            confirmer.confirmed_lsn = 0
            confirmer.settled = False
        self._begun_lsn = confirmed_lsn
        self._floor_lsn = 0
        # PostgreSQL replays from the slot's confirmed LSN, so every confirmer starts from nothing.
        # The credit that an optional one has used up is kept: otherwise each of its restarts would
        # grant it new patience.
        for hold in self._holds.values():
            hold.slot_s = 0.0
            hold.left_lsn = 0
        self.open = True

    def join(self, name: str, session: str) -> None:
        """A new session: the epoch ends, because it has not seen its frames."""
        self._await(name)
        self._confirmers[name] = _Confirmer(session)
        self.open = False

    def take(self, confirm: Confirm, sent_seq: int) -> None:
        """Take a Confirm of this epoch, whose last frame is `sent_seq`."""
        # Only the session that this epoch was opened with may confirm: a predecessor's Confirm,
        # still on its way, speaks about messages that its successor may not have.
        if not self.knows(confirm):
            return
        known = self._confirmers[confirm.confirmer]
        # Control messages may be reordered or repeated, so everything is cumulative. A frame that
        # was never sent can't be consumed: a forged or damaged number must not grant unlimited
        # credit.
        known.consumed_seq = max(known.consumed_seq, min(confirm.consumed_seq, sent_seq))
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

    def holds_too_long(self, name: str, since: float, *, has_credit: bool) -> bool:
        """Whether an optional confirmer has held the others up for longer than the patience;
        `since` is the time since the last call.
        """
        hold = self._holds[name]
        slot, credit = self._holds_up(name, has_credit=has_credit)
        # The slot advances with every transaction, so one moment without delay proves that the
        # confirmer keeps up. Credit comes and goes within milliseconds: its time is paid back
        # at the rate at which it was used, so that a confirmer that blocks half of the time is
        # never dropped for it.
        hold.slot_s = hold.slot_s + since if slot else 0.0
        hold.credit_s = max(0.0, hold.credit_s + (since if credit else -since))
        return max(hold.slot_s, hold.credit_s) > self._patience_s

    def let_go(self, name: str) -> None:
        """The confirmed LSN and the credit no longer wait for it."""
        known = self._confirmers.get(name)
        # It must get beyond this LSN to be awaited again. Otherwise a confirmer that is stuck would
        # return with its first repeated Confirm, and hold up the slot for another full patience,
        # forever.
        self._holds[name] = _Hold(left_lsn=known.confirmed_lsn if known else 0)
        self._awaited.discard(name)

    def _holds_up(self, name: str, *, has_credit: bool) -> tuple[bool, bool]:
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
        credit = not has_credit and confirmer.consumed_seq < min(
            other.consumed_seq for other in others
        )
        return slot, credit

    def _await(self, name: str) -> None:
        """From now on it is awaited; what was confirmed without it stays confirmed."""
        if name not in self._awaited:
            # Read before the confirmer is added, because from then on the minimum includes its
            # older LSN.
            self._floor_lsn = self.lsn
            self._holds[name] = _Hold()
            self._awaited.add(name)

    def _has_caught_up(self, name: str, known: _Confirmer) -> bool:
        # Both are needed: consumed frames may only be in memory, and a confirmed LSN may be far
        # behind.
        consumed = known.consumed_seq >= min(
            self._confirmers[other].consumed_seq for other in self._required
        )
        return consumed and known.confirmed_lsn > self._holds[name].left_lsn
