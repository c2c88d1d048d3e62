"""Which LSN the publisher may confirm, and when a failure is over."""

from __future__ import annotations

from headrace.publisher.doubt import Doubt
from headrace.publisher.durability import Hold
from headrace.publisher.ledger import Ledger

HOLD_S = 64.0
# The interval of a hold has 64 steps.
STEP_S = 1.0


def test_a_mark_counts_once_all_messages_before_it_are_acknowledged() -> None:
    ledger = Ledger()
    ledger.mark(100, 2, whole=True)
    ledger.mark(200, 5, whole=True)
    assert [ledger.confirmable(acked) for acked in (0, 1, 2, 4, 5)] == [0, 0, 100, 100, 200]
    assert (ledger.waiting, ledger.transactions) == (False, 2)


def test_keepalives_between_two_messages_take_one_mark_at_the_highest_of_them() -> None:
    ledger = Ledger()
    ledger.mark(300, 1, whole=False)
    ledger.mark(250, 1, whole=False)
    assert ledger.confirmable(1) == 300
    ledger.mark(0, 1, whole=False)
    ledger.mark(0, 1, whole=False)
    assert ledger.confirmable(1) == 300
    assert ledger.transactions == 0


def test_an_lsn_is_held_back_for_the_whole_interval_after_its_acknowledgement() -> None:
    hold = Hold(HOLD_S)
    assert hold.confirmable(100, 10.0) == 0
    assert hold.confirmable(200, 20.0) == 0
    assert hold.confirmable(200, 10.0 + HOLD_S - 0.1) == 0
    assert hold.confirmable(200, 10.0 + HOLD_S) == 100
    assert hold.confirmable(200, 20.0 + HOLD_S - 0.1) == 100
    assert hold.confirmable(200, 20.0 + HOLD_S) == 200


def test_an_lsn_that_is_repeated_is_held_from_its_first_acknowledgement_on() -> None:
    hold = Hold(HOLD_S)
    for now in (10.0, 20.0, 30.0):
        hold.confirmable(100, now)
    assert hold.confirmable(100, 10.0 + HOLD_S) == 100
    hold.confirmable(100, 200.0)
    assert hold.confirmable(150, 210.0) == 100
    assert hold.confirmable(150, 210.0 + HOLD_S) == 150


def test_acknowledgements_close_to_each_other_are_held_until_the_last_of_them() -> None:
    hold = Hold(HOLD_S)
    hold.confirmable(100, 10.0)
    hold.confirmable(200, 10.0 + STEP_S / 2)
    hold.confirmable(300, 10.0 + STEP_S)
    assert hold.confirmable(300, 10.0 + HOLD_S) == 0
    assert hold.confirmable(300, 10.0 + STEP_S / 2 + HOLD_S) == 200
    assert hold.confirmable(300, 10.0 + STEP_S + HOLD_S) == 300


def test_without_an_interval_everything_is_confirmed_at_once() -> None:
    hold = Hold(0.0)
    assert [hold.confirmable(lsn, 10.0) for lsn in (100, 200)] == [100, 200]


def test_an_interval_below_a_second_holds_too() -> None:
    hold = Hold(0.5)
    assert hold.confirmable(100, 10.0) == 0
    assert hold.confirmable(100, 10.5) == 100


def test_a_new_epoch_confirms_nothing_beyond_what_has_come_in_it() -> None:
    hold = Hold(HOLD_S)
    hold.confirmable(500, 10.0)
    assert hold.confirmable(500, 10.0 + HOLD_S) == 500
    assert hold.confirmable(0, 11.0 + HOLD_S) == 0
    assert hold.confirmable(300, 12.0 + HOLD_S) == 300


def test_a_failure_is_over_once_everything_is_stored_that_was_read_before_it() -> None:
    healed = []
    doubt = Doubt(lambda: healed.append(True))
    assert (doubt.read_lsn, doubt.progressed) == (0, False)
    doubt.stored(0)
    assert len(healed) == 1, "nothing has failed"
    doubt.read(100)
    doubt.read(50)
    doubt.progressed = True
    doubt.begin()
    assert not doubt.progressed
    doubt.read(300)
    doubt.stored(99)
    assert len(healed) == 1
    doubt.stored(100)
    assert len(healed) == 2
