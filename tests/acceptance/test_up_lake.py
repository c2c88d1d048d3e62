"""`headrace up --lake`: Iceberg tables next to the suite, on real servers, read by DuckDB."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from decimal import Decimal
from pathlib import Path

import pytest

from headrace.testing.up import Up
from tests.oracle.lake import ForeignLake

# It starts and stops a whole suite.
pytestmark = pytest.mark.slow
PATIENCE_S = 60.0


async def said(folder: Path, command: str) -> str:
    """The output of a command in another terminal; it has to succeed."""
    shell = await asyncio.create_subprocess_shell(
        f". .headrace/env && {command}",
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await shell.communicate()
    assert shell.returncode == 0, output.decode()
    return output.decode()


async def rows(lake: ForeignLake, wanted: int) -> list[tuple[object, ...]]:
    """The demo's rows, once there are as many."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = []
        if await asyncio.to_thread(lake.cut) is not None:
            found = await asyncio.to_thread(lake.rows, "public.headrace_demo", "name, price")
        if len(found) == wanted:
            return found
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.2)


async def test_up_keeps_a_lake_that_duckdb_reads_and_commands_know(
    empty_folder: Path, tmp_path: Path
) -> None:
    place = tmp_path / "lake"
    async with Up(empty_folder, "--lake", place.as_uri()) as up:
        await up.says("Up after")
        assert "lake-writer" in up.output
        assert "archiver" in up.output, "a lake is made from the archive"
        lake = ForeignLake(place)
        # The sample changes: two rows, of which one is updated and the other deleted.
        assert await rows(lake, 1) == [("lamp", Decimal("17.50"))]
        await said(
            empty_folder, "psql -qc \"INSERT INTO headrace_demo (name, price) VALUES ('sofa', 9)\""
        )
        assert sorted(await rows(lake, 2)) == [("lamp", Decimal("17.50")), ("sofa", Decimal(9))]

        commands = ("headrace lake ls --json", "headrace status", "headrace doctor --json")
        listed, status, checks = await asyncio.gather(
            *(said(empty_folder, command) for command in commands)
        )
        assert (json.loads(listed)["table"], json.loads(listed)["rows"]) == (
            "public.headrace_demo",
            2,
        )
        assert "lake-writer" in status
        found = {
            check["name"]: check["state"]
            for check in json.loads(checks)["checks"]
            if check["group"] == "Lake"
        }
        assert found == dict.fromkeys(
            ("archive", "place", "catalog", "lake-writer", "last cut"), "ok"
        )
        up.process.send_signal(signal.SIGINT)
        assert await up.ends() == 0, up.output


async def test_a_lake_that_can_not_be_is_refused_in_one_line_before_anything_starts(
    empty_folder: Path,
) -> None:
    async with Up(empty_folder, "--lake", "s3://bucket/lake") as up:
        assert await up.ends() == 1
    [line] = up.output.strip().splitlines()
    assert line.startswith("headrace: HEADRACE_LAKE_CATALOG is not set")
    assert not (empty_folder / ".headrace/postgres").exists()
