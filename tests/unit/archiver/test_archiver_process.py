"""The archiver's process: what it refuses, what it removes, and what it reports while it recovers."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.archive import WalReader
from headrace.archive.errors import ArchiveError, ArchiveUnreachableError
from headrace.archive.layout import file_name
from headrace.archive.registry import register
from headrace.archive.store import Store
from headrace.archiver import janitor, service
from headrace.archiver.open_file import OpenFile
from headrace.confirming.relations import Relations
from headrace.errors import SettingError
from headrace.process.health import Health
from headrace.process.lifecycle import Scope
from headrace.settings import load
from tests.support.archive_maker import Maker, rows


@pytest.fixture
def scope() -> Scope:
    return Scope("archiver", load({}).process, asyncio.TaskGroup(), Health("archiver"))


@pytest.fixture
def made(tmp_path: Path) -> Maker:
    """Three files, an hour old."""
    maker = Maker(f"file://{tmp_path}/archive")
    for number in range(1, 4):
        maker.write()
        then = time.time() - 3600
        os.utime(tmp_path / "archive" / file_name(number), (then, then))
    return maker


def left(made: Maker) -> list[int]:
    return [listed.id for listed in WalReader(made.url).list()]


async def run_once(
    scope: Scope, store: Store, keep_s: int, monkeypatch: pytest.MonkeyPatch
) -> list[float]:
    """The pauses of a janitor that is stopped in its first one."""
    pauses: list[float] = []

    async def pause(_: Scope, seconds: float) -> None:
        pauses.append(seconds)
        scope.stopping.set()

    monkeypatch.setattr(Scope, "pause", pause)
    await janitor.run(scope, store, keep_s)
    return pauses


@pytest.mark.parametrize(
    ("keep_s", "pause_s"), [(1, 1.0), (50, 5.0), (6000, 600.0), (86_400, 600.0)]
)
async def test_old_files_go_soon_after_their_time(
    scope: Scope, made: Maker, monkeypatch: pytest.MonkeyPatch, keep_s: int, pause_s: float
) -> None:
    assert await run_once(scope, made.store, keep_s, monkeypatch) == [pause_s]
    assert left(made) == ([3] if keep_s < 3600 else [1, 2, 3])


async def test_files_that_a_reader_needs_stay(
    scope: Scope, made: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(made.store, "lake", 2)
    await run_once(scope, made.store, 1, monkeypatch)
    assert left(made) == [2, 3]


async def test_a_store_that_does_not_answer_is_asked_again_later(
    scope: Scope, made: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise ArchiveUnreachableError("no answer")

    monkeypatch.setattr(Store, "ask", unreachable)
    assert await run_once(scope, made.store, 10, monkeypatch) == [1.0]


async def test_a_stopped_archiver_removes_nothing(scope: Scope, made: Maker) -> None:
    scope.stopping.set()
    await janitor.run(scope, made.store, 1)
    assert left(made) == [1, 2, 3]


async def test_without_a_url_the_service_says_which_setting_it_needs(scope: Scope) -> None:
    with pytest.raises(SettingError, match="HEADRACE_ARCHIVE_URL is not set"):
        await service.run(scope, load({}))


async def test_an_archiver_that_recovers_says_whether_its_store_is_the_reason(
    scope: Scope, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progressed: list[bool] = []

    async def follow_on(_: Scope, __: object, ___: object, failed: Any) -> None:
        errors = ArchiveUnreachableError("no answer"), ArchiveError("damaged")
        progressed.extend([await failed(error) for error in errors])

    closed: list[bool] = []

    async def close(_: Relations) -> None:
        closed.append(True)

    monkeypatch.setattr(Scope, "spawn", lambda _, __, work: work.close())
    monkeypatch.setattr(Relations, "close", close)
    monkeypatch.setattr(service, "follow_on", follow_on)
    client: Any = SimpleNamespace(jetstream=lambda: None, max_payload=1)
    settings = load({"HEADRACE_ARCHIVE_URL": f"file://{tmp_path}"})
    store = Store(f"file://{tmp_path}")
    await service._work(scope, settings, client, store, SimpleNamespace(), "session")  # type: ignore[arg-type]  # nothing is written
    assert "no answer" in scope.health.reasons["store"]
    assert "damaged" in scope.health.reasons["archive"]
    assert scope.health.stats.values()["archive_recoveries"] == 2
    assert progressed == [False, False], "no run has written anything"
    assert closed == [True]


async def test_the_service_holds_its_lease_while_it_archives_and_removes_files_if_it_is_to(
    scope: Scope, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    async def on_the_bus(_: Scope, __: object, work: Any) -> None:
        await work(SimpleNamespace(jetstream=lambda: None, max_payload=1))

    async def ensure(*_: object) -> None:
        calls.append("streams")

    async def leased(_: Scope, __: object, ___: object, name: str, work: Any) -> None:
        calls.append(f"lease of {name}")
        await work(SimpleNamespace(), "session")

    async def follow_on(*_: object) -> None:
        calls.append("archive")

    def spawn(_: Scope, name: str, work: Any) -> None:
        calls.append(name)
        work.close()

    monkeypatch.setattr(service, "on_the_bus", on_the_bus)
    monkeypatch.setattr(service, "ensure_patiently", ensure)
    monkeypatch.setattr(service, "run_leased", leased)
    monkeypatch.setattr(service, "follow_on", follow_on)
    monkeypatch.setattr(Scope, "spawn", spawn)
    url = {"HEADRACE_ARCHIVE_URL": f"file://{tmp_path}"}
    await service.run(scope, load(url))
    assert calls == ["streams", "lease of archiver", "base-age", "archive"]
    calls.clear()
    await service.run(scope, load({**url, "HEADRACE_ARCHIVE_KEEP_S": "9"}))
    assert calls == ["streams", "lease of archiver", "janitor", "base-age", "archive"]


async def test_row_groups_are_in_the_file_in_their_order_and_an_error_is_raised_once() -> None:
    file = OpenFile()
    await file.encoded()
    await file.add(rows(0, 10))
    await file.add(rows(10, 10))
    await file.encoded()
    size = file.size
    assert size > 0
    wrong: Any = None
    await file.add(wrong)
    with pytest.raises(AttributeError):
        await file.encoded()
    await file.encoded()
    assert file.size == size
