"""A mirror's report of itself, and the hold of a verification: in virtual time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.mirror.table import Phase
from tests.support.mirror_world import MirrorWorld


def insert(world: MirrorWorld, key: int, *names: str) -> int:
    """One transaction; returns its LSN."""
    with world.transaction() as tx:
        for name in names:
            tx.insert(name, id=key, name="new")
    lsn: int = tx.events[0]["tx"]["lsn"]
    return lsn


class Verifier:
    """Asks the mirror to hold, as `headrace verify` does."""

    def __init__(self, world: MirrorWorld) -> None:
        self.world = world
        self.answers: list[dict[str, Any]] = []
        self.client = world.client()

    def hold(self, lsn: int | None, for_s: float = 30.0) -> None:
        self.send(json.dumps({"lsn": lsn, "for_s": for_s}).encode())

    def send(self, body: bytes) -> None:
        subject = f"headrace.mirror.{self.world.mirror.book.identity}.hold"
        self.world.begin(self._ask(subject, body))

    async def _ask(self, subject: str, body: bytes) -> None:
        answer = await self.client.request(subject, body, timeout=200)
        self.answers.append(json.loads(answer.data))


def look(world: MirrorWorld) -> None:
    world.do(world.mirror.look())


# Holds.


def test_a_hold_stops_the_mirror_where_it_is_and_ends_with_the_next_request(
    ab: MirrorWorld,
) -> None:
    verifier = Verifier(ab)
    verifier.hold(0)
    ab.until(lambda: verifier.answers == [{"stopped": True}])
    insert(ab, 100, "a", "b")
    ab.past(10)
    assert ab.row("a", 100) is None
    verifier.hold(None)
    ab.settle()


@pytest.mark.parametrize("at_once", [True, False])
def test_a_held_mirror_continues_to_an_lsn_and_no_further(
    ab: MirrorWorld, *, at_once: bool
) -> None:
    verifier = Verifier(ab)
    verifier.hold(0)
    ab.until(lambda: bool(verifier.answers))
    ab.server.holds_back = at_once
    insert(ab, 100, "a", "b")
    lsn = insert(ab, 101, "a", "b")
    insert(ab, 102, "a", "b")
    verifier.hold(lsn)
    ab.past(0.5)
    ab.server.give_out_again()
    ab.until(lambda: ab.row("a", 100) is not None)
    ab.past(10)
    assert ab.row("a", 101) is None
    verifier.hold(None)
    ab.settle()


def test_a_hold_ends_with_its_time(ab: MirrorWorld) -> None:
    verifier = Verifier(ab)
    verifier.hold(0, for_s=5.0)
    ab.until(lambda: bool(verifier.answers))
    insert(ab, 100, "a")
    ab.past(4.0)
    assert ab.row("a", 100) is None
    ab.past(2.0)
    assert ab.row("a", 100) is not None


def test_no_hold_is_longer_than_two_minutes(ab: MirrorWorld) -> None:
    Verifier(ab).hold(0, for_s=100_000)
    ab.past(1.0)
    insert(ab, 100, "a")
    ab.past(118)
    assert ab.row("a", 100) is None
    ab.past(2.5)
    assert ab.row("a", 100) is not None


@pytest.mark.parametrize("body", [b"{", b"{}", b"[]", b'{"lsn": 1, "for_s": "x"}'])
def test_a_malformed_hold_changes_nothing(ab: MirrorWorld, body: bytes) -> None:
    Verifier(ab).send(body)
    insert(ab, 100, "a")
    ab.settle()


def test_a_hold_does_not_stop_a_mirror_whose_readers_wait_for_a_copy(ab: MirrorWorld) -> None:
    ab.copy_s = 10.0
    ab.rewrite("a", key=50)
    ab.until(lambda: bool(ab.mirror.awaited))
    Verifier(ab).hold(0, for_s=100.0)
    ab.until(lambda: ab.mirror.awaited == "", patience_s=30.0)


# Reports.


def test_a_mirror_reports_its_tables_and_how_far_it_is_behind(ab: MirrorWorld) -> None:
    numbers = ab.mirror.stats.number
    look(ab)
    assert numbers("mirror_tables") == 2
    assert numbers("mirror_unfollowed") == 0
    assert numbers("mirror_standing_seconds") == 0
    assert numbers("mirror_behind_messages") == 0
    lsn = insert(ab, 100, "a", "b")
    ab.settle()
    ab.past(0.1)
    assert numbers("mirror_events") == 2
    assert numbers("mirror_lsn") == lsn
    assert numbers("mirror_stream_seq") == 2
    assert numbers("mirror_bootstraps") == 2
    assert numbers("mirror_rows") == 8
    ab.server.holds_back = True
    insert(ab, 101, "a", "b")
    ab.past(0.5)
    look(ab)
    assert numbers("mirror_behind_messages") == 2


def test_a_mirror_that_follows_nothing_yet_is_not_behind(world: MirrorWorld) -> None:
    world.create("a", 5)
    insert(world, 100, "a")
    world.start()
    world.until(lambda: world.mirror is not None)
    assert not world.mirror.book.lanes
    look(world)
    assert "mirror_behind_messages" not in world.mirror.stats.values()


def test_a_mirror_reports_its_bootstraps(world: MirrorWorld) -> None:
    for name in ("a", "b", "c", "d", "e", "f"):
        world.create(name, 5)
    world.copy_s = 20.0
    world.start()
    world.past(5.0)
    assert sorted(world.mirror.unfollowed) == ["a", "b", "c", "d", "e", "f"]
    assert not world.mirror.is_whole
    assert world.mirror.following == []
    look(world)
    numbers = world.mirror.stats.number
    assert numbers("mirror_unfollowed") == 6
    assert numbers("mirror_bootstrapping") == 4, "a few at a time"
    assert numbers("mirror_waiting") == 2
    world.settle()
    assert world.mirror.is_whole
    assert world.mirror.progress == {}
    assert numbers("mirror_rows") == 30
    assert sorted(world.mirror.following) == ["a", "b", "c", "d", "e", "f"]


def test_progress_counts_the_rows_at_the_source_and_then_those_loaded(world: MirrorWorld) -> None:
    world.create("a", 30)
    world.copy_s = 5.0
    world.start()
    world.until(lambda: world.snapshots == ["a"])
    world.report("a", rows=12, rows_estimated=25)
    progress = world.mirror.progress["a"]
    world.until(lambda: progress.rows == 12)
    assert progress.rows_estimated == 25
    assert progress.rows_loaded == 0
    world.report("a", rows=13, rows_estimated=13)
    world.until(lambda: progress.rows_estimated == 13)
    # A table that was never analyzed: as many rows for each task as there were so far.
    world.report("a", rows=20, rows_estimated=0, tasks=4, tasks_done=2)
    world.until(lambda: progress.rows == 20)
    assert progress.rows_estimated == 40
    world.until(lambda: progress.rows_loaded == 9)
    assert progress.rows == 9
    assert progress.rows_estimated == 30


def test_a_mirror_reports_for_how_long_its_readers_stay_at_one_moment(ab: MirrorWorld) -> None:
    ab.copy_s = 20.0
    ab.rewrite("a", key=50)
    ab.until(lambda: bool(ab.mirror.awaited))
    look(ab)
    ab.past(7.0)
    look(ab)
    assert 7.0 <= ab.mirror.stats.number("mirror_standing_seconds") < 8.0
    assert ab.mirror.awaited.endswith("public.a (being copied)")
    ab.settle()
    look(ab)
    assert ab.mirror.stats.number("mirror_standing_seconds") == 0
    assert ab.mirror.awaited == ""


def test_a_server_that_is_away_is_reported_as_the_streams_trouble(ab: MirrorWorld) -> None:
    ab.server.stop()
    ab.past(15.0)
    assert ab.mirror.trouble
    assert ab.mirror.trouble_with == "stream"
    ab.server.start()
    insert(ab, 100, "a")
    ab.settle()


def test_a_stream_that_does_not_exist_yet_is_waited_for(world: MirrorWorld) -> None:
    stream = world.server.streams.pop("CDC")
    world.start()
    world.past(3.0)
    assert "CDC does not exist" in world.mirror.trouble
    world.server.streams["CDC"] = stream
    world.create("a", 2)
    world.settle()


def test_a_restarted_mirror_keeps_its_identity_and_its_consumer(ab: MirrorWorld) -> None:
    identity = ab.mirror.book.identity
    assert set(ab.server.streams["CDC"].consumers) == {f"mirror-{identity}"}
    ab.stop()
    ab.start()
    insert(ab, 100, "a")
    ab.settle()
    assert ab.mirror.book.identity == identity
    assert set(ab.server.streams["CDC"].consumers) == {f"mirror-{identity}"}


def test_a_dropped_table_counts_as_settled(ab: MirrorWorld) -> None:
    with ab.transaction() as tx:
        tx.drop("a")
        tx.insert("b", id=50, name="x")
    ab.settle()
    assert ab.mirror.is_whole
    assert ab.mirror.following == ["b"]
    assert ab.mirror.book.tables["a"].phase is Phase.GONE
