"""A mirror step by step: scripts of events and faults in virtual time, compared by SQL.

`MirrorWorld` checks the rules that always hold: readers see moments of the source, in order.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from headrace.consumer import ReaderTakenOverError
from headrace.mirror import follower
from headrace.mirror.table import Phase
from headrace.mirror.target import (
    CommitRefusedError,
    InsertRows,
    Step,
    TargetAwayError,
    TargetError,
)
from tests.support.mirror_world import MirrorWorld, mirrored

A_AND_B = {"a": 4, "b": 4}
ONLY_A = (("public", "a"),)


def tamper(world: MirrorWorld, statement: str) -> None:
    """Somebody changes the file."""
    connection = sqlite3.connect(world.path)
    with connection:
        connection.execute(statement)
    connection.close()


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


# Copies and gaps.


@pytest.mark.parametrize("reason", ["slot_moved", "source_diverged"])
def test_a_gap_while_the_source_copies_a_table_is_not_missed(
    world: MirrorWorld, reason: str
) -> None:
    """The follower passes the gap while it knows no snapshot of the table."""
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


def test_a_gap_of_another_source_or_from_before_a_snapshot_costs_no_copy(
    world: MirrorWorld,
) -> None:
    world.create("a", 4)
    world.copy_s = 3.0
    world.start()
    world.past(1.0)
    world.gap()
    world.gap(source="other")
    world.settle()
    world.past(10)
    assert world.snapshots == ["a"]


# Tables that the target refuses, or has changed.


def refusing(table: str, kind: type[Step] = InsertRows) -> Callable[[Sequence[Step]], None]:
    def refuse(steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, kind) and step.table.name == table:
                raise TargetError(f"no room for {table}")

    return refuse


def test_a_table_that_the_target_refuses_is_parked_and_the_others_continue(
    ab: MirrorWorld,
) -> None:
    ab.refuses = refusing("b")
    ab.checks = False
    ab.changed("a", "b")
    ab.until(lambda: ab.phase("b") is Phase.PARKED and ab.row("a", 100) is not None)
    assert ab.mirror.parked == {"b": "no room for b"}
    assert ab.row("b", 100) is None
    ab.changed("a", "b", key=101)
    ab.until(lambda: ab.row("a", 101) is not None)
    assert ab.phase("b") is Phase.PARKED
    # A restart tries it again.
    ab.stop()
    ab.refuses = lambda _: None
    ab.start()
    ab.settle()
    assert ab.mirror.parked == {}


def test_a_parked_table_stays_parked_while_the_target_comes_and_goes(ab: MirrorWorld) -> None:
    ab.refuses = refusing("b")
    ab.checks = False
    ab.changed("a", "b")
    ab.until(lambda: ab.phase("b") is Phase.PARKED)
    copies = list(ab.snapshots)
    ab.refuses = away
    ab.changed("a", key=101)
    ab.until(lambda: "nobody answers" in ab.mirror.trouble)
    ab.refuses = refusing("b")
    ab.until(lambda: ab.row("a", 101) is not None)
    ab.past(5.0)
    assert (ab.phase("b"), ab.snapshots) == (Phase.PARKED, copies)


def test_a_parked_table_is_copied_again_once_its_shape_changes(ab: MirrorWorld) -> None:
    ab.refuses = refusing("b")
    ab.checks = False
    ab.changed("a", "b")
    ab.until(lambda: ab.phase("b") is Phase.PARKED)
    ab.refuses = lambda _: None
    with ab.transaction() as tx:
        tx.add_column("b", "c")
        tx.insert("b", id=7, name="x", c="y")
    ab.settle()


def test_a_table_that_cannot_be_loaded_is_parked(world: MirrorWorld) -> None:
    world.refuses = refusing("b")
    world.create("a", 3)
    world.create("b", 3)
    world.start()
    world.until(lambda: world.commits > 0 and "b" in world.mirror.parked)
    world.until(lambda: set(world.shown()) == {"a"})
    assert world.mirror.is_whole


def test_a_target_that_refuses_its_only_table_is_an_error(tmp_path: Path) -> None:
    with mirrored(tmp_path, {"a": 2}) as world:
        world.refuses = refusing("a")
        world.changed("a")
        world.until(lambda: bool(world.ended))
        assert "no room for a" in str(world.ended[0])


def test_a_commit_that_the_target_refuses_parks_the_table_that_it_names(ab: MirrorWorld) -> None:
    def refuse() -> None:
        if ab.phase("b") is not Phase.PARKED and ab.writes["b"]:
            raise CommitRefusedError("a deferred constraint", ("public", "b"))

    ab.refuses_commit = refuse
    ab.checks = False
    ab.changed("a", "b")
    ab.until(lambda: ab.phase("b") is Phase.PARKED and ab.row("a", 100) is not None)


def test_a_commit_refused_without_a_table_is_tried_again(ab: MirrorWorld) -> None:
    refused = [True]

    def refuse() -> None:
        if refused[0] and ab.writes["a"]:
            raise CommitRefusedError("a trigger", None)

    ab.refuses_commit = refuse
    ab.changed("a")
    ab.until(lambda: "a trigger" in ab.mirror.trouble)
    assert ab.mirror.trouble_with == "target"
    refused[0] = False
    ab.settle()
    assert ab.mirror.trouble == ""


def away(_: Sequence[Step]) -> None:
    raise TargetAwayError("nobody answers")


def test_a_target_that_is_away_is_waited_for(ab: MirrorWorld) -> None:
    ab.refuses = away
    ab.changed("a")
    ab.until(lambda: "nobody answers" in ab.mirror.trouble)
    assert ab.mirror.trouble_with == "target"
    assert not ab.ended
    before = list(ab.snapshots)
    ab.refuses = lambda _: None
    ab.settle()
    assert ab.snapshots == before, "being away is no reason for a copy"


def test_a_row_that_the_file_lacks_is_repaired_by_a_copy(ab: MirrorWorld) -> None:
    ab.checks = False
    tamper(ab, "DELETE FROM a WHERE id = 2")
    with ab.transaction() as tx:
        tx.update("a", 2, name="changed")
        tx.insert("b", id=9, name="new")
    ab.settle()
    assert ab.snapshots == ["a", "b", "a"]
    assert ab.mirror.stats.number("mirror_mismatches") == 1


def test_a_mirror_that_has_worked_for_a_while_tries_again_soon(ab: MirrorWorld) -> None:
    """Each attempt in vain makes the next pause longer."""
    ab.refuses = away
    ab.changed("a")
    ab.past(60.0)
    ab.refuses = lambda _: None
    ab.settle()
    ab.past(40.0)
    ab.refuses = away
    ab.changed("a", key=101)
    ab.until(lambda: "nobody answers" in ab.mirror.trouble)
    ab.refuses = lambda _: None
    ab.until(lambda: ab.row("a", 101) is not None, 1.5)


# Fresh tables.


def stale(world: MirrorWorld) -> list[tuple[str, ...]]:
    connection = sqlite3.connect(world.path)
    query = 'SELECT schema_name, table_name, lsn, reason FROM "headrace_mirror.stale_tables"'
    found = [tuple(row) for row in connection.execute(query)]
    connection.close()
    return found


def test_fresh_tables_continue_and_the_older_one_is_named(tmp_path: Path) -> None:
    with mirrored(tmp_path, A_AND_B, fresh=True) as world:
        assert stale(world) == []
        world.changed("a", key=50)
        world.settle()
        until = world.source.end
        world.copy_s = 20.0
        world.rewrite("a", "b", key=60)
        world.until(lambda: world.row("b", 60) is not None)
        assert world.row("a", 60) is None
        world.until(lambda: bool(stale(world)))
        assert stale(world) == [("public", "a", f"0/{until:X}", "table_rewritten")]
        world.changed("b", key=70)
        world.until(lambda: world.row("b", 70) is not None)
        assert len(stale(world)) == 1
        world.settle()
        world.past(3.0)
        assert stale(world) == []
        # Without the option, the list goes with the next run.
        world.stop()
        world.fresh = False
        world.start()
        world.settle()
        world.changed("a", key=80)
        world.settle()
        with pytest.raises(sqlite3.OperationalError):
            stale(world)


def test_tables_wait_for_one_that_is_copied_again(ab: MirrorWorld) -> None:
    ab.copy_s = 20.0
    ab.rewrite("a", "b", key=60)
    ab.past(10)
    assert ab.row("b", 60) is None
    assert "public.a (being copied)" in ab.mirror.awaited
    ab.settle()
    assert ab.mirror.awaited == ""


# The stream.


def test_a_mirror_that_retention_has_overtaken_copies_its_tables_again(ab: MirrorWorld) -> None:
    ab.stop()
    ab.changed("a", "b")
    ab.past(1)
    ab.server.discard("CDC", ab.server.streams["CDC"].last_seq + 1)
    ab.start()
    ab.settle()
    assert ab.mirror.stats.number("mirror_retention_gaps") == 1
    assert ab.snapshots == ["a", "b", "a", "b"]


def test_a_message_that_is_missing_from_the_middle_is_not_passed_over(ab: MirrorWorld) -> None:
    ab.server.holds_back = True
    ab.changed("a", key=50)
    ab.changed("a", key=51)
    ab.changed("a", key=52)
    ab.past(1)
    ab.server.streams["CDC"].delete(2)
    ab.server.give_out_again()
    ab.settle()
    assert ab.mirror.stats.number("mirror_retention_gaps") == 1


def test_another_source_log_is_followed_from_its_own_positions(ab: MirrorWorld) -> None:
    """Behind source_diverged, smaller LSNs are new changes."""
    ab.changed("a", "b")
    ab.settle()
    ab.source.end = 0x100
    ab.gap("source_diverged")
    ab.changed("a", "b", key=101)
    ab.settle()
    ab.changed("a", "b", key=102)
    ab.settle()
    assert ab.snapshots == ["a", "b", "a", "b"]


def test_nothing_is_read_twice_after_a_quiet_time(ab: MirrorWorld) -> None:
    """The place of an idle mirror moves with the stream, so that retention can't overtake it."""
    with ab.transaction() as tx:
        tx.message()
    ab.past(20)
    ab.stop()
    ab.server.discard("CDC", ab.server.streams["CDC"].last_seq + 1)
    ab.start()
    ab.changed("a")
    ab.settle()
    assert ab.snapshots == ["a", "b"]
