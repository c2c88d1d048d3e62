"""A mirror through faults in the middle of its work: torn, large and held transactions, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.consumer.event import Event, of_message
from headrace.jetstream.object_store import ObjectStore
from headrace.mirror import follower
from headrace.mirror.changes import outdated, staged_steps
from headrace.mirror.event_steps import Resync
from headrace.mirror.snapshots import SnapshotError, Snapshots, StoredSnapshot
from headrace.mirror.table import BootstrapRun, Column, Phase, Table
from headrace.mirror.target import AlterTable, InsertRows
from tests.support.mirror_world import MirrorWorld, mirrored
from tests.support.virtual_nats import STREAMS, VirtualNats

ONLY_A = (("public", "a"),)


def large(world: MirrorWorld, count: int, first: int = 100) -> list[dict[str, Any]]:
    """The events of a transaction that nobody has sent yet."""
    with world.transaction(send=False) as tx:
        for number in range(count):
            tx.insert("a", id=first + number, name="new")
    return tx.events


def send_spilled(
    world: MirrorWorld, monkeypatch: pytest.MonkeyPatch, count: int = 10
) -> dict[str, Any]:
    """Send a large transaction, which the follower spills, but not its last event: returned."""
    monkeypatch.setattr(follower, "SPILL_EVENTS", 4)
    *events, end = large(world, count)
    for event in events:
        world.send(event)
    return end


# Parts of transactions.


def test_a_restart_in_the_middle_of_a_transaction_reads_it_again(ab: MirrorWorld) -> None:
    events = large(ab, 3)
    ab.send(events[0])
    ab.send(events[1])
    ab.past(20.0)
    ab.kill()
    ab.start()
    ab.past(1.0)
    ab.send(events[2])
    ab.settle()


def test_a_large_transaction_is_written_before_it_ends_and_shown_as_one(
    ab: MirrorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = send_spilled(ab, monkeypatch)
    ab.past(10.0)
    assert ab.writes["a"] > 0
    assert ab.row("a", 100) is None
    ab.send(end)
    ab.settle()


def test_a_bootstrap_waits_for_a_large_transaction(
    ab: MirrorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = send_spilled(ab, monkeypatch)
    ab.past(2.0)
    ab.create("c", 5)
    ab.past(20.0)
    assert set(ab.shown()) == {"a", "b"}
    ab.send(end)
    ab.settle()


@pytest.mark.parametrize("reason", ["slot_moved", "source_diverged"])
@pytest.mark.parametrize("count", [3, 9])
def test_a_transaction_that_a_gap_cuts_off_is_never_shown(
    ab: MirrorWorld, monkeypatch: pytest.MonkeyPatch, count: int, reason: str
) -> None:
    """A large one is partly written by then."""
    send_spilled(ab, monkeypatch, count + 1)
    ab.past(1.0)
    ab.gap(reason)
    with ab.transaction() as tx:
        tx.insert("b", id=50, name="behind the gap")
    ab.settle()
    assert ab.snapshots == ["a", "b", "a", "b"]


def test_a_fresh_mirror_shows_nothing_of_a_transaction_that_a_gap_cuts_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table keeps its rows until its copy is complete, and other tables continue."""
    monkeypatch.setattr(follower, "SPILL_EVENTS", 4)
    with mirrored(tmp_path, {"a": 4, "b": 4}, fresh=True) as world:
        for event in large(world, 10)[:-1]:
            world.send(event)
        world.until(lambda: world.writes["a"] > 0)
        world.copy_s = 10.0
        world.gap()
        with world.transaction() as tx:
            tx.insert("b", id=50, name="behind the gap")
        world.until(lambda: world.phase("a") is Phase.WANTED)
        world.past(5.0)
        assert world.row("a", 100) is None
        world.settle()


def test_a_gap_tears_no_transaction_behind_it(
    ab: MirrorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    up_to = ab.source.end
    end = send_spilled(ab, monkeypatch)
    ab.past(1.0)
    tx = {"xid": 0, "lsn": up_to, "ts": None, "seq": 0, "last": False}
    gap = {"operation": "GAP", "source": "s", "tx": tx, "reason": "slot_moved"}
    ab.send({**gap, "up_to": f"0/{up_to - 16:X}"})
    ab.send(end)
    ab.settle()
    assert ab.snapshots == ["a", "b"], "both were copied from behind it"


def test_many_small_transactions_are_committed_together(
    ab: MirrorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "COMMIT_EVENTS", 5)
    ab.server.holds_back = True
    for number in range(12):
        with ab.transaction() as tx:
            tx.insert("a", id=100 + number, name="new")
    ab.past(1.0)
    before = ab.commits
    ab.server.hiccup = 0.0
    ab.server.latency = lambda: 0.0001  # type: ignore[method-assign]  # all at one moment
    ab.server.give_out_again()
    ab.settle()
    assert 2 <= ab.commits - before <= 5


def test_large_values_are_written_before_they_fill_the_memory(
    ab: MirrorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = large(ab, 4)
    bodies = {str(event["data"]["id"]): json.dumps(event).encode() for event in events}

    async def get(_: ObjectStore, name: str) -> bytes:
        return bodies[name]

    monkeypatch.setattr(ObjectStore, "get", get)
    monkeypatch.setattr(follower, "SPILL_BYTES", 1000)
    for event in events[:3]:
        name = str(event["data"]["id"])
        small = {**event, "data": {"id": event["data"]["id"]}}
        ab.send({**small, "reference": {"bucket": "large", "name": name, "bytes": 600}})
    ab.past(2.0)
    assert ab.writes["a"] > 0
    ab.send(events[3])
    ab.settle()


def test_arrays_are_applied_once_through_restarts(ab: MirrorWorld) -> None:
    for number in range(6):
        with ab.transaction(arrays=True) as tx:
            tx.insert("a", id=100 + number, name="new")
            tx.update("b", 1, name=f"changed {number}")
            tx.insert("a", id=200 + number, name="new")
        ab.past(0.02)
        if number % 2:
            ab.kill()
            ab.start()
    ab.settle()
    assert ab.mirror.stats.number("mirror_mismatches") == 0


# Tables.


def test_a_row_of_an_unknown_shape_asks_for_a_copy(ab: MirrorWorld) -> None:
    """Its schema event is missing."""
    ab.source.tables["a"].columns["c"] = "text"
    for row in ab.source.tables["a"].rows.values():
        row["c"] = None
    ab.republish("a")
    with ab.transaction() as tx:
        tx.insert("a", id=50, name="x", c="y")
    ab.settle()
    assert ab.snapshots == ["a", "b", "a"]


def test_a_table_is_found_in_the_stream_before_the_bucket_has_it(ab: MirrorWorld) -> None:
    ab.keeps_schemas = False
    with ab.transaction() as tx:
        tx.create("c")
    ab.past(0.5)
    with ab.transaction() as tx:
        tx.insert("c", id=1, name="x")
    ab.settle()


def test_a_fresh_mirror_follows_a_renamed_table(tmp_path: Path) -> None:
    with mirrored(tmp_path, {"a": 3}, tables=ONLY_A, fresh=True) as world:
        with world.transaction() as tx:
            tx.rename("a", "people")
            tx.insert("people", id=9, name="x")
        world.until(lambda: set(world.shown()) == {"people"})
        world.settle()


def test_a_table_that_came_back_while_it_was_refused_is_asked_for_again(tmp_path: Path) -> None:
    with mirrored(tmp_path, {"a": 3, "b": 3}, fresh=True) as world:
        world.answer_s = 3.0
        world.rejected["a"] = "not published."
        world.rewrite("a", key=50)
        world.past(1.0)
        with world.transaction() as tx:
            tx.add_column("a", "c")
            tx.insert("a", id=51, name="x", c="y")
        world.past(2.5)
        del world.rejected["a"]
        world.settle()


def test_a_bootstrap_that_is_overtaken_begins_again(tmp_path: Path) -> None:
    with mirrored(tmp_path, {"a": 90, "b": 3}) as world:
        world.copy_s = 2.0
        for _ in range(2):
            with world.transaction(lost=True) as tx:
                tx.update("a", 1, name="lost")
            world.gap()
            with world.transaction() as tx:
                tx.update("a", 2, name="x")
            world.until(lambda: world.phase("a") is Phase.LOADING)
        world.settle()


def test_a_bootstrap_that_is_overtaken_while_it_loads_writes_nothing_more(
    world: MirrorWorld,
) -> None:
    world.create("a", 30)
    world.start()
    world.until(lambda: world.loaded["a"] >= 6)
    world.mirror.book.want("public", "a", "another one")
    world.settle()
    assert world.snapshots == ["a", "a"]


def test_a_snapshot_is_looked_for_now_and_then(world: MirrorWorld) -> None:
    world.create("a", 3)
    world.copy_s = 20.0
    world.start()
    world.past(15.0)
    before = len(world.server.asked)
    world.past(4.0)
    assert 10 <= len(world.server.asked) - before <= 40
    world.settle()


@pytest.mark.parametrize(
    ("first_seq", "lsn", "source", "place"),
    [
        # Nothing was lost, whenever it began.
        (1, 10, "s", 0),
        (1, 999, "t", 0),
        # The lost changes are from before an event that the snapshot contains.
        (3, 99, "s", 2),
        (3, 100, "s", None),
        (3, 99, "t", None),
    ],
)
def test_a_joined_snapshot_has_a_place_only_where_the_stream_reaches_back_to_it(
    first_seq: int, lsn: int, source: str, place: int | None
) -> None:
    nats = VirtualNats()
    for _ in range(4):
        tx = {"xid": lsn, "lsn": lsn, "ts": None, "seq": 0, "last": True}
        names = {"table": "a", "schema": "public", "source": source, "operation": "INSERT"}
        nats.server.put("cdc.a.insert", json.dumps({**names, "data": {}, "tx": tx}).encode())
    nats.server.discard("CDC", first_seq)
    joined = StoredSnapshot("snap", "a", 100, 1, 1, "s", note=None)
    found = Snapshots(nats.client(), STREAMS.cdc, STREAMS.init, STREAMS.state).place(joined)
    if place is None:
        with pytest.raises(SnapshotError, match="does not reach back"):
            nats.do(found)
    else:
        assert nats.do(found) == place
    nats.close()


def test_a_mirror_listens_to_no_more_than_it_needs(ab: MirrorWorld) -> None:
    ab.past(1.0)
    (subscriptions,) = (list(one.subs.values()) for one in ab.server.connections)
    assert sorted(subject.split(".")[0] for subject in subscriptions) == [
        "_INBOX", "_INBOX", "headrace",
    ]  # fmt: skip


def test_an_event_may_find_a_table_in_the_middle_of_its_load(world: MirrorWorld) -> None:
    world.create("a", 60)
    world.create("b", 3)
    world.start()
    world.until(lambda: bool(world.mirror) and "a" in world.mirror.book.tables)
    for number in range(20):
        with world.transaction() as tx:
            tx.update("a", number, name="changed")
            tx.insert("b", id=100 + number, name="new")
        world.past(0.03)
    world.settle()
    assert sorted(world.snapshots) == ["a", "b"]


# Copies and the events around them.

USERS = Table(
    "public", "a", (Column("id", "integer"), Column("name", "text")), ("id",), ("id",), True
)
RUN = BootstrapRun("snap", 100, 1, 1, USERS, version=3, source="s")


def event(operation: str, lsn: int, **more: Any) -> Event:
    tx = {"xid": lsn, "lsn": lsn, "ts": None, "seq": 0, "last": True}
    names = {"table": "a", "schema": "public", "source": "s", "operation": operation}
    body = {**names, "data": {"id": 1, "name": "x"}, "tx": tx, **more}
    (made,) = of_message(json.dumps(body).encode(), "cdc.a.x", 1)
    return made


def schema(lsn: int, version: int, *columns: str, **more: Any) -> Event:
    shape = [{"name": name, "data_type": "integer" if name == "id" else "text"} for name in columns]
    about = {"columns": shape, "primary_key": ["id"], "identity": ["id"], "replica_identity": "d"}
    changes = {"changes": [], "resync": False, "version": version}
    return event("SCHEMA", lsn, **{**about, **changes, **more})


def test_a_copy_contains_events_from_before_its_snapshot() -> None:
    assert staged_steps(event("INSERT", 99), RUN) == ([], RUN)
    assert staged_steps(event("INSERT", 100), RUN) == (
        [InsertRows(USERS, ({"id": 1, "name": "x"},))],
        RUN,
    )


def test_a_row_of_another_shape_makes_a_copy_useless() -> None:
    assert isinstance(staged_steps(event("INSERT", 100, data={"other": 1}), RUN), Resync)


def test_a_schema_event_alters_a_copy() -> None:
    found = staged_steps(schema(100, 4, "id", "name", "c"), RUN)
    assert not isinstance(found, Resync)
    (step,), run = found
    assert isinstance(step, AlterTable)
    assert [column.name for column in run.staged.columns] == ["id", "name", "c"]
    assert run.staged.staging
    assert run.version == 4
    assert staged_steps(schema(100, 4, "id", "name"), RUN)[1].version == 4  # type: ignore[index]  # no Resync
    assert isinstance(staged_steps(schema(100, 4, "id", "name", resync=True), RUN), Resync)


def test_the_end_of_a_table_leaves_its_copy_to_the_follower() -> None:
    gone = schema(100, 4, changes=[{"change": "table_dropped"}])
    found = staged_steps(gone, RUN)
    assert not isinstance(found, Resync)
    assert found[0] == []


def test_an_older_event_of_a_newer_shape_shows_that_the_columns_were_outdated() -> None:
    assert isinstance(staged_steps(schema(99, 4, "id", "name", "c"), RUN), Resync)
    assert staged_steps(schema(99, 4, "id", "name"), RUN) == ([], RUN)
    assert staged_steps(schema(99, 3, "id", "name", "c"), RUN) == ([], RUN)
    assert staged_steps(schema(99, 4), RUN) == ([], RUN)
    assert outdated(USERS, 3, schema(99, 4, "id"))
    assert not outdated(USERS, 3, schema(99, 4, "name", "id")), "order is no shape"


@pytest.mark.parametrize(
    ("source", "up_to", "reason", "is_cut"),
    [
        ("s", 101, "slot_moved", True),
        ("s", 100, "slot_moved", False),
        ("t", 101, "slot_moved", False),
        ("s", 50, "source_diverged", True),
        ("t", 50, "source_diverged", False),
    ],
)
def test_a_gap_behind_its_snapshot_makes_a_copy_useless(
    source: str, up_to: int, reason: str, *, is_cut: bool
) -> None:
    gap = event("GAP", up_to, source=source, up_to=f"0/{up_to:X}", reason=reason)
    assert isinstance(staged_steps(gap, RUN), Resync) is is_cut


def test_a_copy_has_the_columns_of_its_snapshots_moment(world: MirrorWorld) -> None:
    """The newest known schema is from behind it, and fills a column in all of its rows."""
    world.create("a", 4)
    world.copy_s = 3.0
    world.start()
    world.past(1.0)
    with world.transaction() as tx:
        tx.add_column("a", "c", "filled")
        tx.insert("a", id=50, name="x", c="y")
    world.settle()
    assert world.snapshots == ["a"]
