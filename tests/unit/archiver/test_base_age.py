"""The age of the base snapshots that the archiver reports."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from headrace.archive import layout
from headrace.archive.bases import BaseRecord, Bases
from headrace.archive.store import Store
from headrace.archiver import base_age
from headrace.process.health import Health
from headrace.process.lifecycle import Scope
from headrace.settings import load
from tests.support.archive_maker import table_info

DAY_S = 86_400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def take(folder: Path, name: str, table: str, age_s: float) -> BaseRecord:
    at = int((time.time() - age_s) * 1e6)
    record = BaseRecord(name, "made", "headrace", "1", table_info(table), 100, at, 1, 0, ())
    Bases(Store(f"file://{folder}")).complete(record)
    return record


async def reported(folder: Path, *steps: object, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The reported age of each round; the steps come between them."""
    scope = Scope("archiver", load({}).process, asyncio.TaskGroup(), Health("archiver"))
    left = list(steps)
    seen: list[object] = []

    async def pause(_: Scope, seconds: float) -> None:
        assert seconds <= 3600
        seen.append(scope.health.stats.values().get("archive_base_age_seconds"))
        if not left:
            scope.stopping.set()
            return
        step = left.pop(0)
        assert callable(step)
        step()

    monkeypatch.setattr(Scope, "pause", pause)
    await base_age.run(scope, Store(f"file://{folder}"))
    return seen


async def test_the_age_is_that_of_the_table_whose_newest_base_is_the_oldest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = take(folder, "a", "orders", 9 * DAY_S)
    take(folder, "b", "items", 3 * DAY_S)
    ages = await reported(
        folder,
        lambda: take(folder, "c", "orders", DAY_S),
        lambda: Bases(Store(f"file://{folder}")).remove(old),
        monkeypatch=monkeypatch,
    )
    assert ages == [pytest.approx(days * DAY_S, abs=60) for days in (9, 3, 3)]


async def test_without_a_base_there_is_no_age(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = take(folder, "a", "orders", DAY_S)
    first, second = await reported(
        folder,
        lambda: Bases(Store(f"file://{folder}")).remove(only),
        monkeypatch=monkeypatch,
    )
    assert first is not None
    assert second is None


async def test_a_record_that_can_not_be_read_hides_no_age_and_is_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(folder, "a", "orders", 2 * DAY_S)
    file = folder / layout.base_record("b")
    kept: list[bytes] = []

    def damage() -> None:
        take(folder, "b", "items", 5 * DAY_S)
        kept.append(file.read_bytes())
        file.write_bytes(b"{}")

    ages = await reported(
        folder, damage, lambda: file.write_bytes(kept[0]), monkeypatch=monkeypatch
    )
    assert ages == [pytest.approx(days * DAY_S, abs=60) for days in (2, 2, 5)]
