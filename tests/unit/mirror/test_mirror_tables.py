"""Tables of a mirror that come and go, and their copies: in virtual time, compared by SQL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.mirror.snapshots import SnapshotRefusedError
from headrace.mirror.table import Phase
from tests.support.mirror_world import MirrorWorld, mirrored

ONLY_A = (("public", "a"),)


# Tables that come and go.


def test_a_table_is_found_by_its_first_event(ab: MirrorWorld) -> None:
    with ab.transaction() as tx:
        tx.create("c")
        tx.insert("c", id=1, name="x")
    ab.settle()


def test_a_published_table_without_events_is_found_too(ab: MirrorWorld) -> None:
    ab.create("quiet", 2)
    ab.settle()


def test_a_published_table_is_found_beside_one_that_no_longer_is(ab: MirrorWorld) -> None:
    """Its last message in the bucket says that it was deleted."""
    ab.server.put("$KV.schemas.before", b"", {"KV-Operation": "DEL"})
    ab.create("quiet", 2)
    ab.settle()


def test_a_table_of_another_schema_is_kept_apart(tmp_path: Path) -> None:
    with mirrored(tmp_path, {"a": 2}) as world:
        world.create("b", 3, schema="app")
        world.settle()
        assert set(world.shown()) == {"a", "app.b"}
        world.changed("b")
        world.settle()


def test_a_table_that_is_dropped_goes_and_one_of_its_name_is_copied(ab: MirrorWorld) -> None:
    with ab.transaction() as tx:
        tx.drop("a")
        tx.insert("b", id=9, name="x")
    ab.settle()
    assert set(ab.shown()) == {"b"}
    assert ab.phase("a") is Phase.GONE
    with ab.transaction() as tx:
        tx.create("a")
        tx.insert("a", id=1, name="again")
    ab.settle()


def test_a_renamed_table_continues_under_its_new_name(tmp_path: Path) -> None:
    with mirrored(tmp_path, {"a": 3}, tables=ONLY_A) as world:
        with world.transaction() as tx:
            tx.rename("a", "people")
            tx.insert("people", id=9, name="x")
        world.settle()
        assert set(world.shown()) == {"people"}


def test_a_table_that_nobody_may_copy_is_an_error_if_it_is_named(tmp_path: Path) -> None:
    world = MirrorWorld(tmp_path, tables=ONLY_A)
    try:
        world.create("a", 3)
        world.rejected["a"] = "not published."
        world.start()
        world.until(lambda: bool(world.ended))
        assert isinstance(world.ended[0], SnapshotRefusedError)
        assert "no snapshot of a: not published" in str(world.ended[0])
        # The next run may name another one.
        world.create("b", 3)
        world.mirrored = (("public", "b"),)
        world.start()
        world.until(lambda: world.commits > 0 and set(world.shown()) == {"b"})
        assert len(world.ended) == 1
    finally:
        world.close()


def test_a_published_table_that_nobody_may_copy_is_left_out(world: MirrorWorld) -> None:
    world.create("a", 3)
    world.create("b", 3)
    world.rejected["b"] = "not published."
    world.start()
    world.until(lambda: world.commits > 0 and set(world.shown()) == {"a"})
    world.until(lambda: world.phase("b") is Phase.GONE)
    assert not world.ended


def test_a_named_table_that_was_dropped_is_waited_for_after_a_restart(tmp_path: Path) -> None:
    with mirrored(tmp_path, {"a": 3, "b": 3}, tables=(*ONLY_A, ("public", "b"))) as world:
        with world.transaction() as tx:
            tx.drop("a")
            tx.insert("b", id=9, name="x")
        world.settle()
        world.stop()
        world.start()
        world.past(5.0)
        assert not world.ended
        with world.transaction() as tx:
            tx.create("a")
            tx.insert("a", id=1, name="again")
        world.settle()


def test_a_followed_table_that_the_source_no_longer_copies_goes(ab: MirrorWorld) -> None:
    ab.rejected["a"] = "not published."
    ab.rewrite("a", key=60)
    ab.until(lambda: set(ab.shown()) == {"b"})
    # Old events say nothing about it; a new schema event does.
    del ab.rejected["a"]
    ab.past(5)
    assert ab.phase("a") is Phase.GONE
    with ab.transaction() as tx:
        tx.add_column("a", "c")
        tx.insert("a", id=61, name="x", c="y")
    ab.settle()


# Copies.


def test_a_snapshot_that_fails_is_requested_again(world: MirrorWorld) -> None:
    world.create("a", 3)
    world.fails_snapshots = 2
    world.start()
    world.settle()
    assert world.snapshots == ["a", "a", "a"]


def test_the_end_of_another_snapshot_of_the_table_is_not_its_own(world: MirrorWorld) -> None:
    world.create("a", 3)
    world.copy_s = 5.0
    world.start()
    world.past(2.0)
    other = {"snapshot_id": "other", "lsn": "0/1", "batch_count": 0, "row_count": 0}
    for body in ({**other, "source": "s"}, {**other, "source": "s"}):
        world.server.put("init.meta.a", json.dumps(body).encode())
    failed = {"snapshot_id": "other", "error": "it failed."}
    world.server.put("init.error.a", json.dumps(failed).encode())
    world.settle()
    assert world.snapshots == ["a"]


def test_a_responder_that_does_not_answer_is_asked_again(world: MirrorWorld) -> None:
    world.create("a", 3)
    world.responds = False
    world.start()
    world.past(40)
    assert world.commits > 0
    world.responds = True
    world.settle()


def test_a_killed_load_resumes_with_the_next_chunk(world: MirrorWorld) -> None:
    world.create("a", 30)
    world.start()

    def half() -> bool:
        table = world.mirror and world.mirror.book.tables.get("a")
        return bool(table and table.run and table.run.chunks == 5)

    world.until(half)
    world.kill()
    world.start()
    world.settle()
    assert world.snapshots == ["a"]
    assert world.loaded["a"] == 30, "no chunk is loaded twice"


def test_chunks_that_retention_removed_are_copied_again(world: MirrorWorld) -> None:
    world.create("a", 30)
    world.start()
    world.until(lambda: world.commits > 3)
    world.server.discard("INIT", world.server.streams["INIT"].last_seq + 1)
    world.settle()
    assert world.snapshots == ["a", "a"]


def test_a_snapshot_that_others_requested_is_taken_if_the_stream_reaches_back(
    world: MirrorWorld,
) -> None:
    world.create("a", 3)
    world.changed("a", key=40)
    world.past(1)
    world.joined = True
    world.start()
    world.settle()
    assert world.snapshots == ["a"]


def test_a_joined_snapshot_from_before_the_stream_is_not_taken(world: MirrorWorld) -> None:
    world.create("a", 3)
    world.changed("a", key=40)
    world.past(1)
    world.server.discard("CDC", 2)
    world.joined = True
    world.start()
    world.past(5)
    assert "a" not in world.shown()
    world.joined = False
    world.settle()


def test_changes_while_a_table_is_copied_are_applied_to_the_copy(world: MirrorWorld) -> None:
    world.create("a", 6)
    world.copy_s = 5.0
    world.start()
    world.past(2)
    with world.transaction() as tx:
        tx.update("a", 1, name="changed")
        tx.delete("a", 2)
        tx.add_column("a", "c")
        tx.insert("a", id=10, name="x", c="y")
    world.settle()
    assert world.snapshots == ["a"]


@pytest.mark.parametrize("reason", ["slot_moved", "source_diverged"])
def test_a_table_that_came_back_just_before_a_gap_is_copied(ab: MirrorWorld, reason: str) -> None:
    with ab.transaction() as tx:
        tx.drop("a")
        tx.insert("b", id=9, name="x")
    ab.settle()
    ab.server.holds_back = True
    with ab.transaction() as tx:
        tx.insert("b", id=10, name="x")
    with ab.transaction() as tx:
        tx.create("a")
        tx.insert("a", id=1, name="again")
    ab.gap(reason)
    ab.past(1.0)
    ab.server.hiccup = 0.0
    ab.server.latency = lambda: 0.0001  # type: ignore[method-assign]  # all at one moment
    ab.server.give_out_again()
    ab.settle()
