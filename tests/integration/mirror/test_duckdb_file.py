"""A mirror's DuckDB file is closed now and then, because a reader can't open it otherwise."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import duckdb
import pytest

from headrace.mirror import Column, CreateTable, InsertRows, Table, opened
from headrace.mirror.duckdb import CLOSED_S_MAX, closed_s

TABLE = Table("public", "users", (Column("id", "bigint"),), ("id",), ("id",))
SLOW_S = 3.0


@pytest.mark.parametrize("open_s", [1.0, 4.0, 20.0])
def test_readers_get_the_same_share_of_the_time_if_commits_are_slow(open_s: float) -> None:
    assert closed_s(open_s) / open_s == pytest.approx(closed_s(1.0))


def test_the_mirror_itself_never_waits_long() -> None:
    assert closed_s(3600.0) == CLOSED_S_MAX


@pytest.mark.slow
async def test_after_a_slow_commit_the_file_is_free_for_longer(tmp_path: Path) -> None:
    file = tmp_path / "copy.duckdb"
    async with opened(f"duckdb:///{file}") as target:
        await target.load()
        await target.write([CreateTable(TABLE)])
        await asyncio.sleep(SLOW_S)
        began = time.monotonic()
        await target.commit({})
        with duckdb.connect(file, read_only=True) as reader:
            assert reader.execute("SELECT count(*) FROM public.users").fetchall() == [(0,)]
        # The next transaction waits for the end of that time.
        await target.write([InsertRows(TABLE, [{"id": 1}])])
        assert time.monotonic() - began > closed_s(SLOW_S)
        await target.commit({})
