"""A reader that pins the copy sees one cut of all tables, even if everything changes meanwhile."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.lake.errors import LakeUnreachableError
from headrace.lake.files import LakeFiles
from tests.oracle.lake import ForeignLake
from tests.support.accounts_lake import TABLES, TOTAL, AccountsLake
from tests.support.copied_lake import ReadableCopy

STEPS = 40
READERS = 3


class Unreliable(LakeFiles):
    """Files that often can't be read, in the middle of a cut."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(f"file://{folder}")
        self._random = random.Random(seed)
        self.failures = 0

    def get(self, location: str) -> bytes:
        if location.endswith(".parquet") and self._random.random() < 0.02:
            self.failures += 1
            raise LakeUnreachableError(f"{location} can't be read: a test")
        return super().get(location)


class Watched:
    """A copy that one thread feeds and others read, until the last cut is fed."""

    def __init__(self, lake: AccountsLake, seed: int) -> None:
        self.lake = lake
        self.files = Unreliable(lake.folder, seed)
        self.copy = ReadableCopy(lake.folder, files=self.files)
        self.written = threading.Event()
        self.reads = 0
        self.cuts: set[int] = set()

    def feed(self) -> None:
        while True:
            done = self.written.is_set()
            try:
                self.copy.copy.advance()
            except LakeUnreachableError:
                continue
            if done:
                return

    def read(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self.written.is_set():
            with self.copy.copy.pin() as pin:
                expected = self.lake.seen[pin.cut]
                for _ in range(chance.randrange(1, 3)):
                    self.check(pin, expected)
                    # Cuts continue meanwhile.
                    time.sleep(chance.random() * 0.05)
                self.cuts.add(pin.cut)
            self.reads += 1

    def check(self, pin: Any, expected: Any) -> None:
        found = {name: self.copy.rows(pin, name) for name in expected}
        assert found == expected
        assert len(pin.relations) == TABLES
        assert sum(row[1] for rows in found.values() for row in rows) == TOTAL


def test_a_pinned_reader_sees_one_cut_of_all_tables(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    print("seed", seed)
    lake = AccountsLake(tmp_path, seed)
    watched = Watched(lake, seed)
    while watched.copy.copy.cut is None:
        try:
            watched.copy.copy.advance()
        except LakeUnreachableError:
            continue
    with ThreadPoolExecutor(READERS + 1) as threads:
        feeding = threads.submit(watched.feed)
        reading = [threads.submit(watched.read, seed + number) for number in range(READERS)]
        try:
            for _ in range(STEPS):
                lake.step()
        finally:
            watched.written.set()
        for work in (feeding, *reading):
            work.result()
    assert watched.files.failures > 0
    assert watched.reads > READERS
    assert len(watched.cuts) > 3
    with watched.copy.copy.pin() as pin:
        assert pin.cut == STEPS + 1
        watched.check(pin, lake.seen[pin.cut])
    watched.copy.close()


def test_every_cut_is_as_another_reader_sees_it(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    print("seed", seed)
    lake = AccountsLake(tmp_path, seed)
    foreign = ForeignLake(tmp_path)
    copy = ReadableCopy(tmp_path)
    other: ReadableCopy | None = None
    for number in range(15):
        done = lake.step()
        if number % 5 == 2:
            # As after a restart; both copies have to show the same.
            other = ReadableCopy(tmp_path)
            other.copy.advance()
        copy.copy.advance()
        with copy.copy.pin() as pin:
            for name, location in foreign.locations().items():
                account = next(each for each in lake.accounts if str(each.name) == name)
                columns = [column.name for column in account.columns]
                listed = ", ".join(f'"{column}"' for column in columns)
                expected = sorted(foreign.rows(name, listed, location), key=str)
                assert copy.rows(pin, account.name, *columns) == expected == account.shown(), done
                if other is not None:
                    with other.copy.pin() as again:
                        assert other.rows(again, account.name, *columns) == expected
        if other is not None:
            other.close()
            other = None
    copy.close()


@pytest.mark.parametrize("back", [1, 7])
def test_an_older_cut_shows_its_tables(tmp_path: Path, back: int) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    print("seed", seed)
    lake = AccountsLake(tmp_path, seed)
    names = {}
    for _ in range(20):
        lake.step()
        assert lake.writer.last_cut is not None
        names[lake.writer.last_cut.number] = {
            account.relation_id: (account.name, account.columns) for account in lake.accounts
        }
    copy = ReadableCopy(tmp_path)
    cut = copy.copy.advance()
    assert cut is not None
    then = cut.number - back
    shown = 0
    with copy.copy.pin(str(then)) as pin:
        for account in lake.accounts:
            before = names[then].get(account.relation_id)
            if before is None or [each.number for each in before[1]] != [
                each.number for each in account.columns
            ]:
                assert copy.definitions.names[account.name] not in pin.relations
                continue
            assert copy.rows(pin, account.name) == lake.seen[then][before[0]]
            shown += 1
    assert shown
    copy.close()
