"""Rows of open portals that other statements keep in memory: one limit for all of a session."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import duckdb
import pytest

from headrace.sql_server import lake_run
from headrace.sql_server.lake_run import Result, Runner
from headrace.sql_server.problems import StatementRefusedError

ROWS = 20_000
ROW_BYTES = 8


class Cut:
    """A pinned cut whose queries run in a DuckDB without tables."""

    def __init__(self) -> None:
        self._database = duckdb.connect()

    @contextlib.contextmanager
    def using(self) -> Any:
        yield self._database

    def prepare(self, relids: object) -> None: ...

    def close(self) -> None:
        self._database.close()

    def release(self) -> bool:
        return False


@pytest.fixture
async def runner() -> Any:
    with ThreadPoolExecutor(1) as threads:
        lake = SimpleNamespace(turns=asyncio.Semaphore(1), threads=threads, stats=SimpleNamespace())
        made = Runner(cast("Any", lake))
        made._pinned = cast("Any", Cut())
        yield made
        await made.unpin()


async def open_result(runner: Runner) -> Result:
    return await runner.execute(f"SELECT range AS n FROM range({ROWS})", [], ())


async def test_open_portals_share_one_limit(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_run, "SET_ASIDE_BYTES_MAX", int(2.5 * ROWS * ROW_BYTES))
    results = [await open_result(runner) for _ in range(3)]
    # The third is not in memory yet; a fourth statement would be one too many.
    with pytest.raises(StatementRefusedError, match="open portals"):
        await open_result(runner)
    assert len(results) == 3


async def test_a_portal_that_was_fetched_or_closed_takes_none_of_it(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_run, "SET_ASIDE_BYTES_MAX", int(2.5 * ROWS * ROW_BYTES))
    results = [await open_result(runner) for _ in range(3)]
    count = 0
    while (batch := await results[0].batch()) is not None:
        count += batch.num_rows
    assert count == ROWS
    results.append(await open_result(runner))
    results.pop(1)
    results.append(await open_result(runner))
    assert runner.held_bytes <= lake_run.SET_ASIDE_BYTES_MAX
