"""Random histories: no matter what happened before and after, a restore has the rows of its moment.

Each history continues the cluster of the one before, with a backup now and then, and ends with the
restore of one of its moments. `HISTORIES` says how many, `HISTORIES_SEED` which,
`HISTORIES_VERSION` on which PostgreSQL, `TABLESPACE_HISTORIES` how many with a tablespace (`./taskw
test:histories`).
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.embedded.account import unprivileged_account
from tests.support.time_machine import TimeMachine, machine, room

__all__ = ["machine", "room"]

TABLESPACE_HISTORIES = int(os.environ.get("TABLESPACE_HISTORIES", "2"))
HISTORIES = int(os.environ.get("HISTORIES", "10"))
SEED = int(os.environ.get("HISTORIES_SEED", "5"))
VERSION = int(os.environ.get("HISTORIES_VERSION", "18"))
STEPS = 24


@dataclass(frozen=True, slots=True)
class Recorded:
    """A moment, and its rows."""

    option: str
    value: str
    rows: dict[str, str]


class History:
    """Random statements against one cluster."""

    def __init__(
        self, machine: TimeMachine, rng: random.Random, tablespace: str | None = None
    ) -> None:
        self._machine = machine
        self._rng = rng
        # Where some of the tables are.
        self._tablespace = tablespace
        self._tables: list[str] = []
        self._made = 0
        # A drop's moment is before its transaction.
        self.drops: list[Recorded] = []

    async def step(self) -> None:
        """One random statement."""
        rng = self._rng
        kind = rng.choices(
            ["create", "drop", "truncate", "alter", "write", "large", "abort", "log"],
            [2, 1, 1, 1, 10, 1, 1, 2],
        )[0]
        if kind == "create" or not self._tables:
            await self._create()
        elif kind == "log":
            await self._machine.execute(rng.choice(["SELECT pg_switch_wal()", "CHECKPOINT"]))
        else:
            await self._on_table(kind, rng.choice(self._tables))

    async def _create(self) -> None:
        self._made += 1
        name = f"t{self._made}"
        place = ""
        if self._tablespace is not None and self._rng.random() < 0.6:
            place = f"TABLESPACE {self._tablespace}"
        await self._machine.execute(
            f"CREATE TABLE {name} (id bigserial PRIMARY KEY, n int, v text) {place}"
        )
        self._tables.append(name)

    async def _on_table(self, kind: str, name: str) -> None:
        execute = self._machine.execute
        rng = self._rng
        low = rng.randrange(1000)
        if kind == "drop":
            self._tables.remove(name)
            await self._drop(name)
        elif kind == "truncate":
            await execute(f"TRUNCATE {name}")
        elif kind == "alter":
            await execute(f"ALTER TABLE {name} ADD COLUMN c{rng.randrange(10**6)} int DEFAULT 7")
        elif kind == "large":
            await execute(
                f"INSERT INTO {name} (n, v) SELECT i, md5(i::text) FROM generate_series(1, 60000) i"
            )
        elif kind == "abort":
            await execute(f"BEGIN; DELETE FROM {name}; ROLLBACK")
        else:
            await execute(
                f"INSERT INTO {name} (n, v) SELECT i, md5(i::text) "
                f"FROM generate_series({low}, {low + rng.randrange(300)}) i; "
                f"UPDATE {name} SET v = v || 'x' WHERE n % 7 = {low % 7}; "
                f"DELETE FROM {name} WHERE n % 11 = {low % 11}"
            )

    async def _drop(self, name: str) -> None:
        before = await self._machine.digests()
        session = await self._machine.session()
        async with session.transaction():
            await session.execute(f"DROP TABLE {name}")
            xid = await session.fetchval("SELECT pg_current_xact_id()::xid::text")
        self.drops.append(Recorded("--before-xid", xid, before))

    async def record(self) -> Recorded:
        """A moment now."""
        rows = await self._machine.digests()
        if self._rng.random() < 0.5:
            query = "SELECT pg_current_wal_insert_lsn()::text"
            return Recorded("--lsn", await self._machine.value(query), rows)
        return Recorded("--at", await self._machine.value("SELECT clock_timestamp()::text"), rows)


async def switch_timeline(machine: TimeMachine) -> None:
    """The server is promoted, as a standby that takes over."""
    await machine.stored()
    await machine.server.stop()
    signal = machine.server.pgdata / "standby.signal"
    signal.touch()
    signal.chmod(0o644)
    await machine.server.start()
    assert await machine.value("SELECT pg_promote()")


@pytest.mark.slow
@pytest.mark.parametrize("pg_version", [VERSION], indirect=True)
@pytest.mark.timeout(300 + 60 * HISTORIES)
async def test_a_restore_of_a_random_moment_has_its_rows(machine: TimeMachine) -> None:
    rng = random.Random(SEED)
    await machine.begin()
    await machine.backup()
    history = History(machine, rng)
    wrong = await compare(machine, history, rng, HISTORIES, {})
    assert not wrong, f"seed {SEED}"


@pytest.mark.slow
@pytest.mark.timeout(300 + 60 * TABLESPACE_HISTORIES)
async def test_tables_of_a_tablespace_come_back_in_its_new_place(machine: TimeMachine) -> None:
    rng = random.Random(SEED)
    old, new = machine.room / "old", machine.room / "new"
    account = unprivileged_account()
    for folder in (old, new):
        folder.mkdir(mode=0o700)
        if account is not None:
            account.own(folder)
    await machine.execute(f"CREATE TABLESPACE fast LOCATION '{old}'")
    await machine.begin()
    await machine.backup()
    history = History(machine, rng, "fast")
    wrong = await compare(machine, history, rng, TABLESPACE_HISTORIES, {old: new})
    assert not wrong, f"seed {SEED}"
    refused = await machine.run("restore", "--to", str(machine.room / "x"), code=1)
    assert f"tablespace at {old}, which has no new place" in refused.err
    assert not (machine.room / "x").exists()


async def compare(
    machine: TimeMachine,
    history: History,
    rng: random.Random,
    count: int,
    places: Mapping[Path, Path],
) -> list[tuple[int, str, str]]:
    """Run this many histories, and return those whose restores differ."""
    wrong = []
    mapped = [word for old, new in places.items() for word in ("--tablespace", f"{old}={new}")]
    for number in range(count):
        recorded = []
        for _ in range(STEPS):
            await history.step()
            if rng.random() < 0.3:
                recorded.append(await history.record())
        if number % 4 == 2:
            await switch_timeline(machine)
        recorded += history.drops
        history.drops.clear()
        for _ in range(STEPS // 4):
            await history.step()
        await machine.stored()
        moment = rng.choice(recorded)
        found = await machine.restored_digests(moment.option, moment.value, *mapped)
        for folder in places.values():
            await asyncio.to_thread(emptied, folder)
        if found != moment.rows:
            wrong.append((number, moment.option, moment.value))
        # A long run shows how far it is, also if it is stopped.
        outcome = "equal" if found == moment.rows else "DIFFERENT"
        print(f"history {number + 1} of {count}: {moment.option} {moment.value}: {outcome}")
        if rng.random() < 0.3:
            await machine.backup()
    return wrong


def emptied(folder: Path) -> None:
    """Remove what the last restore left there."""
    for path in folder.iterdir():
        shutil.rmtree(path)
