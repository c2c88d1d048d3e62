"""Random histories of a mirror: transactions, DDL, copies and faults at any moment, in virtual time.

`MirrorWorld` compares after each commit what readers see with the source's moments; here the mirror
must also equal the source in the end, after any faults.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.mirror import follower
from tests.support.mirror_world import MirrorWorld, Transaction

STEPS = 14
NAMES = ("a", "b", "c")


class History:
    """Steps of one history, drawn from a seed."""

    def __init__(self, world: MirrorWorld) -> None:
        self.world = world
        self.chance = random.Random(world.chance.random())
        self.next_id = 1000

    def rows(self, tx: Transaction, name: str, count: int) -> None:
        """Random changes of a table."""
        table = self.world.source.tables[name]
        for _ in range(count):
            kind = self.chance.choice(("insert", "insert", "update", "update", "rekey", "delete"))
            self.next_id += 1
            if kind == "insert" or not table.rows:
                tx.insert(name, id=self.next_id, name=f"new {self.next_id}")
                continue
            key = self.chance.choice(list(table.rows))
            if kind == "update":
                tx.update(name, key, name=f"changed {self.next_id}")
            elif kind == "rekey":
                tx.update(name, key, id=self.next_id)
            else:
                tx.delete(name, key)

    def some(self) -> list[str]:
        there = sorted(self.world.source.tables)
        return self.chance.sample(there, self.chance.randint(1, len(there)))

    def changes(self) -> None:
        """Also a transaction that is larger than what is written in one piece."""
        count = self.chance.choice((1, 1, 2, 5, 30))
        with self.world.transaction() as tx:
            for name in self.some():
                self.rows(tx, name, count)

    def arrays(self) -> None:
        with self.world.transaction(arrays=True) as tx:
            for name in self.some():
                self.rows(tx, name, 2)

    def ddl(self) -> None:
        name = self.some()[0]
        columns = [
            one for one in self.world.source.tables[name].columns if one not in ("id", "name")
        ]
        with self.world.transaction() as tx:
            self.rows(tx, name, 1)
            self.next_id += 1
            match self.chance.choice(("add", "drop", "rename", "truncate", "rewrite")):
                case "add":
                    tx.add_column(name, f"c{self.next_id}", self.chance.choice((None, "filled")))
                case "drop" if columns:
                    tx.drop_column(name, columns[0])
                case "rename" if columns:
                    tx.rename_column(name, columns[0], f"r{self.next_id}")
                case "truncate":
                    tx.truncate(name)
                case _:
                    tx.rewrite(name)
            tx.insert(name, id=self.next_id, name="after it")

    def drop_and_create(self) -> None:
        name = self.some()[0]
        other = next((one for one in sorted(self.world.source.tables) if one != name), name)
        with self.world.transaction() as tx:
            tx.drop(name)
            if other != name:
                self.rows(tx, other, 1)
        with self.world.transaction() as tx:
            tx.create(name)
            self.rows(tx, name, 2)

    def rename(self) -> None:
        """A table continues under another name, which the mirror may not follow."""
        name = self.some()[0]
        self.next_id += 1
        with self.world.transaction() as tx:
            tx.rename(name, f"t{self.next_id}")
            self.rows(tx, f"t{self.next_id}", 1)
        with self.world.transaction() as tx:
            tx.create(name)
            self.rows(tx, name, 1)

    def other_events(self) -> None:
        """Of another table, which a mirror of some tables is not given, and of none."""
        with self.world.transaction() as tx:
            tx.message()
            self.rows(tx, self.some()[0], 1)
            tx.message()

    def server_delays(self) -> None:
        self.world.server.holds_back = True
        self.changes()
        self.world.past(self.chance.choice((0.01, 0.5, 6.0)))
        self.world.server.give_out_again()

    def gap(self) -> None:
        with self.world.transaction(lost=True) as tx:
            self.rows(tx, self.some()[0], 3)
        self.world.gap()
        self.changes()

    def crash(self) -> None:
        self.world.kill()
        self.world.past(self.chance.choice((0.0, 0.01, 2.0)))
        self.world.start()

    def server_restarts(self) -> None:
        self.world.server.stop()
        self.world.past(self.chance.choice((0.1, 3.0)))
        self.world.server.start()

    def falls_behind(self) -> None:
        """Retention takes everything while the mirror is away."""
        self.world.kill()
        self.changes()
        self.world.past(0.5)
        self.world.server.discard("CDC", self.world.server.streams["CDC"].last_seq + 1)
        self.world.start()

    def failing_snapshot(self) -> None:
        self.world.fails_snapshots = 1
        self.ddl()

    def step(self) -> None:
        steps: list[Callable[[], None]] = [self.changes] * 6
        steps += [self.ddl, self.ddl, self.crash, self.crash, self.gap, self.failing_snapshot]
        steps += [self.drop_and_create, self.server_restarts, self.falls_behind]
        steps += [self.rename, self.other_events, self.server_delays]
        self.chance.choice(steps)()
        self.world.past(self.chance.choice((0.0, 0.0, 0.003, 0.05, 0.3, 4.0)))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large transactions and full commits, with few events."""
    monkeypatch.setattr(follower, "SPILL_EVENTS", 12)
    monkeypatch.setattr(follower, "COMMIT_EVENTS", 8)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(24))
def test_readers_see_moments_of_the_source_in_order_and_all_of_it_in_the_end(
    seed: int, tmp_path: Path
) -> None:
    mirrored = ((), (("public", "a"), ("public", "b")))[seed % 2]
    world = MirrorWorld(tmp_path, seed, mirrored)
    try:
        for name in NAMES:
            world.create(name, 4)
        world.start()
        history = History(world)
        for _ in range(STEPS):
            history.step()
            world.check()
        history.changes()
        world.settle()
    finally:
        world.close()
