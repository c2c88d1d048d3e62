"""What a mirror does, step by step: scripts of events and faults in virtual time, compared by SQL.

`MirrorWorld` has the rules that hold everywhere: readers see moments of the source, in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.consumer import ReaderTakenOverError
from headrace.mirror import follower
from tests.support.mirror_world import MirrorWorld, mirrored

A_AND_B = {"a": 4, "b": 4}
ONLY_A = (("public", "a"),)


@pytest.fixture
def ab(tmp_path: Path) -> Iterator[MirrorWorld]:
    """A mirror of everything: two tables."""
    with mirrored(tmp_path, A_AND_B) as world:
        yield world


# Transactions.


def test_a_transaction_is_shown_once_its_last_event_has_arrived(ab: MirrorWorld) -> None:
    with ab.transaction(send=False) as tx:
        tx.insert("a", id=11, name="new")
        tx.insert("b", id=11, name="new")
    ab.send(tx.events[0])
    ab.past(30)
    assert ab.row("a", 11) is None
    ab.send(tx.events[1])
    ab.settle()


def test_the_end_of_a_transaction_may_be_an_event_of_another_table(tmp_path: Path) -> None:
    with mirrored(tmp_path, {"a": 2, "c": 2}, tables=ONLY_A) as world:
        with world.transaction(send=False) as tx:
            tx.insert("a", id=10, name="new")
            tx.insert("c", id=10, name="new")
        world.send(tx.events[0])
        world.past(30)
        assert world.row("a", 10) is None
        world.send(tx.events[1])
        world.settle()


def test_a_large_transaction_that_ends_in_another_table_is_shown_without_further_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything of it is written, and nothing of it is left in memory."""
    monkeypatch.setattr(follower, "SPILL_EVENTS", 4)
    with mirrored(tmp_path, {"a": 2, "c": 2}, tables=ONLY_A) as world:
        with world.transaction() as tx:
            for number in range(4):
                tx.insert("a", id=10 + number, name="new")
            tx.insert("c", id=10, name="new")
        world.settle()


def test_a_later_transaction_ends_one_whose_end_is_not_for_the_mirror(tmp_path: Path) -> None:
    with mirrored(tmp_path, {"a": 2, "c": 2}, tables=ONLY_A) as world:
        world.server.unanswered.add("STREAM.MSG.GET")
        with world.transaction() as tx:
            tx.insert("a", id=10, name="new")
            tx.insert("c", id=10, name="new")
        world.past(5)
        assert world.row("a", 10) is None
        with world.transaction() as tx:
            tx.insert("a", id=11, name="new")
        world.settle()


@pytest.mark.parametrize("others", [5, 40])
def test_the_end_is_found_behind_many_events_of_other_tables(tmp_path: Path, others: int) -> None:
    with mirrored(tmp_path, {"a": 2, "c": 2}, tables=ONLY_A) as world:
        with world.transaction() as tx:
            tx.insert("a", id=10, name="new")
            for number in range(others):
                tx.insert("c", id=10 + number, name="new")
        world.settle()


def test_arrays_are_shown_once_the_publisher_calls_their_transactions_complete(
    ab: MirrorWorld,
) -> None:
    with ab.transaction(arrays=True) as tx:
        tx.insert("a", id=10, name="new")
        tx.insert("b", id=10, name="new")
        tx.insert("a", id=11, name="new")
    ab.settle()


def test_nothing_is_copied_again_after_a_restart(ab: MirrorWorld) -> None:
    before = list(ab.snapshots)
    ab.stop()
    with ab.transaction() as tx:
        tx.insert("a", id=10, name="while it was away")
    ab.start()
    ab.settle()
    ab.kill()
    with ab.transaction() as tx:
        tx.delete("a", 10)
    ab.start()
    ab.settle()
    assert ab.snapshots == before


def test_a_mirror_that_another_one_has_replaced_writes_nothing_more(ab: MirrorWorld) -> None:
    ab.start()
    ab.past(1.0)
    with ab.transaction() as tx:
        tx.insert("a", id=10, name="new")
    ab.until(lambda: bool(ab.ended))
    assert isinstance(ab.ended[0], ReaderTakenOverError)
    ab.settle()


# What a table's copy is from.


@pytest.mark.parametrize("reason", ["slot_moved", "source_diverged"])
def test_a_gap_while_the_source_copies_a_table_is_not_missed(tmp_path: Path, reason: str) -> None:
    """The follower passes the gap while it knows no snapshot of the table."""
    world = MirrorWorld(tmp_path)
    try:
        world.create("a", 4)
        world.copy_s = 3.0
        world.start()
        world.past(1.0)
        with world.transaction(lost=True) as tx:
            tx.update("a", 1, name="lost")
        world.gap(reason)
        with world.transaction() as tx:
            tx.update("a", 2, name="behind the gap")
        world.settle()
    finally:
        world.close()


def test_a_gap_of_another_source_or_from_before_a_snapshot_costs_no_copy(tmp_path: Path) -> None:
    world = MirrorWorld(tmp_path)
    try:
        world.create("a", 4)
        world.copy_s = 3.0
        world.start()
        world.past(1.0)
        world.gap()
        world.gap(source="other")
        world.settle()
        world.past(10)
        assert world.snapshots == ["a"]
    finally:
        world.close()
