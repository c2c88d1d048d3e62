"""A verification of a mirror at one LSN, while both move: in virtual time, with a played source.

The source's rows come from the world's dictionary as PostgreSQL prints them.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import sqlite3
from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.contract.values import ArrayForm
from headrace.mirror.sqlite import SqliteTarget
from headrace.mirror.target import InsertRows, TargetError
from headrace.settings import FormatSettings, Settings
from headrace.spark.source import TableRefusedError
from headrace.verify import check, source
from headrace.verify.check import NoMirrorError, NotThereError, Patience, Verdict, Verifier
from headrace.verify.digest import Difference, RowFault
from headrace.verify.sql_rows import SqlRows
from headrace.verify.types import SqlType
from tests.support.mirror_world import MirrorWorld, SourceTable, mirrored


def sql_type(kind: str) -> SqlType:
    element = kind.removesuffix("[]")
    return SqlType(kind, None if element == kind else SqlType(element))


def printed(value: Any) -> str:
    if isinstance(value, list):
        return f"{{{','.join(map(str, value))}}}"
    return str(value)


class Sides:
    """The source as a verifier sees it: a snapshot at an LSN, and how far the stream is."""

    def __init__(self, world: MirrorWorld) -> None:
        self.world = world
        self.reached: int | None = None
        self.refused = ""
        self.held: SourceTable | None = None
        self.snapshots = 0
        # Called when a snapshot is held.
        self.meanwhile: list[Any] = []
        self.columns: list[str] | None = None
        # How long it takes to read the rows.
        self.read_s = 0.0

    @contextlib.asynccontextmanager
    async def held_snapshot(self, _settings: Any, request: Any) -> AsyncIterator[Any]:
        if self.refused:
            raise TableRefusedError(self.refused, remedy="x")
        self.held = copy.deepcopy(self.world.source.tables[request.table])
        self.snapshots += 1
        names = self.columns or list(self.held.columns)
        lsn = self.world.source.end
        while self.meanwhile:
            self.meanwhile.pop(0)()
        yield SimpleNamespace(
            lsn=lsn,
            columns=[SimpleNamespace(name=name) for name in names],
            storages=[SimpleNamespace(relation="t")],
            conditions=[],
        )

    async def confirmed_lsn(self, _settings: Any) -> int:
        return self.world.source.end if self.reached is None else self.reached

    @contextlib.asynccontextmanager
    async def in_snapshot(self, *_: Any) -> AsyncIterator[None]:
        yield None

    async def types_of(self, *_: Any) -> dict[str, SqlType]:
        assert self.held is not None
        return {name: sql_type(kind) for name, kind in self.held.columns.items()}

    async def rows(
        self, table: SqlRows, ranges: Collection[int] | None = None
    ) -> AsyncIterator[list[Any]]:
        assert self.held is not None
        assert ranges is None
        await asyncio.sleep(self.read_s)
        yield [
            tuple(None if row[name] is None else printed(row[name]) for name in table.names)
            for row in self.held.rows.values()
        ]


@pytest.fixture
def ab(tmp_path: Path) -> Iterator[MirrorWorld]:
    with mirrored(tmp_path, {"a": 6, "b": 4}) as world:
        yield world


@pytest.fixture
def sides(ab: MirrorWorld, monkeypatch: pytest.MonkeyPatch) -> Sides:
    made = Sides(ab)
    monkeypatch.setattr(check, "held_snapshot", made.held_snapshot)
    monkeypatch.setattr(check, "types_of", made.types_of)
    monkeypatch.setattr(source, "confirmed_lsn", made.confirmed_lsn)
    monkeypatch.setattr(source, "in_snapshot", made.in_snapshot)
    monkeypatch.setattr(SqlRows, "rows", lambda table, ranges=None: made.rows(table, ranges))
    return made


def verifier(world: MirrorWorld, wait_s: float = 20.0, again_s: float = 2.0) -> Verifier:
    target = SqliteTarget(str(world.path))
    return Verifier(Settings(), world.client(), target, Patience(wait_s, again_s))


def verdict(world: MirrorWorld, name: str, **patience: float) -> Verdict:
    return world.do(verifier(world, **patience).table(name))


def busy(world: MirrorWorld, count: int = 60) -> None:
    """Transactions that come while others do their work."""

    async def write() -> None:
        for number in range(count):
            with world.transaction() as tx:
                tx.insert("a", id=1000 + number, name="new")
                tx.update("b", 1, name=f"changed {number}")
            await asyncio.sleep(0.02)

    world.begin(write())


def test_a_mirror_is_equal_to_its_source_at_one_lsn_while_both_move(
    ab: MirrorWorld, sides: Sides
) -> None:
    busy(ab)
    found = verdict(ab, "a")
    assert found.equal, found
    assert sides.held is not None
    assert found.rows == len(sides.held.rows)
    assert found.key == ("id",)
    assert sides.snapshots == 1
    # The mirror continues behind it.
    ab.past(3.0)
    ab.settle()


def test_changes_behind_the_lsn_wait_for_the_comparison(ab: MirrorWorld, sides: Sides) -> None:
    def later() -> None:
        with ab.transaction() as tx:
            tx.update("a", 1, name="behind the snapshot")

    sides.meanwhile = [later]
    assert verdict(ab, "a").equal
    ab.settle()


def test_the_mirror_goes_no_further_than_the_lsn_before_its_rows_are_read(
    ab: MirrorWorld, sides: Sides
) -> None:
    def later() -> None:
        with ab.transaction() as tx:
            tx.update("a", 1, name="behind the snapshot")

    def reach() -> None:
        assert ab.row("a", 1) == {"id": 1, "name": "name 1"}
        sides.reached = None

    sides.reached = 0
    sides.meanwhile = [later, lambda: ab.after(4.0, reach)]
    assert verdict(ab, "a").equal
    assert sides.snapshots == 1
    ab.settle()


def test_the_mirror_continues_while_its_rows_are_compared(ab: MirrorWorld, sides: Sides) -> None:
    sides.read_s = 15.0

    def later() -> None:
        with ab.transaction() as tx:
            tx.insert("a", id=50, name="behind the snapshot")

    sides.meanwhile = [lambda: ab.after(5.0, later)]
    task = ab.begin(verifier(ab).table("a"))
    ab.past(12.0)
    assert ab.row("a", 50) is not None
    ab.until(task.done)
    assert task.result().equal


def test_lists_are_compared_with_the_sources_arrays(ab: MirrorWorld, sides: Sides) -> None:
    """A SQLite file has them as JSON."""
    ab.checks = False
    with ab.transaction() as tx:
        tx.create("c", id="integer", l="integer[]")
        tx.insert("c", id=1, l=[1, 2])
    ab.until(lambda: bool(ab.shown().get("c")))
    made = verifier(ab)
    made.settings = replace(made.settings, format=FormatSettings(arrays=ArrayForm.LIST))
    assert ab.do(made.table("c")).equal


def test_changes_before_the_lsn_are_waited_for(ab: MirrorWorld, sides: Sides) -> None:
    ab.server.holds_back = True
    with ab.transaction() as tx:
        tx.update("a", 1, name="before the snapshot")
    ab.past(0.5)
    ab.after(3.0, ab.server.give_out_again)
    found = verdict(ab, "a")
    assert found.equal, found
    assert sides.snapshots == 1


def test_a_mirror_that_stays_behind_is_an_error(ab: MirrorWorld, sides: Sides) -> None:
    ab.server.holds_back = True
    with ab.transaction() as tx:
        tx.update("a", 1, name="before the snapshot")
    ab.past(0.5)
    with pytest.raises(NotThereError, match="is behind and did not reach"):
        verdict(ab, "a", wait_s=5.0)


def test_a_stream_that_stays_behind_is_an_error(ab: MirrorWorld, sides: Sides) -> None:
    sides.reached = 5
    with pytest.raises(NotThereError, match="the stream has not reached"):
        verdict(ab, "a", wait_s=5.0)


def test_a_stopped_mirror_is_compared_as_it_is(ab: MirrorWorld, sides: Sides) -> None:
    ab.stop()
    assert verdict(ab, "a").equal
    with ab.transaction() as tx:
        tx.update("b", 1, name="not for this table")
    ab.past(1.0)
    assert verdict(ab, "a").equal
    with pytest.raises(NotThereError, match="is behind"):
        verdict(ab, "b", wait_s=3.0)


def tamper(world: MirrorWorld, statement: str) -> None:
    world.checks = False
    connection = sqlite3.connect(world.path)
    with connection:
        connection.execute(statement)
    connection.close()


def test_a_difference_is_found_and_looked_at_once_more(ab: MirrorWorld, sides: Sides) -> None:
    tamper(ab, "UPDATE a SET name = 'wrong' WHERE id = 2")
    before = ab.loop.now
    found = verdict(ab, "a", again_s=4.0)
    assert not found.equal
    assert found.ranges == 1
    assert found.found == (Difference(RowFault.CHANGED, (2,), ("name",)),)
    assert sides.snapshots == 2
    assert ab.loop.now - before >= 4.0


def test_a_difference_that_disappears_is_none(ab: MirrorWorld, sides: Sides) -> None:
    tamper(ab, "UPDATE a SET name = 'wrong' WHERE id = 2")
    sides.meanwhile = [
        lambda: ab.after(1.0, lambda: tamper(ab, "UPDATE a SET name = 'name 2' WHERE id = 2"))
    ]
    assert verdict(ab, "a", again_s=4.0).equal


def test_other_columns_are_told_until_the_mirror_has_them(ab: MirrorWorld, sides: Sides) -> None:
    sides.columns = ["id", "new"]
    found = verdict(ab, "a", wait_s=6.0)
    assert not found.equal
    assert found.why == "columns missing in the mirror: new; columns only in the mirror: name"
    assert 3 <= sides.snapshots <= 8, "about one in a second"
    sides.columns = ["id", "name", "new"]
    assert verdict(ab, "a", wait_s=3.0).why == (
        "columns missing in the mirror: new; columns only in the mirror: none"
    )
    sides.columns = ["id"]
    ab.after(5.0, lambda: setattr(sides, "columns", None))
    assert verdict(ab, "a").equal


def test_a_table_that_the_mirror_does_not_have_is_told_with_those_it_has(
    ab: MirrorWorld, sides: Sides
) -> None:
    found = verdict(ab, "other")
    assert found.why == "the mirror has no such table; it has: a, b"
    with ab.transaction() as tx:
        tx.drop("a")
        tx.insert("b", id=50, name="x")
    ab.settle()
    ab.past(1.0)
    assert verdict(ab, "a").why == "the mirror has no such table; it has: b"


def test_a_table_that_the_source_does_not_have_is_told(ab: MirrorWorld, sides: Sides) -> None:
    sides.refused = "it is not published"
    found = verdict(ab, "a", wait_s=2.0)
    assert "the source does not have it: it is not published" in found.why
    # The mirror is not held up.
    with ab.transaction() as tx:
        tx.insert("a", id=50, name="x")
    ab.until(lambda: ab.row("a", 50) is not None, 5.0)


def test_a_parked_table_is_told_with_its_reason(ab: MirrorWorld, sides: Sides) -> None:
    def refuse(steps: Any) -> None:
        if any(isinstance(step, InsertRows) and step.table.name == "b" for step in steps):
            raise TargetError("no room")

    ab.checks = False
    ab.refuses = refuse
    with ab.transaction() as tx:
        tx.insert("b", id=50, name="x")
    ab.until(lambda: "b" in ab.mirror.parked)
    ab.past(1.0)
    assert "it is parked: no room" in verdict(ab, "b").why
    assert sides.snapshots == 0


def test_a_table_that_is_copied_again_is_waited_for(ab: MirrorWorld, sides: Sides) -> None:
    ab.copy_s = 10.0
    with ab.transaction() as tx:
        tx.rewrite("a")
        tx.insert("a", id=50, name="x")
    ab.past(1.0)
    # Of the other table too: readers see one moment.
    for name in ("a", "b"):
        with pytest.raises(NotThereError, match=r"bootstrapped|waits for a table"):
            verdict(ab, name, wait_s=2.0)
    assert verdict(ab, "a", wait_s=60.0).equal
    assert verdict(ab, "b").equal


def test_the_mirrors_tables_are_listed(ab: MirrorWorld, sides: Sides) -> None:
    with ab.transaction() as tx:
        tx.drop("a")
        tx.create("c")
        tx.insert("c", id=50, name="x")
    ab.settle()
    ab.past(1.0)
    assert [state.token for state in ab.do(verifier(ab).tables())] == ["b", "c"]


def test_a_target_without_a_mirror_is_an_error(tmp_path: Path) -> None:
    async def load() -> None:
        target = SqliteTarget(str(tmp_path / "m.db"))
        await target.load()
        await target.close()

    asyncio.run(load())
    world = MirrorWorld(tmp_path)
    world.path = tmp_path / "m.db"
    with pytest.raises(NoMirrorError):
        world.do(verifier(world).tables())
    world.close()
