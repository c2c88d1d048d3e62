"""`headrace up --lake --sql`: changes in PostgreSQL are read with SQL from the lake."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.testing.up import Up

# It starts and stops a whole suite.
pytestmark = pytest.mark.slow
WROTE = "INSERT INTO headrace_demo (name, price) VALUES ('sofa', 99) RETURNING pg_current_wal_insert_lsn()"


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
    return output.decode().strip()


async def test_what_is_written_to_postgresql_is_read_with_sql_from_the_lake(
    empty_folder: Path, tmp_path: Path
) -> None:
    place = (tmp_path / "lake").as_uri()
    inline = {"HEADRACE_LAKE_ENGINE": "inline"}
    async with Up(empty_folder, "--lake", place, "--sql", **inline) as up:
        await up.says("Up after", 180)
        assert '&& psql "$SQL_URL"' in up.output
        lsn = await said(empty_folder, f'psql -XqAtc "{WROTE}"')
        sql = 'psql -XqAt "$SQL_URL" -c'
        await said(empty_folder, f"{sql} \"SELECT headrace.wait_for('{lsn}', '60 s')\"")
        found = await said(
            empty_folder, f"{sql} 'SELECT name, price FROM headrace_demo ORDER BY id'"
        )
        assert found.splitlines() == ["lamp|17.50", "sofa|99.00"]
        assert "sql-server" in await said(empty_folder, "headrace status")
        assert await said(empty_folder, "headrace sql users ls") == "reader  all tables"
