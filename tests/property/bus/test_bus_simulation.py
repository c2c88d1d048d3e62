"""Thousands of seeded histories of the bus, with everything lost, doubled, reordered and killed
that can be.

`HEADRACE_SIMULATION_S` is for how long (a few seconds by default), `HEADRACE_SIMULATION_SEED` where
it begins: a failure names the seed that shows it again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from headrace.bus.confirmed_lsn import ConfirmedLsn
from headrace.bus.control import Confirm
from headrace.bus.frame import Header
from headrace.bus.receiver import FrameReceiver, Received
from headrace.bus.sender import FrameSender
from headrace.publisher.ledger import Ledger
from tests.property.bus.bus_confirmers import Archiver
from tests.property.bus.bus_durable import BrokenPromiseError
from tests.property.bus.bus_world import World

SECONDS = float(os.environ.get("HEADRACE_SIMULATION_S", "4"))
FIRST_SEED = int(os.environ.get("HEADRACE_SIMULATION_SEED", "0"))
MUTANT_HISTORIES_MAX = 3000


def history(seed: int, steps: int = 120) -> World:
    """One history, from a seed to its good end."""
    world = World(seed)
    try:
        world.live(steps, harm=world.chance.choice((0.02, 0.1, 0.3)))
        world.restore()
        world.check_stream()
    except BrokenPromiseError as broken:
        raise BrokenPromiseError(f"seed {seed}: {broken}") from broken
    except Exception as error:
        raise BrokenPromiseError(f"seed {seed}: {error!r}") from error
    return world


def test_nothing_is_lost_doubled_confirmed_early_or_stuck_in_any_history() -> None:
    until, seed, changes = time.monotonic() + SECONDS, FIRST_SEED, 0
    while time.monotonic() < until or seed < FIRST_SEED + 50:
        changes += len(history(seed).postgres.changes())
        seed += 1
    summary = (
        f"{seed - FIRST_SEED} histories from seed {FIRST_SEED}, {changes} changes, {SECONDS} s"
    )
    print(summary)  # shown by -s, and with a failure
    assert changes > 100


def confirm_what_is_published(patch: pytest.MonkeyPatch) -> None:
    confirmable = Ledger.confirmable
    patch.setattr(Ledger, "confirmable", lambda self, _: confirmable(self, 1 << 60))


def overlook_a_hole(patch: pytest.MonkeyPatch) -> None:
    take = FrameReceiver._data

    def blind(self: FrameReceiver, head: Header, data: bytes, now: float) -> Received:
        self.seq = min(self.seq, head.seq - 1) if head.seq <= self.seq else head.seq - 1
        return take(self, head, data, now)

    patch.setattr(FrameReceiver, "_data", blind)


def believe_any_epoch(patch: pytest.MonkeyPatch) -> None:
    def believe(self: FrameSender, confirm: Confirm) -> None:
        known = self._confirmed._confirmers.get(confirm.confirmer)
        if known is not None:
            known.confirmed_lsn = max(known.confirmed_lsn, confirm.confirmed_lsn + 8)

    patch.setattr(FrameSender, "_on_confirm", believe)


def follow_one_confirmer_only(patch: pytest.MonkeyPatch) -> None:
    highest = property(
        lambda self: max(c.confirmed_lsn for c in self._confirmers.values()) if self.open else 0
    )
    patch.setattr(ConfirmedLsn, "lsn", highest)


def never_ask_for_a_new_epoch(patch: pytest.MonkeyPatch) -> None:
    # One of both ways to ask is enough, so both have to go.
    patch.setattr(FrameReceiver, "_break", lambda *_args, **_named: Received())
    patch.setattr(FrameReceiver, "tick", lambda *_args: None)


def forget_the_clock(patch: pytest.MonkeyPatch) -> None:
    begin = FrameSender.begin

    def naive(self: FrameSender, opening: object, *, clock_ns: int, now: float) -> bytes:
        self._highest_epoch = 0
        return begin(self, opening, clock_ns=clock_ns, now=now)  # type: ignore[arg-type]  # handed through

    patch.setattr(FrameSender, "begin", naive)


def wait_for_the_optional_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FrameSender, "tick", lambda *_args: [])


def overlook_what_the_slot_forgot(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Archiver, "begin", lambda self, _: self._find_place())


@pytest.mark.parametrize(
    "spoil",
    [
        confirm_what_is_published,
        overlook_a_hole,
        believe_any_epoch,
        follow_one_confirmer_only,
        never_ask_for_a_new_epoch,
        forget_the_clock,
        wait_for_the_optional_for_ever,
        overlook_what_the_slot_forgot,
    ],
)
def test_the_simulation_finds_what_is_broken_on_purpose(
    monkeypatch: pytest.MonkeyPatch, spoil: Callable[[pytest.MonkeyPatch], None]
) -> None:
    spoil(monkeypatch)
    with pytest.raises(BrokenPromiseError):
        histories(MUTANT_HISTORIES_MAX)


def histories(count: int) -> None:
    for seed in range(count):
        history(seed)
