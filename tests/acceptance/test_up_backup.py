"""`headrace up` with a backup store: it creates the store and the slot, and stores the log."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from headrace.testing.up import Up
from tests.acceptance.test_up_lake import said

pytestmark = pytest.mark.slow
TWO_SUITES = ("--slot", "a", "--pub", "p1", "--slot", "b", "--pub", "p2")


async def test_up_stores_the_log_of_its_cluster_once_and_a_backup_takes_one_command(
    empty_folder: Path, tmp_path: Path
) -> None:
    store = {"HEADRACE_BACKUP_URL": (tmp_path / "backups").as_uri()}
    async with Up(empty_folder, **store) as up:
        await up.says("Up after")
        assert re.search(r"Created .*store file:.*slot headrace_backup", up.output)
        assert "headrace backup now" in up.output, "the table names the command"
        assert "stored as" in await said(empty_folder, "headrace backup now")
        up.process.send_signal(signal.SIGINT)
        assert await up.ends() == 0
    async with Up(empty_folder, *TWO_SUITES, **store) as up:
        await up.says("Up after")
        # One cluster, one log: two wal-archivers would wait for each other's slot.
        assert len(re.findall(r"wal-archiver +http", up.output)) == 1
        await said(empty_folder, "headrace backup verify")
        up.process.send_signal(signal.SIGINT)
        assert await up.ends() == 0
